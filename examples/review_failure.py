"""A failure in the middle of ``review_analysis.py --fail``, exactly once, and what came of it.

The job is one, but its processes do not share memory, and a restart begins with fresh objects:
what has to outlive the failure is written into files of one directory.
"""

from __future__ import annotations

from pathlib import Path

from review_agents import ReviewAnalysisAgent, ReviewScored

from flink_agents import RunnerContext, action


class InjectedFailureError(Exception):
    """The failure that ``--fail`` asks for."""


class FailureLog:
    """When the failure came and where the job went on.

    Args:
        directory: Below it, ``checkpoints`` is where Flink writes its checkpoints.
    """

    def __init__(self, directory: str) -> None:
        self.checkpoints = Path(directory) / "checkpoints"
        self._failed = Path(directory) / "failed"
        self._resumed = Path(directory) / "resumed"

    @property
    def failed_at(self) -> int | None:
        """Number of the snippet at which the job failed, or None."""
        return _read_number(self._failed)

    @property
    def resumed_at(self) -> int | None:
        """Number of the first snippet that was read after the restart, or None."""
        return _read_number(self._resumed)

    def checkpoint_completed(self) -> bool:
        """Whether the job has a checkpoint to go back to; this file is the last of each."""
        return any(self.checkpoints.glob("*/chk-*/_metadata"))

    def note_failure(self, number: int) -> bool:
        """Write down the failure; False where another subtask was first."""
        return _write_once(self._failed, number)

    def note_resumption(self, number: int) -> bool:
        """Write down where the job went on; False where another subtask was first."""
        return _write_once(self._resumed, number)


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
        directory: Of the :class:`FailureLog`.
        earliest: Number of the first snippet that may fail.
    """

    agent_name = "ReviewAnalysisAgent"

    def __init__(self, directory: str, earliest: int) -> None:
        super().__init__()
        self._log = FailureLog(directory)
        self._earliest = earliest
        self._restarted = self._log.failed_at is not None

    @action(ReviewScored)
    def fail_once(self, event: ReviewScored, ctx: RunnerContext) -> None:
        number = event.review.number
        if self._restarted:
            self._log.note_resumption(number)
        elif number >= self._earliest and self._log.checkpoint_completed() and self._log.note_failure(number):
            raise InjectedFailureError(f"--fail: failing once, at snippet {number}")
