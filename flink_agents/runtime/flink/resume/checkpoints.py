"""The checkpoints of a job run: finds the one that a start resumes from, and follows those of a start.

With each, a thread notes the journal's position, and when the start was alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flink_agents.api.errors.resume import JobFolderError
from flink_agents.runtime.flink.resume.checks import SeenJournal, read_position
from flink_agents.runtime.flink.resume.java import CheckpointContent
from flink_agents.runtime.flink.resume.job_run import JobFolder, JobRun, Moment, Start, write_atomically

METADATA = "_metadata"
"""Flink writes this file last, so a checkpoint with it is complete."""

_DIRECTORY = re.compile(r"chk-(\d+)")


@dataclass(frozen=True)
class Candidate:
    """A complete checkpoint or savepoint.

    Attributes:
        path: Its directory.
        start: The number of the start that took it; 0 if another job took it.
        number: Its number, if the directory's name has it; savepoints are the newest of their start.
        savepoint: True if it is a savepoint.
    """

    path: Path
    start: int
    number: float
    savepoint: bool = False

    @property
    def completed_at(self) -> datetime:
        """The time of its completion, in local time."""
        return datetime.fromtimestamp((self.path / METADATA).stat().st_mtime)


@dataclass(frozen=True)
class Chosen:
    """The checkpoint to resume from.

    Attributes:
        candidate: The checkpoint or savepoint.
        content: Its metadata.
        damaged: Newer damaged ones, each with the reason, newest first.
    """

    candidate: Candidate
    content: CheckpointContent
    damaged: tuple[tuple[Candidate, str], ...] = ()

    @property
    def title(self) -> str:
        """Its name in the console."""
        kind = "savepoint" if self.candidate.savepoint else "checkpoint"
        created_at = self.candidate.completed_at
        when = (
            f"{created_at:%H:%M:%S}"
            if created_at.date() == datetime.now().date()
            else f"{created_at:%Y-%m-%d %H:%M:%S}"
        )
        return f"{kind} {self.content.number} of {when}"


def directory_of(folder: JobFolder, start: Start) -> Path:
    """Return the directory in which Flink stores the checkpoints of a start."""
    home = folder.checkpoints if start.checkpoints is None else Path(start.checkpoints)
    return home / start.job_id


def find_numbered(directory: Path) -> dict[int, Path]:
    """Return the checkpoints below ``directory``, complete or not, by their numbers."""
    matches = {path: _DIRECTORY.fullmatch(path.name) for path in directory.glob("chk-*")}
    return {int(match[1]): path for path, match in matches.items() if match is not None}


def find_complete(directory: Path) -> dict[int, Path]:
    """Return the complete checkpoints below ``directory``, by their numbers."""
    return {number: path for number, path in find_numbered(directory).items() if (path / METADATA).is_file()}


def find_candidates(folder: JobFolder, run: JobRun) -> list[Candidate]:
    """Return the checkpoints and savepoints of a job run, newest first: by start and number, not by time."""
    all_candidates = [] if run.origin is None else [origin_of(run.origin)]
    for start in run.starts:
        for number, path in find_complete(directory_of(folder, start)).items():
            all_candidates.append(Candidate(path, start.number, number))
        for path in (folder.savepoints / str(start.number)).glob(f"*/{METADATA}"):
            all_candidates.append(Candidate(path.parent, start.number, float("inf"), savepoint=True))
    return sorted(all_candidates, key=lambda candidate: (candidate.start, candidate.number), reverse=True)


def origin_of(place: str) -> Candidate:
    """Return the savepoint of another job that a job run starts from, for a path or a URL of Flink."""
    return Candidate(Path(os.path.abspath(re.sub("^file:(//)?", "", place))), 0, float("inf"), savepoint=True)


def digest_of(directory: Path) -> str:
    """Return a checksum of all files of a checkpoint: it detects damage that sizes do not show."""
    checksum = 0
    for path in sorted(directory.iterdir()):
        checksum = zlib.crc32(path.name.encode(), checksum)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def key_of(directory: Path) -> str:
    """Return the name of a checkpoint's checksum, which does not depend on the place of its folder."""
    return f"{directory.parent.name}/{directory.name}"


def choose_checkpoint(
    checkpoint_candidates: list[Candidate],
    read: Callable[[Path], CheckpointContent],
    digests: Mapping[str, str],
) -> tuple[Chosen | None, list[str]]:
    """Return the newest undamaged checkpoint, or None, and a line about each damaged newer one.

    Args:
        checkpoint_candidates: The candidates, newest first.
        read: Returns the metadata of a checkpoint.
        digests: Recorded checksums by :func:`key_of`. A checkpoint without one counts as undamaged.
    """
    damaged: list[tuple[Candidate, str]] = []
    for candidate in checkpoint_candidates:
        try:
            content = read(candidate.path)
            problem = _content_problem(content) or _digest_problem(candidate, digests)
        except (ValueError, OSError) as error:
            content = None
            problem = f"its metadata cannot be read: {error}"
        if content is not None and problem is None:
            return Chosen(candidate, content, tuple(damaged)), [
                _describe_damaged(damage) for damage in damaged
            ]
        damaged.append((candidate, problem or ""))
    return None, [_describe_damaged(damage) for damage in damaged]


def _content_problem(content: CheckpointContent) -> str | None:
    """Return the first file that is missing or too short, with what is wrong; None if all are there."""
    for file in content.files:
        try:
            size = file.path.stat().st_size
        except OSError:
            return f"{file.path.name} is missing"
        if size < file.size:
            return f"{file.path.name} has {size} of {file.size} bytes"
    return None


def _digest_problem(candidate: Candidate, digests: Mapping[str, str]) -> str | None:
    wanted = digests.get(key_of(candidate.path))
    return None if wanted in (None, digest_of(candidate.path)) else "its content has changed"


def _describe_damaged(damaged: tuple[Candidate, str]) -> str:
    candidate, problem = damaged
    return f"{candidate.path.parent.name}/{candidate.path.name}: {problem}"


LOOK_SECONDS = 0.1
"""The interval at which the directory of the checkpoints is read."""

_DIGESTS = 10
"""Number of checkpoints whose checksums and times are kept: more than Flink retains over two starts."""

ALIVE_SECONDS = 5.0
"""Maximum age of the time in the file if nothing else has changed."""


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job run, according to its last start.

    Attributes:
        start: The number of the start.
        checkpoint: Number of the newest complete checkpoint of that start; None if there was none.
        alive: A time at which the process was alive, in seconds since 1970.
        journal: The journal.
        digests: Checksums of existing checkpoints.
        open_since: Time since which the outputs of a checkpoint may be in an open transaction.
    """

    start: int
    checkpoint: int | None = None
    alive: float = 0.0
    journal: SeenJournal | None = None
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    open_since: Mapping[str, Moment] = field(default_factory=dict[str, Moment])

    def to_json(self) -> str:
        """Return the content of the file."""
        journal = None if self.journal is None else self.journal.to_json()
        values = {
            "start": self.start,
            "checkpoint": self.checkpoint,
            "alive": self.alive,
            "journal": journal,
            "digests": dict(self.digests),
            "open_since": {key: moment.to_json() for key, moment in self.open_since.items()},
        }
        return json.dumps(values) + "\n"


def read_progress(folder: JobFolder) -> JobProgress | None:
    """Return the progress of the job run; None if there is no file.

    Raises:
        JobFolderError: The file cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(folder.progress.read_text(encoding="utf-8"))
        journal = None if content["journal"] is None else SeenJournal.from_json(content["journal"])
        open_since = {key: Moment.from_json(moment) for key, moment in content.get("open_since", {}).items()}
        return JobProgress(
            content["start"],
            content["checkpoint"],
            float(content["alive"]),
            journal,
            dict(content.get("digests", {})),
            open_since,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_progress_error(folder, f"{type(error).__name__}: {error}") from error


def unreadable_progress_error(folder: JobFolder, found: str) -> JobFolderError:
    """Return the error about a folder whose progress file is unreadable."""
    return JobFolderError(
        f"the progress of the job run is unknown: {folder.progress}",
        expected="the newest checkpoint, and the position of the journal",
        found=found,
        fix="restore the whole folder from a backup, or start over with --fresh, which moves it aside",
    )


class Watcher:
    """Writes the progress of a start in a separate thread.

    Args:
        folder: The folder of the job.
        start: The number of the start.
        checkpoints: Directory of this start's checkpoints.
        journal: The file of the journal; None for another store.
        first_checkpoint: Called once, when the first checkpoint of this start is complete.
        previous_progress: The progress of the previous start.
    """

    def __init__(
        self,
        folder: JobFolder,
        start: int,
        checkpoints: Path,
        journal: Path | None,
        first_checkpoint: Callable[[], None],
        previous_progress: JobProgress | None,
    ) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._journal = journal
        self._first = first_checkpoint
        self._written = JobProgress(start)
        if previous_progress is not None:
            self._written = replace(previous_progress, start=start, checkpoint=None, alive=0.0)
        # A transaction is open since the trigger of the checkpoint before the one that commits it.
        self._began = Moment.now()
        self._triggered: dict[int, Moment] = {}
        self._first_called = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch_until_end, name="local-job-progress", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Check a last time, and end the thread."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def has_checkpoint(self) -> bool:
        """Return True if a checkpoint of this start is complete."""
        return bool(find_complete(self._checkpoints))

    def _watch_until_end(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(LOOK_SECONDS)
            # A full disk must not end the thread: the next check may succeed.
            with contextlib.suppress(OSError):
                self._check_folder(ended)

    def _note_triggers(self) -> None:
        """Record the starts of checkpoints: Flink creates their directories then."""
        numbers = find_numbered(self._checkpoints)
        self._triggered = {number: self._triggered.get(number) or Moment.now() for number in numbers}

    def _check_folder(self, ended: bool) -> None:
        """Write the progress if it has changed, if the written one is old, or if the job has ended."""
        written = self._written
        self._note_triggers()
        complete = find_complete(self._checkpoints)
        newest = max(complete, default=written.checkpoint)
        is_new = newest != written.checkpoint
        now = time.time()
        journal = self._see_journal(must_read=is_new or ended or now - written.alive >= 1.0)
        is_old = now - written.alive >= ALIVE_SECONDS
        if not (is_new or ended or is_old or journal != written.journal):
            return
        progress = replace(written, checkpoint=newest, alive=now, journal=journal)
        if is_new and newest is not None:
            progress = self._add_checkpoint(progress, complete[newest])
        # Without it the next start fails, so it has to survive a crash of the machine.
        write_atomically(self._folder.progress, progress.to_json())
        self._written = progress
        if newest is not None and not self._first_called:
            self._first()
            self._first_called = True

    def _see_journal(self, must_read: bool) -> SeenJournal | None:
        """Return the journal with its position: the present one if it must be read, else the written one."""
        if self._journal is not None and must_read:
            position = read_position(self._journal)
            if position is not None:
                return SeenJournal(str(self._journal), position)
        return self._written.journal

    def _add_checkpoint(self, progress: JobProgress, path: Path) -> JobProgress:
        """Return the progress with the checksum of a new checkpoint, and the time of its transactions."""
        # Several may have completed since the last check; then the time of the oldest counts.
        last = -1 if self._written.checkpoint is None else self._written.checkpoint
        open_since = {**progress.open_since, key_of(path): self._triggered.get(last, self._began)}
        digests = dict(progress.digests)
        with contextlib.suppress(OSError):
            digests[key_of(path)] = digest_of(path)
        return replace(progress, digests=_latest_entries(digests), open_since=_latest_entries(open_since))


def _latest_entries(by_checkpoint: dict[str, Any]) -> dict[str, Any]:
    return dict(list(by_checkpoint.items())[-_DIGESTS:])


def remove_paths(paths: list[Path]) -> None:
    """Remove files and directories that are no longer needed; ignore those that cannot be removed."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
