"""The state of local jobs that resume, for commands and the console: if each runs, and how it ended.

The process that runs a job holds the lock of its folder, whatever its records say. No observer takes that
lock, since a start would find it taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors.resume import JobFolderError
from flink_agents.runtime.flink.following.console import last_error
from flink_agents.runtime.flink.resume.job_run import (
    JOBS,
    SCRIPTS,
    SET_ASIDE,
    JobFolder,
    JobRun,
    RunRecord,
    Start,
    escape_name,
)

POINTER_SUFFIX = ".local-job"
"""End of the name of a file beside traces, with the path of the folder of a job that writes them."""


class JobState(StrEnum):
    """The state of a local job.

    Attributes:
        RUNNING: A process runs it.
        PAUSED: A process has it, and is stopped by a signal such as SIGSTOP.
        STOPPED: A user stopped it.
        FAILED: An error ended it.
        KILLED: Its process ended without recording an end.
        FINISHED: Its inputs have ended.
        REPLACED: A later job run took its place.
        NEW: It was never started.
    """

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    FINISHED = "finished"
    REPLACED = "replaced"
    NEW = "new"


MOST_ERROR = 500
"""Maximum number of characters of an error."""

RESUMABLE = (JobState.STOPPED, JobState.FAILED, JobState.KILLED)


@dataclass(frozen=True)
class LocalJobState:
    """A local job as its folder shows it.

    Attributes:
        run: The record of its job run.
        state: Its state.
        folder: Its folder.
        since: When that state began, in seconds since the epoch; None if it is unknown.
        process: The process that has it; None if there is none, or if it is unknown.
        command: The command that resumes it; None if its script is unknown.
    """

    run: JobRun
    state: JobState
    folder: Path
    since: float | None = None
    process: int | None = None
    command: str | None = None

    @property
    def runs(self) -> bool:
        """True if a process runs the job, and is not paused."""
        return self.state is JobState.RUNNING

    @property
    def error(self) -> str | None:
        """The error that ended its last start; if its process was killed, the last one in its log."""
        start = self.run.last_start
        if start is None or start.error is not None or self.state is not JobState.KILLED:
            return None if start is None else start.error
        text = None if start.log is None else last_error(Path(start.log))
        return None if text is None else redaction.hide(text)[:MOST_ERROR]

    @property
    def address(self) -> str | None:
        """The address of its REST interface, while it runs."""
        start = self.run.last_start
        return start.rest if self.runs and start is not None else None

    def describe_stop(self) -> list[str]:
        """Say that the job does not run, since when, why, and how to resume it; nothing if it runs."""
        if self.runs:
            return []
        lines = [
            _SAID[self.state].format(name=repr(self.run.name), since=self._since_text, process=self.process)
        ]
        if self.state is JobState.PAUSED:
            return [*lines, f"To continue it: kill -CONT {self.process}"]
        if (error := self.error) is not None:
            lines.append(f"Its last error: {error}")
        start = self.run.last_start
        if self.state in (JobState.FAILED, JobState.KILLED) and start is not None and start.log is not None:
            lines.append(f"Its log: {start.log}")
        if self.state in (*RESUMABLE, JobState.NEW):
            lines.append(f"To resume it: {self.command or 'run its script again'}")
        return lines

    @property
    def _since_text(self) -> str:
        if self.since is None:
            return ""
        moment = datetime.fromtimestamp(self.since).astimezone()
        about = "about " if self.state is JobState.KILLED else ""
        return f" since {about}{moment.isoformat(' ', 'seconds')}"

    def as_object(self) -> dict[str, Any]:
        """Return the state as an object for JSON."""
        return {
            "name": self.run.name,
            "state": self.state.value,
            "since_at_ms": None if self.since is None else round(1000 * self.since),
            "error": None if self.runs else self.error,
            "resume": self.command if self.state in RESUMABLE else None,
        }


_SAID = {
    JobState.PAUSED: "The job {name} is paused: its process {process} is stopped.",
    JobState.STOPPED: "The job {name} does not run{since}: it was stopped.",
    JobState.FAILED: "The job {name} does not run{since}: it failed.",
    JobState.KILLED: "The job {name} does not run{since}: its process was killed, or crashed.",
    JobState.FINISHED: "The job {name} does not run{since}: it has finished.",
    JobState.REPLACED: "The job {name} started over. This run is of an earlier job run, and does not go on.",
    JobState.NEW: "The job {name} does not run: it was never started.",
}


def state_of(folder: JobFolder) -> LocalJobState | None:
    """Return the state of the job in a folder; None if the folder has no record that can be read."""
    try:
        run = RunRecord(folder).read()
    except JobFolderError:
        return None
    if run is None:
        return None
    command = _start_command(run, folder)
    start = run.last_start
    holder = lock_holder(folder.lock)
    if holder is not None:
        paused = next((pid for pid in (holder, 0 if start is None else start.pid) if _is_stopped(pid)), None)
        state = JobState.RUNNING if paused is None else JobState.PAUSED
        began = None if start is None or paused is not None else _moment_seconds(start.began)
        return LocalJobState(run, state, folder.path, began, paused or holder or None, command)
    if run.finished is not None:
        return LocalJobState(run, JobState.FINISHED, folder.path, _moment_seconds(run.finished))
    if start is None:
        return LocalJobState(run, JobState.NEW, folder.path, command=command)
    since = _last_alive(folder, start) if start.ended is None else _moment_seconds(start.ended)
    if start.error is not None:
        return LocalJobState(run, JobState.FAILED, folder.path, since, command=command)
    state = JobState.STOPPED if start.stopped or start.ended is not None else JobState.KILLED
    return LocalJobState(run, state, folder.path, since, command=command)


def jobs_in(state_dir: Path) -> Iterator[LocalJobState]:
    """Yield the jobs of a directory of folders, and the job runs that later ones replaced."""
    for path in sorted((state_dir / JOBS).glob("*/")):
        if (job := state_of(JobFolder(path))) is not None:
            yield job
    for path in sorted((state_dir / SET_ASIDE).glob("*/")):
        with suppress(JobFolderError):
            if (run := RunRecord(JobFolder(path)).read()) is not None:
                yield LocalJobState(run, JobState.REPLACED, path)


def jobs_of(state_dirs: Iterable[Path], traces: Path | None = None) -> list[LocalJobState]:
    """Return the jobs whose runs a command may show; of several with one identity, the first.

    Args:
        state_dirs: Directories of folders of jobs.
        traces: A directory of traces. The jobs that write there come first.
    """
    jobs: dict[str, LocalJobState] = {}
    nearby: list[Path] = []
    if traces is not None:
        home = traces if traces.is_dir() else traces.parent
        for pointer in sorted(home.glob(f"*{POINTER_SUFFIX}")):
            with suppress(OSError, ValueError):
                job = state_of(JobFolder(Path(pointer.read_text("utf-8").strip())))
                if job is not None:
                    jobs.setdefault(job.run.identifier, job)
        nearby = [home / ".flink-agents", home.parent / ".flink-agents", home.parent]
    for state_dir in (*nearby, *state_dirs):
        for job in jobs_in(state_dir):
            jobs.setdefault(job.run.identifier, job)
    return list(jobs.values())


def point_to(folder: JobFolder, name: str, traces: Path) -> None:
    """Write a file into a directory of traces that says where the folder of a job is."""
    with suppress(OSError):
        traces.mkdir(parents=True, exist_ok=True)
        (traces / f"{escape_name(name)}{POINTER_SUFFIX}").write_text(f"{folder.path}\n", "utf-8")


# -- processes -----------------------------------------------------------------------


_LAYOUT = "hhqqi4x" if sys.platform == "linux" else "qqihh"
"""The structure of a question about a lock: type, start and process are in another order on other systems."""


def lock_holder(path: Path) -> int | None:
    """Return the process that holds the lock on a file; 0 if it is unknown, None if there is none."""
    try:
        with path.open("rb") as file:
            if sys.platform == "linux":
                lock_query = struct.pack(_LAYOUT, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack(_LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, lock_query))
            else:
                lock_query = struct.pack(_LAYOUT, 0, 0, 0, fcntl.F_RDLCK, os.SEEK_SET)
                _, _, pid, kind, _ = struct.unpack(_LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, lock_query))
    except OSError:
        return None
    # Of a process in another container, the number is not known.
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process, as far as the system tells."""
    with suppress(OSError, IndexError):
        # The name of a process may contain any character.
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _last_alive(folder: JobFolder, start: Start) -> float | None:
    """Return when the process of a start was last known to live."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        progress = json.loads(folder.progress.read_text("utf-8"))
        if progress["start"] == start.number and progress["alive"]:
            return float(progress["alive"])
    return _moment_seconds(start.began)


def _moment_seconds(moment: str) -> float | None:
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None


def _start_command(run: JobRun, folder: JobFolder) -> str | None:
    """Return the command that runs the script of a job again."""
    if run.program is None:
        return None
    beside = Path(os.path.normpath(folder.state_dir.absolute() / run.program.get("beside", "")))
    places = [Path(run.program.get("path", "")), beside]
    script = next((place for place in places if place.is_file()), places[0])
    shown = os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
    return shlex.join(["python", shown, *_start_arguments(run, folder)])


def _start_arguments(run: JobRun, folder: JobFolder) -> list[str]:
    """Return the arguments of the script in its last start, which may select its jobs."""
    for token in (folder.state_dir / SCRIPTS).glob(f"*/{run.script}") if run.script else ():
        with suppress(OSError, ValueError, AttributeError, TypeError):
            return [str(argument) for argument in json.loads(token.read_text("utf-8"))["arguments"]]
    return []
