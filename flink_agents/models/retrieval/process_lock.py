"""A lock that a process has on a directory, for databases that one process alone may open."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from flink_agents.api.errors import VectorStoreInUseError

_NAME = ".flink-agents.lock"
_held: dict[Path, ProcessLock] = {}
# The collector of cycles may release a lock in a thread that is just taking another one.
_guard = threading.RLock()


class ProcessLock:
    """The lock on one directory; all of a process share it. Made by :meth:`of`.

    Args:
        directory: The directory, which is made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._users = 0
        self._file = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise VectorStoreInUseError(
                f"the embedded Chroma database {directory} is used by several processes; it serves one",
                expected="one process that opens it",
                found="another process that has it open",
                fix="start a server by 'chroma run --path ...', and give its host and port instead",
            ) from error

    @classmethod
    def of(cls, path: str) -> ProcessLock:
        """The lock on a directory, for one more user in this process.

        Raises:
            VectorStoreInUseError: Another process has it.
        """
        directory = Path(path).absolute()
        with _guard:
            lock = _held.get(directory)
            if lock is None:
                lock = _held[directory] = cls(directory)
            lock._users += 1
            return lock

    def release(self) -> None:
        """Say that one user has ended; the last one gives the lock back."""
        with _guard:
            self._users -= 1
            if self._users == 0:
                del _held[self._directory]
                os.close(self._file)
