"""Timestamps by which inputs are known again: those of timers that end an input are none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from durable_tools import EFFECTS, effect, forget, one_action

from flink_agents import OutputEvent
from flink_agents.runtime.operator.services.service import DRAIN, START
from flink_agents.testing import OperatorHarness

NONE = [None, START, DRAIN, START + 2**43, 2**63 - 1]
"""What an output of an agent may carry that was given no timestamp."""


def act(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=(ctx.durable_execute(effect, event.input), ctx.timestamp))


@pytest.mark.parametrize(("first", "again"), [*itertools.product(NONE, NONE)])
def test_an_input_that_came_at_the_end_of_another_one_is_known_again(
    first: int | None, again: int | None
) -> None:
    """The agent before this one commits at the end of its input, or earlier, as it happens."""
    forget()
    with OperatorHarness(one_action(act)) as harness:
        snapshot = harness.snapshot()
        outputs = [harness.push("order", first), harness.push("other", first)]
        harness.restore(snapshot)
        assert [harness.push("order", again), harness.push("other", again)] == outputs
        assert harness.outputs == [("order", None), ("other", None)]
    assert EFFECTS == ["order", "other"]


@pytest.mark.parametrize("timestamp", [0, 1_700_000_000_000, START - 1])
def test_other_timestamps_stay(timestamp: int) -> None:
    forget()
    with OperatorHarness(one_action(act)) as harness:
        assert harness.push("order", timestamp) == [("order", timestamp)]
