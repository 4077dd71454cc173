"""Failed assertions of the suite are explained as those of a test; where files of stores are."""

from __future__ import annotations

from pathlib import Path

import pytest

for name in ("base", "content", "forgetting", "lifecycle", "ownership", "pruning"):
    pytest.register_assert_rewrite(f"flink_agents.testing.store_conformance.{name}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a store."""
    return tmp_path / "store.db"
