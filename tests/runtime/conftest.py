"""Fixtures that several modules use: reports during a test, and a worker process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from renewal_tools import Process, process_of_a_test
from watch_tools import Reports, until, watchers


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[Reports]:
    """Gives what was logged, as soon as it is so much."""
    caplog.set_level(logging.INFO, logger="flink_agents.watch")
    before = watchers()

    def wait(count: int, level: int = logging.WARNING) -> list[str]:
        def found() -> list[str]:
            records = [one for one in list(caplog.records) if one.name == "flink_agents.watch"]
            return [one.getMessage() for one in records if one.levelno == level]

        until(lambda: len(found()) >= count)
        return found()

    yield wait
    assert not watchers() - before


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A worker process to which jobs come."""
    with process_of_a_test(tmp_path, monkeypatch) as made:
        yield made
