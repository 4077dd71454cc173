"""Harnesses with both ways of the operator's timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from delayed_agents import calls
from hold_tools import CLOSED, HOLD, Caller

from flink_agents.testing import OperatorHarness


@pytest.fixture(params=[True, False], ids=["heartbeat", "timers"])
def hold_harness(
    agent_harness: Callable[..., OperatorHarness], request: pytest.FixtureRequest
) -> Iterator[Callable[..., OperatorHarness]]:
    """Makes a harness of ``hold_tools.Caller``, all of whose calls may return."""

    def with_hold(**options: Any) -> OperatorHarness:
        options = {"event_time": HOLD, "auto_run": False, "heartbeat": request.param, **options}
        return agent_harness(Caller, lambda record: record[0], **options)

    CLOSED.clear()
    yield with_hold
    CLOSED.clear()


@pytest.fixture(params=[True, False], ids=["heartbeat", "timers"])
def make(
    agent_harness: Callable[..., OperatorHarness], request: pytest.FixtureRequest
) -> Callable[..., OperatorHarness]:
    """Makes a harness by either kind of the operator's timers; no call was made before."""
    calls.clear()
    return lambda *args, **options: agent_harness(*args, **{"heartbeat": request.param, **options})
