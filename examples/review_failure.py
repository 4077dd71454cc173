"""The failure of ``review_analysis.py --fail``: one exception, and a note of where the job went on.

A restarted job begins with new objects, so what has to outlive the failure is kept in files.
"""

from __future__ import annotations

from pathlib import Path
from time import sleep

from review_data import Review

RUN_SECONDS = 6.0
"""How long the source takes at least, so that checkpoints complete on the way."""


class InjectedFailureError(Exception):
    """The failure that ``--fail`` asks for."""


class FailOnce:
    """Hands the snippets on, and fails once: in the middle, when there is a checkpoint to go back to.

    Args:
        total: Number of snippets.
        checkpoints: Where Flink writes its checkpoints.
        directory: For the notes of this class.
    """

    def __init__(self, total: int, checkpoints: Path, directory: Path) -> None:
        self.total = total
        self.checkpoints = checkpoints
        self.failed_at = directory / "failed_at"
        self.resumed_at = directory / "resumed_at"

    def hand_on(self, review: Review) -> Review:
        """Hand ``review`` on, or fail."""
        sleep(RUN_SECONDS / self.total)
        if not self.failed_at.exists():
            if review.number > self.total // 2 and self.checkpoint_completed():
                self.failed_at.write_text(str(review.number))
                print(f"  --fail: failing now, at snippet {review.number:,}", flush=True)
                raise InjectedFailureError(f"--fail: failing once, at snippet {review.number}")
        elif not self.resumed_at.exists():
            self.resumed_at.write_text(str(review.number))
            print(f"  restarted: going on at snippet {review.number:,}", flush=True)
        return review

    def checkpoint_completed(self) -> bool:
        """Whether there is a complete checkpoint: Flink writes this file of it last."""
        return any(self.checkpoints.glob("*/chk-*/_metadata"))

    def describe(self) -> str:
        """What came of it, after the job."""
        if not self.failed_at.exists():
            return "The job did NOT fail: it ended before a checkpoint was complete."
        how = "was restored from its checkpoint" if self.restored() else "began ANEW"
        failed_at, resumed_at = (int(note.read_text()) for note in (self.failed_at, self.resumed_at))
        return f"The job failed at snippet {failed_at:,} and {how}, at snippet {resumed_at:,}."

    def restored(self) -> bool:
        """Whether the job failed and did not begin at the first snippet again."""
        return self.resumed_at.exists() and int(self.resumed_at.read_text()) > 1
