"""The folder of a named local job, with the record of its job run, from which the next start resumes.

A job run consists of several starts, until the job finishes or starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from flink_agents.api.errors.resume import JobFolderError

STATE_DIR = Path(".flink-agents")
"""Directory of the jobs' folders, in the directory of the script, unless ``local.state-dir`` is set."""

JOBS = "jobs"
SET_ASIDE = "set-aside"
SCRIPTS = "scripts"
LONGEST_NAME = 120


def escape_name(name: str) -> str:
    """Return the name of a job as a directory name; different names stay different."""
    text = quote(name, safe=" ()+,=@", errors="surrogatepass")
    if text.startswith((".", " ")):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if text.endswith(" "):
        text = f"{text[:-1]}%20"
    if len(text) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        text = f"{text[:LONGEST_NAME]}%~{digest}"
    return text


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job.

    Attributes:
        path: The folder, absolute.
    """

    path: Path

    @classmethod
    def for_job(cls, state_dir: Path, name: str) -> JobFolder:
        """Return the folder of the job ``name``, which need not exist."""
        return cls(state_dir.absolute() / JOBS / escape_name(name))

    @property
    def state_dir(self) -> Path:
        """The directory of the jobs of a script."""
        return self.path.parent.parent

    @property
    def record(self) -> Path:
        """The file with the record of the job run."""
        return self.path / "job-run.json"

    @property
    def progress(self) -> Path:
        """The file with the progress of the job run, which a start writes repeatedly."""
        return self.path / "progress.json"

    @property
    def lock(self) -> Path:
        """The file that the process running the job locks.

        It is never removed, and only that process opens it.
        """
        return self.path / "lock"

    def lock_identity(self) -> str:
        """Return the identity of the file :attr:`lock`, which no copy of the folder has.

        As long as the file is open on this machine, no other file gets the identity. It is empty if there
        is no file, or no id of the machine's boot.
        """
        boot = Moment.now().boot
        with suppress(OSError):
            status = self.lock.stat()
            return f"{boot}:{status.st_dev}:{status.st_ino}" if boot else ""
        return ""

    @property
    def journal(self) -> Path:
        """The journal of the store ``sqlite``."""
        return self.path / "journal.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Flink's retained checkpoints, in directories named by the Flink id of each start."""
        return self.path / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Savepoints with which starts were stopped, in directories named by the number of each start."""
        return self.path / "savepoints"

    @property
    def outputs(self) -> Path:
        """Outputs that are collected into lists, for the whole job run."""
        return self.path / "outputs"

    def create(self) -> None:
        """Create the folder if it does not exist.

        Raises:
            OSError: It cannot be created, or written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        probe = self.path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()

    def place_aside(self) -> str | None:
        """Create a directory for the old data, with a copy of the record.

        Returns:
            Its path below the directory of the jobs; None if there is nothing to move.
        """
        if not any(path != self.lock for path in self.path.iterdir()):
            return None
        target = self._free_aside_path()
        target.mkdir(parents=True)
        if self.record.exists():
            shutil.copy2(self.record, target)
        return str(target.relative_to(self.state_dir))

    def set_aside(self, place: str) -> None:
        """Move everything except the lock and the record to a directory; repeat it after a crash.

        The lock stays: this process holds it.

        Args:
            place: The result of :meth:`place_aside`.
        """
        target = self.state_dir / place
        target.mkdir(parents=True, exist_ok=True)
        for path in self.path.iterdir():
            if path not in (self.lock, self.record):
                path.rename(target / path.name)
        sync_directory(self.path)

    def _free_aside_path(self) -> Path:
        home = self.state_dir / SET_ASIDE
        stem = f"{self.path.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        number = 1
        while (target := home / (stem if number == 1 else f"{stem}-{number}")).exists():
            number += 1
        return target


def unusable_directory_error(path: Path, error: OSError) -> JobFolderError:
    """Return the error about a directory that cannot be created, or written to."""
    return JobFolderError(
        f"the folder of the job cannot be used: {path}",
        found=str(error),
        fix="set local.state-dir to a directory that you may write to, on a disk with free space",
    )


def find_leftovers(folder: JobFolder) -> list[str]:
    """Return the names of data that a job run has left in its folder."""
    parts = (folder.progress, folder.journal, folder.checkpoints, folder.savepoints, folder.outputs)
    return [part.name for part in parts if part.exists()]


def record_gone(folder: JobFolder, remaining_names: list[str]) -> JobFolderError:
    """Return the error about a folder that has data, but no record of its job run."""
    return JobFolderError(
        f"the record of the job run is gone: {folder.record}",
        expected="the record, or an empty folder",
        found=", ".join(remaining_names),
        fix="restore the whole folder from a backup, or start over with --fresh, which moves it aside",
    )


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace a file atomically: a reader gets the old or the new text, also after a crash.

    Args:
        path: The file.
        text: The new content.
        durable: Wait until the new text survives a crash of the machine.
    """
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        sync_directory(path.parent)


VERSION = 1

CLOCKS_DIFFER = 60.0
"""Difference in seconds between two machines' clocks, or by a corrected clock, that is tolerated silently."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class BoundedInput:
    """A bounded input at the start of the job run.

    Attributes:
        length: Number of records.
        digest: Digest of the records.
    """

    length: int
    digest: str


@dataclass(frozen=True)
class Start:
    """One execution of the script, as part of a job run.

    Attributes:
        number: Its number in the job run, from 1.
        job_id: Flink's id of the job.
        began: Time of the start, as ISO 8601 in UTC.
        parallelism: The default parallelism of the job.
        pid: The process, for messages only: after a restart of a container, another process may have the same
            id.
        checkpoints: The directory of its checkpoints, if they are not in the folder.
        stopped: True if it was stopped with a savepoint, and ended.
        parent: The start from whose checkpoint it resumed; 0 if it did not.
        resumed: The number of that checkpoint.
        log: The file of its log.
        rest: Address of its REST interface.
        ended: Time of its end, as ISO 8601 in UTC; None if it runs, finished, or ended without a word.
        error: The error that ended it.
        lock: Identity of the lock that its process holds; empty once that process has released it.
    """

    number: int
    job_id: str
    began: str
    parallelism: int
    pid: int
    checkpoints: str | None = None
    stopped: bool = False
    parent: int = 0
    resumed: int = 0
    log: str | None = field(default=None, compare=False)
    rest: str | None = field(default=None, compare=False)
    ended: str | None = field(default=None, compare=False)
    error: str | None = field(default=None, compare=False)
    lock: str = field(default="", compare=False)


@dataclass(frozen=True)
class JobRun:
    """The record of a job run.

    Attributes:
        name: Name of the job.
        generation: Number of the job run of this name, from 1.
        identifier: The job identifier of the job run, from which ids and idempotency keys derive.
        script: The start of the script that the last start belongs to.
        program: The script's file (``policy.Program``); None if it is not a file.
        starts: All starts.
        checkpointed: True if a checkpoint of the job run was complete.
        plans: Fingerprint of each agent's plan, by its name.
        inputs: Bounded inputs, by name.
        outputs: Data of the collection of outputs into lists, by name.
        transaction_timeout: The shortest timeout of transactions of the job's sinks, in seconds.
        journal: True if the job has a journal in a file.
        origin: The savepoint of another job that the job run started from.
        aside: Directory for the data of the previous job run, if this one was started over.
        stopping: Directory of the savepoint with which the last start is being stopped.
        finished: Time at which the job finished, as ISO 8601 in UTC.
    """

    name: str
    generation: int = 1
    identifier: str = ""
    script: str = ""
    program: Mapping[str, str] | None = None
    starts: tuple[Start, ...] = ()
    checkpointed: bool = False
    plans: Mapping[str, str] = field(default_factory=dict[str, str])
    inputs: Mapping[str, BoundedInput] = field(default_factory=dict[str, BoundedInput])
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    transaction_timeout: float | None = None
    journal: bool = False
    origin: str | None = None
    aside: str | None = None
    stopping: str | None = None
    finished: str | None = None

    @property
    def last_start(self) -> Start | None:
        """The newest start."""
        return self.starts[-1] if self.starts else None

    def lineage(self) -> dict[int, int | None]:
        """Return the starts that led to the last one, and the last checkpoint of each; None means to the end.

        A start that a later one did not resume from, because its checkpoints were damaged, is not included.
        """
        starts = {start.number: start for start in self.starts}
        last_checkpoints: dict[int, int | None] = {}
        current = self.last_start
        until = None
        while current is not None and current.number not in last_checkpoints:
            last_checkpoints[current.number] = until
            until = current.resumed
            current = starts.get(current.parent)
        return last_checkpoints

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> JobRun:
        """Return the record in ``text``, without fields of newer versions.

        Raises:
            ValueError: It is not a record, or has a newer format.
        """
        loaded: Any = json.loads(text)
        if not isinstance(loaded, dict) or loaded.get("version") != VERSION:
            raise ValueError("not a record of a job run that this version reads")
        values = {key: value for key, value in cast("dict[str, Any]", loaded).items() if key in _FIELDS}
        try:
            values["starts"] = tuple(Start(**start_fields) for start_fields in values.get("starts", ()))
            values["inputs"] = {
                key: BoundedInput(**input_fields) for key, input_fields in values.get("inputs", {}).items()
            }
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


_FIELDS = frozenset(JobRun.__dataclass_fields__)


class RunRecord:
    """The record of a job run in its folder. Thread-safe; only the process that holds the lock writes it.

    Args:
        folder: The folder of the job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def read(self) -> JobRun | None:
        """Return the record; None if there was no start yet.

        Raises:
            JobFolderError: The file cannot be read.
        """
        path = self._folder.record
        try:
            return JobRun.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JobFolderError(
                f"the record of the job run cannot be read: {path}",
                expected=f"a record of the format {VERSION}",
                found=str(error),
                fix="if a newer version of the package wrote it, install that one; else restore the folder "
                "from a backup, or start over with --fresh, which moves the folder aside",
            ) from error

    def write(self, run: JobRun) -> JobRun:
        """Replace the record so that it survives a crash, and return it.

        Raises:
            JobFolderError: It cannot be written.
        """
        with self._lock:
            try:
                write_atomically(self._folder.record, run.to_json())
            except OSError as error:
                raise JobFolderError(
                    f"the record of the job run cannot be written: {self._folder.record}",
                    found=str(error),
                    fix="check the free space and the permissions of the folder",
                ) from error
        return run

    def update(self, change: Callable[[JobRun], JobRun]) -> JobRun:
        """Replace the record by the result of ``change``, and return it."""
        with self._lock:
            run = change(JobRun.from_json(self._folder.record.read_text(encoding="utf-8")))
            write_atomically(self._folder.record, run.to_json())
        return run

    def record_stop(self) -> JobRun:
        """Record that the last start has stopped with a savepoint, and return the record."""
        return self.set_start(stopped=True, ended=iso_now())

    def set_start(self, **values: Any) -> JobRun:
        """Replace fields of the last start, and return the record.

        Args:
            values: New values by the names of attributes of :class:`Start`.
        """
        return self.update(
            lambda run: replace(run, starts=(*run.starts[:-1], replace(run.starts[-1], **values)))
        )

    def set(self, **values: Any) -> JobRun:
        """Replace fields of the record, and return it.

        Args:
            values: New values by the names of attributes of :class:`JobRun`.
        """
        return self.update(lambda run: replace(run, **values))


def iso_now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Moment:
    """A moment that can be compared with others even if the clock was changed in between.

    Attributes:
        wall: Time of the clock, in seconds since 1970.
        boot: Id of the machine's boot; empty if the system has none, as macOS.
        running: Seconds since that boot, including those in which the machine slept.
    """

    wall: float
    boot: str = ""
    running: float = 0.0

    @classmethod
    def now(cls) -> Moment:
        """Return the present moment."""
        boot = ""
        running = 0.0
        with suppress(OSError, AttributeError):
            boot = _BOOT_ID.read_text().strip()
            running = time.clock_gettime(time.CLOCK_BOOTTIME)
        return cls(time.time(), boot, running)

    def seconds_until(self, later: Moment) -> float | None:
        """Return the seconds between two moments; None if unknown.

        If the machine was rebooted in between, or is another one, only the clocks can be compared. The result
        is None if the later clock is behind.
        """
        if self.boot and self.boot == later.boot:
            return later.running - self.running
        passed = later.wall - self.wall
        return None if passed < -CLOCKS_DIFFER else max(passed, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the moment as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Moment:
        """Return the moment that :meth:`to_json` returned."""
        return cls(float(values["wall"]), str(values["boot"]), float(values["running"]))
