"""Decides if a local job resumes, and chooses its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import CannotResumeError
from flink_agents.api.settings.local_jobs import Resume
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink.resume.records.folder import STATE_DIR
from flink_agents.runtime.flink.resume.script import Program

RECOVERY_PATH = "execution.state-recovery.path"
_OLD_RECOVERY_PATH = "execution.savepoint.path"
FRESH_ARGUMENT = "--fresh"


@dataclass(frozen=True)
class ResumeDecision:
    """The decision if a job resumes.

    Attributes:
        state_dir: Directory of the jobs' folders; None if it does not resume.
        script: The script that runs the job.
        reason: The reason why it does not resume.
        fix: The fix for the user.
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
        name: The name that was passed to ``execute``.
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
    """Return True if the start begins a new job run in any case."""
    return bool(config.get(AgentOptions.FRESH)) or FRESH_ARGUMENT in sys.argv[1:]


def arguments() -> list[str]:
    """Return the command line arguments of the script, which may select its jobs."""
    return [argument for argument in sys.argv[1:] if argument != FRESH_ARGUMENT]
