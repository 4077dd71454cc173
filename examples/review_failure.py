"""The failures of ``review_analysis.py``: ``--fail`` raises an exception, ``--kill`` kills its processes.

A restarted job begins with new objects, so values that have to survive the failure are in files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
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


class HoldOnce:
    """Hands the snippets on, and holds the job in the middle, once, until somebody kills it.

    Args:
        total: Number of snippets.
        directory: For the job's data and the notes of this class.
    """

    def __init__(self, total: int, directory: Path) -> None:
        self.total = total
        self.directory = directory
        self.held_at = directory / "held_at"

    def hand_on(self, review: Review) -> Review:
        """Hand ``review`` on, or hold it if there is a checkpoint to resume from."""
        sleep(RUN_SECONDS / self.total)
        if review.number > self.total // 2 and not self.held_at.exists() and self.checkpoint_completed():
            self.held_at.write_text(str(review.number))
            while True:
                sleep(1)
        return review

    def checkpoint_completed(self) -> bool:
        """Return True if there is a complete checkpoint."""
        return any(self.directory.glob("jobs/*/checkpoints/*/chk-*/_metadata"))


def run_and_kill(command: Sequence[str], directory: Path) -> int:
    """Start a script, kill it in the middle, start it again, and return the exit code of the second start.

    Args:
        command: The script and its arguments.
        directory: Where :class:`HoldOnce` leaves its notes.
    """
    held_at = directory / "held_at"
    first = subprocess.Popen([sys.executable, *command], start_new_session=True)
    while first.poll() is None and not held_at.exists():
        sleep(0.1)
    if first.poll() is not None:
        print("The job ended before it could be killed.", file=sys.stderr)
        return first.returncode or 1
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    print(
        f"\n  --kill: killed at snippet {int(held_at.read_text()):,}, with kill -9; starting it again\n",
        flush=True,
    )
    return subprocess.run([sys.executable, *command], check=False).returncode
