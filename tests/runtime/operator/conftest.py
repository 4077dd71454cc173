"""Harnesses of agents that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from delayed_agents import calls
from hold_tools import CLOSED, HOLD, Caller

from flink_agents.testing import OperatorHarness


@pytest.fixture
def hold_harness(agent_harness: Callable[..., OperatorHarness]) -> Iterator[Callable[..., OperatorHarness]]:
    """Makes a harness of ``hold_tools.Caller``, all of whose calls may return."""

    def with_hold(**options: Any) -> OperatorHarness:
        options = {"event_time": HOLD, "auto_run": False, **options}
        return agent_harness(Caller, lambda record: record[0], **options)

    CLOSED.clear()
    yield with_hold
    CLOSED.clear()


@pytest.fixture
def make(agent_harness: Callable[..., OperatorHarness]) -> Callable[..., OperatorHarness]:
    """Makes a harness; no call was made before."""
    calls.clear()
    return agent_harness
