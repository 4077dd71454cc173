"""Stops a broker when the process of its ``with`` block was killed: a small process that waits.

It reads from a pipe that the process of the block holds open. If the pipe ends without a byte, that
process has ended.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_DONE = b"."


class Guard:
    """Watches this process for the broker of a directory, until ``release``."""

    def __init__(self, data: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for this process.
            start_new_session=True,
        )

    def release(self) -> None:
        """End the guard without stopping the broker."""
        self._process.communicate(_DONE)


def main(data: str) -> None:
    """Wait for the end of the pipe, and kill the broker if no byte came before."""
    if sys.stdin.buffer.read():
        return
    # Imported this late, so that waiting costs little memory.
    from flink_agents.testing.kafka.broker import KafkaBroker

    broker = KafkaBroker(data)
    if broker.running:
        broker.kill()


if __name__ == "__main__":
    # Executed as a file, which imports nothing else while it waits. Python put its directory first.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    main(sys.argv[1])
