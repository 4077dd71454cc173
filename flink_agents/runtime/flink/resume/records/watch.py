"""Follows a start: its complete checkpoints, the journal's position, and when it was alive."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flink_agents.api.errors.resume import JobFolderError
from flink_agents.runtime.flink.resume.records.checkpoints import (
    digest_of,
    find_complete,
    find_numbered,
    key_of,
)
from flink_agents.runtime.flink.resume.records.folder import JobFolder, write_atomically
from flink_agents.runtime.flink.resume.records.job_run import Moment
from flink_agents.runtime.flink.resume.records.journal_check import SeenJournal, read_position

LOOK_SECONDS = 0.1
_DIGESTS = 10
"""Number of checkpoints whose checksums are kept: more than Flink retains over two starts."""

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
        previous_progress = self._written
        self._note_triggers()
        numbers = find_complete(self._checkpoints)
        newest = max(numbers, default=previous_progress.checkpoint)
        new = newest != previous_progress.checkpoint
        journal = previous_progress.journal
        if self._journal is not None and (new or ended or time.time() - previous_progress.alive >= 1.0):
            position = read_position(self._journal)
            if position is not None:
                journal = SeenJournal(str(self._journal), position)
        now = time.time()
        if not (
            new
            or ended
            or journal != previous_progress.journal
            or now - previous_progress.alive >= ALIVE_SECONDS
        ):
            return
        digests = dict(previous_progress.digests)
        open_since = dict(previous_progress.open_since)
        if new and newest in numbers:
            # Several may have completed since the last check; then the time of the oldest counts.
            last = -1 if previous_progress.checkpoint is None else previous_progress.checkpoint
            open_since[key_of(numbers[newest])] = self._triggered.get(last, self._began)
            with contextlib.suppress(OSError):
                digests[key_of(numbers[newest])] = digest_of(numbers[newest])
        current = JobProgress(
            previous_progress.start,
            newest,
            now,
            journal,
            _latest_digests(digests),
            _latest_digests(open_since),
        )
        # Without it the next start fails, so it has to survive a crash of the machine.
        write_atomically(self._folder.progress, current.to_json())
        self._written = current
        if newest is not None and not self._first_called:
            self._first()
            self._first_called = True


def _latest_digests(by_checkpoint: dict[str, Any]) -> dict[str, Any]:
    return dict(list(by_checkpoint.items())[-_DIGESTS:])


def remove_paths(paths: list[Path]) -> None:
    """Remove files and directories that are no longer needed; ignore those that cannot be removed."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
