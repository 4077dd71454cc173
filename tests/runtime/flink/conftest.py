"""Modules on disk that change while a test runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from digested_disk import Disk

from flink_agents.runtime.flink.shipping import code_digest


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(code_digest, "_accepted", {})
    # A file that is written twice in a second has bytecode that looks new and is old.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    previous_modules = set(sys.modules)
    yield Disk(tmp_path, monkeypatch)
    for name in set(sys.modules) - previous_modules:
        del sys.modules[name]
