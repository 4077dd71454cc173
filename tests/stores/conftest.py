"""Explains failed assertions of the suite like those of a test; has the paths of store files."""

from __future__ import annotations

from pathlib import Path

import pytest

for name in ("base", "content", "forgetting", "lifecycle", "ownership", "pruning"):
    pytest.register_assert_rewrite(f"flink_agents.testing.store_conformance.{name}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a store."""
    return tmp_path / "store.db"
