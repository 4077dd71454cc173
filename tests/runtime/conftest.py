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
    previous_watchers = watchers()

    def wait(count: int, level: int = logging.WARNING) -> list[str]:
        def read_messages() -> list[str]:
            records = [record for record in list(caplog.records) if record.name == "flink_agents.watch"]
            return [record.getMessage() for record in records if record.levelno == level]

        until(lambda: len(read_messages()) >= count)
        return read_messages()

    yield wait
    assert not watchers() - previous_watchers


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A worker process to which jobs come."""
    with process_of_a_test(tmp_path, monkeypatch) as worker:
        yield worker
