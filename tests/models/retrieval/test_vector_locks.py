"""The lock that a process has on the directory of a database."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flink_agents.models.retrieval.process_lock import ProcessLock


def test_a_lock_that_is_collected_while_another_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector of cycles works wherever objects are made: here, where the second directory is made."""
    first = ProcessLock.acquire(str(tmp_path / "first"))
    make = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.name == "second":
            first.release()
        make(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    locks: list[ProcessLock] = []
    thread = threading.Thread(
        target=lambda: locks.append(ProcessLock.acquire(str(tmp_path / "second"))), daemon=True
    )
    thread.start()
    thread.join(60)
    assert len(locks) == 1
    locks[0].release()
    again = ProcessLock.acquire(str(tmp_path / "first"))
    assert again is not first
    again.release()
