"""Runs a command when the process of a ``with`` block was killed: a small process that waits.

It reads from a pipe that the process of the block holds open. If the pipe ends without a byte, that
process has ended.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_DONE = b"."


class ProcessGuard:
    """A small process that runs a command if this process ends without :meth:`end_guard`.

    Args:
        command: The command and its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for this process.
            start_new_session=True,
        )

    def end_guard(self) -> None:
        """End the guard; the command does not run."""
        self._process.communicate(_DONE)


if __name__ == "__main__":
    # Executed as a file, which imports nothing of the package: waiting costs little memory.
    if not sys.stdin.buffer.read():
        subprocess.run(sys.argv[1:], check=False)
