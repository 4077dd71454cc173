"""A failure in the middle of ``review_analysis.py --fail``, exactly once, and what came of it.

The job is one, but its processes do not share memory, and a restart begins with fresh objects:
what has to outlive the failure is written into files of one directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from review_agents import ReviewAnalysisAgent, ReviewScored

from flink_agents import RunnerContext, action


class InjectedFailureError(Exception):
    """The failure that ``--fail`` asks for."""


@dataclass(frozen=True)
class Failure:
    """What the failure did to the job.

    Attributes:
        failed_at: Number of the snippet at which the job failed, or None.
        resumed_at: Number of the first snippet that was read after the restart, or None.
    """

    failed_at: int | None
    resumed_at: int | None

    @property
    def restored(self) -> bool:
        """Whether the job failed and went on from a checkpoint."""
        return self.failed_at is not None and self.resumed_at is not None and self.resumed_at > 1

    def describe(self) -> str:
        """The failure in one sentence."""
        if self.failed_at is None:
            return "The job did NOT fail: it ended before a checkpoint was complete."
        if self.resumed_at is None:
            return f"The job failed at snippet {self.failed_at:,}; no snippet came after that."
        begun = "was restored from its checkpoint" if self.restored else "began ANEW"
        return f"The job failed at snippet {self.failed_at:,} and {begun}, at snippet {self.resumed_at:,}."


class FailureLog:
    """Writes down when the failure came and where the job went on.

    Args:
        directory: Of the job.
    """

    def __init__(self, directory: Path) -> None:
        self._checkpoints = checkpoint_directory(directory)
        self._failed = directory / "failed"
        self._resumed = directory / "resumed"

    def read(self) -> Failure:
        """What was written down."""
        return Failure(failed_at=_read_number(self._failed), resumed_at=_read_number(self._resumed))

    def checkpoint_completed(self) -> bool:
        """Whether there is a checkpoint to go back to; this file is the last of each."""
        return any(self._checkpoints.glob("*/chk-*/_metadata"))

    def note_failure(self, number: int) -> bool:
        """Write down the failure; False where another subtask was first."""
        return _write_once(self._failed, number)

    def note_resumption(self, number: int) -> bool:
        """Write down where the job went on; False where another subtask was first."""
        return _write_once(self._resumed, number)


def checkpoint_directory(directory: Path) -> Path:
    """Where the job with this directory keeps its checkpoints."""
    return directory / "checkpoints"


def _read_number(file: Path) -> int | None:
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


def _write_once(file: Path, number: int) -> bool:
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(str(number))
    except FileExistsError:
        return False
    return True


class FailingReviewAnalysisAgent(ReviewAnalysisAgent):
    """The analysis with one more action, which fails once.

    Args:
        directory: Of the job.
        earliest: Number of the first snippet that may fail.
    """

    agent_name = "ReviewAnalysisAgent"

    def __init__(self, directory: str, earliest: int) -> None:
        super().__init__()
        self._log = FailureLog(Path(directory))
        self._earliest = earliest
        self._restarted = self._log.read().failed_at is not None

    @action(ReviewScored)
    def fail_once(self, event: ReviewScored, ctx: RunnerContext) -> None:
        number = event.review.number
        if self._restarted:
            if self._log.note_resumption(number):
                print(f"  restarted: going on at snippet {number:,}", flush=True)
        elif number >= self._earliest and self._log.checkpoint_completed() and self._log.note_failure(number):
            print(f"  --fail: failing now, at snippet {number:,}", flush=True)
            raise InjectedFailureError(f"--fail: failing once, at snippet {number}")
