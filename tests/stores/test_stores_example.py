"""The store of ``examples/file_store.py`` keeps the promises of every store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.testing.store_conformance import ActionStateStoreSuite

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestFileStore(ActionStateStoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
        monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        from file_store import FileStore  # pyright: ignore[reportMissingImports]

        (tmp_path / "store").mkdir()
        return lambda: FileStore(tmp_path / "store" / "records")

    @pytest.fixture
    def store_files(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    async def kill(self, store: Any) -> None:
        # The system does this for a process that is gone.
        store.lease.close()
        store.lease = None
