"""A lock of a process on a directory, for databases that only one process may open."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from flink_agents.api.errors import VectorStoreInUseError

_NAME = ".flink-agents.lock"
_held: dict[Path, ProcessLock] = {}
"""The locks that this process has, by directory."""
# Cyclic garbage collection may release a lock in a thread that is acquiring another one.
_guard = threading.RLock()


class ProcessLock:
    """The lock on one directory; all users in a process share it. Created by :meth:`acquire`.

    Args:
        directory: The directory, which is created if it is missing.
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
                fix="start a server with 'chroma run --path ...', and set its host and port instead",
            ) from error

    @classmethod
    def acquire(cls, path: str) -> ProcessLock:
        """Return the lock on a directory, for one more user in this process.

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
        """Release the lock for one user; the last user frees the directory."""
        with _guard:
            self._users -= 1
            if self._users == 0:
                del _held[self._directory]
                os.close(self._file)
