"""Decides if a local job resumes, chooses its folder, and says to which start of the script it belongs.

A script may run several jobs, one after the other. If a start ends in the middle, the next one skips the jobs
that had finished. So each job run records the token of its script start, and a start that ended normally
removes its token. Each start has a unique token: several processes may run the same script at once, each with
another job, as with ``python job.py NAME``.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import CannotResumeError, OtherScriptError
from flink_agents.api.settings.local_jobs import Accept, Resume
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink.resume.job_run import (
    SCRIPTS,
    STATE_DIR,
    JobRun,
    escape_name,
    unusable_directory_error,
)

RECOVERY_PATH = "execution.state-recovery.path"
_OLD_RECOVERY_PATH = "execution.savepoint.path"
FRESH_ARGUMENT = "--fresh"


@dataclass(frozen=True)
class ResumeDecision:
    """The decision if a job resumes.

    Attributes:
        state_dir: Directory of the jobs' folders; None if it does not resume.
        script: The name of the script's file; "interactive" if there is none.
        reason: The reason why it does not resume; empty if it does.
        fix: A change that lets it resume, for the user.
        program: The script's file; None if it is not a file.
    """

    state_dir: Path | None
    script: str = ""
    reason: str = ""
    fix: str = ""
    program: Program | None = None


def main_script() -> Path | None:
    """Return the file that this process runs as a script; None inside of pytest, IPython and other shells."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if file is None or shell is not None or _in_pytest():
        return None
    # For a program from a pipe, the name is <stdin>; a script in a zip file has no directory next to it.
    path = Path(file).absolute()
    return path if path.parent.is_dir() and not path.name.startswith("<") else None


def _in_pytest() -> bool:
    # A script that a test starts inherits the variable, and may import pytest for other reasons.
    return "PYTEST_VERSION" in os.environ and "_pytest.main" in sys.modules


def decide_resume(
    config: Configuration, name: str | None, has_agents: bool, flink: Mapping[str, str]
) -> ResumeDecision:
    """Decide if a job resumes.

    Args:
        config: Options of the job.
        name: The name that was passed to ``execute``; None if none was.
        has_agents: True if the job applies an agent.
        flink: Flink's configuration.

    Raises:
        CannotResumeError: It cannot resume, but the option requires it.
    """
    policy = Resume(config.get(AgentOptions.RESUME))
    script = main_script()
    decision = _find_decision(policy, name, has_agents, flink, script)
    if decision is not None and policy is Resume.REQUIRE:
        raise CannotResumeError(
            f"local.resume is {policy.value!r}, but this job cannot resume",
            expected="a job that resumes",
            found=decision.reason,
            fix=decision.fix,
            where=authors_place(),
        )
    if decision is not None:
        return decision
    configured_dir = config.get(AgentOptions.STATE_DIR)
    home = Path.cwd() if script is None else script.parent
    state_dir = home / STATE_DIR if configured_dir is None else Path(configured_dir).expanduser()
    name = "interactive" if script is None else script.name
    return ResumeDecision(state_dir.absolute(), name, program=Program.find(script, state_dir))


def _find_decision(
    policy: Resume, name: str | None, has_agents: bool, flink: Mapping[str, str], script: Path | None
) -> ResumeDecision | None:
    if policy is Resume.NEVER:
        return ResumeDecision(
            None, reason="the option local.resume is 'never'", fix="set local.resume to 'auto'"
        )
    if name is None:
        return ResumeDecision(None, reason="it has no name", fix="name it: env.execute('orders')")
    if recovery_path(flink) is not None:
        reason = f"{RECOVERY_PATH} sets where it starts"
        return ResumeDecision(None, reason=reason, fix="remove that option")
    if policy is Resume.AUTO and script is None:
        reason = "it does not run from a script"
        return ResumeDecision(None, reason=reason, fix="run it from a file, or set local.resume to 'require'")
    if not has_agents:
        return ResumeDecision(None, reason="it has no agent", fix="apply one: from_list(...).apply(MyAgent)")
    return None


def recovery_path(flink: Mapping[str, str]) -> str | None:
    """Return the checkpoint or savepoint that Flink's options let a job start from."""
    return flink.get(RECOVERY_PATH) or flink.get(_OLD_RECOVERY_PATH) or None


def wants_fresh(config: Configuration) -> bool:
    """Return True if the user wants a new job run: by ``--fresh``, or by the option."""
    return bool(config.get(AgentOptions.FRESH)) or FRESH_ARGUMENT in sys.argv[1:]


def arguments() -> list[str]:
    """Return the command line arguments of the script, which may select its jobs."""
    return [argument for argument in sys.argv[1:] if argument != FRESH_ARGUMENT]


class ScriptEnd(Enum):
    """The end of a script start, as the next start detects it."""

    WELL = auto()
    IN_THE_MIDDLE = auto()
    NOT_YET = auto()


@dataclass(frozen=True)
class Program:
    """The file of a script, identified by its path and by its path relative to its jobs.

    Attributes:
        path: Its absolute path.
        beside: Its path relative to the directory of the jobs, which may be moved together with it.
    """

    path: str
    beside: str

    @classmethod
    def find(cls, script: Path | None, state_dir: Path) -> Program | None:
        """Return the program of a start; None if it is not a file."""
        return None if script is None else cls(str(script), os.path.relpath(script, state_dir.absolute()))

    @property
    def name(self) -> str:
        """The name of the file, which is unique in its directory."""
        path = Path(self.path)
        return path.name if path.name != "__main__.py" else str(Path(path.parent.name, path.name))

    def is_there(self, state_dir: Path) -> Path | None:
        """Return the present path of the program; None if it is gone."""
        places = [Path(self.path), Path(os.path.normpath(state_dir.absolute() / self.beside))]
        return next((place for place in places if place.is_file()), None)

    def is_same(self, other_program: Program, state_dir: Path) -> bool:
        """Return True if both are the same file."""
        if self.path == other_program.path or self.beside == other_program.beside:
            return True
        places = self.is_there(state_dir), other_program.is_there(state_dir)
        return None not in places and os.path.samefile(*places)  # type: ignore[arg-type]


def check_program(run: JobRun, program: Program | None, accept: Accept, state_dir: Path) -> str | None:
    """Check that the script is the one that started the job run, or its replacement.

    Returns:
        A warning, if it is a replacement.

    Raises:
        OtherScriptError: The other script still exists.
    """
    previous_program = None if run.program is None else Program(**run.program)
    if program is None or previous_program is None or program.is_same(previous_program, state_dir):
        return None
    there = previous_program.is_there(state_dir)
    if there is None:
        return f"{previous_program.path} started this job run, and is gone: {program.path} continues it"
    if program.name == previous_program.name or accept is Accept.OTHER_SCRIPT:
        return (
            f"{there} started this job run, and {program.path} continues it. If they are different jobs, "
            "rename one and start it with --fresh"
        )
    raise OtherScriptError(
        f"the unfinished job run {run.name!r} belongs to another script",
        expected=f"{there}, which started it",
        found=program.path,
        fix="rename one of the two jobs: env.execute('...'). If this script replaces the other one, set "
        "local.accept to other-script; to start over, use --fresh",
    )


class ScriptStart:
    """The start of the script in this process, recorded in a file that is locked until the process ends.

    Args:
        state_dir: Directory of the jobs' folders.
        script: The name of the script's file; "interactive" if there is none.
        arguments: The command line arguments, without ``--fresh``.

    Attributes:
        names: Names of the jobs that this start has run.
        token: Identifies this start.

    Raises:
        JobFolderError: The directory cannot be written to.
    """

    def __init__(self, state_dir: Path, script: str, arguments: list[str] | None = None) -> None:
        self._home = state_dir.absolute() / SCRIPTS / escape_name(script)
        self._arguments = arguments or []
        self._unfinished: set[str] = set()
        self._continued: set[str] = set()
        self._anew = False
        self.names: set[str] = set()
        self.token = uuid.uuid4().hex
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            # Held until the process ends in any way.
            self._file = os.open(self._home / self.token, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            self._write_start(fresh=False)
        except OSError as error:
            raise unusable_directory_error(self._home, error) from error
        atexit.register(self.record_script_end)

    def start_over(self) -> None:
        """Record that all jobs of this start begin new job runs, even if another start has to continue it."""
        self._anew = True
        self._write_start(fresh=True)

    def end_of(self, token: str) -> ScriptEnd:
        """Return the way in which the script start with that token ended."""
        if token in ("", self.token):
            return ScriptEnd.WELL
        try:
            file = os.open(self._home / token, os.O_RDWR)
        except OSError:
            return ScriptEnd.WELL
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ScriptEnd.NOT_YET
        else:
            return ScriptEnd.IN_THE_MIDDLE
        finally:
            os.close(file)

    def continues(self, token: str) -> bool:
        """Return True if this start continues the one with that token, which ended in the middle."""
        if self.end_of(token) is not ScriptEnd.IN_THE_MIDDLE or self.begins_anew(token):
            return False
        self._continued.add(token)
        if not self._anew and self._is_fresh(token):
            self.start_over()
        return True

    def begins_anew(self, token: str) -> bool:
        """Return True if all jobs begin new job runs, and the job run with that token is older."""
        return self._anew and not self._is_fresh(token)

    def _is_fresh(self, token: str) -> bool:
        content = self._read_start(token)
        return bool(content.get("fresh")) and content.get("arguments") == self._arguments

    def record_job_start(self, job: str) -> None:
        """Record that a job of the script starts."""
        self.names.add(job)
        self._unfinished.add(job)

    def record_job_finish(self, job: str) -> None:
        """Record that the job has finished."""
        self._unfinished.discard(job)

    def record_script_end(self) -> None:
        """Record that the script has ended normally, if it has."""
        if not self._unfinished and getattr(sys, "last_value", None) is None:
            # The script may have removed the directory: then there is nothing to resume.
            for token in (*self._continued, self.token):
                with suppress(OSError):
                    (self._home / token).unlink()

    def _read_start(self, token: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            content: Any = json.loads((self._home / token).read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else {}
        return {}

    def _write_start(self, fresh: bool) -> None:
        text = json.dumps({"process": os.getpid(), "fresh": fresh, "arguments": self._arguments})
        os.pwrite(self._file, text.encode() + b"\n", 0)


_started: dict[tuple[Path, str], ScriptStart] = {}


def script_start(state_dir: Path, script: str, arguments: list[str] | None = None) -> ScriptStart:
    """Return the start of the script in this process."""
    key = (state_dir.absolute(), script)
    if key not in _started:
        _started[key] = ScriptStart(state_dir, script, arguments)
    return _started[key]
