"""What was reported while a test goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
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
