"""A harness that holds event time, with both ways of the operator's timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
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
