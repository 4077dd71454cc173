"""Stray signals leave as they came, with their keys, and those that state could not give back are strays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from core_values import Colour

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

KEYS = ["plain", ("part", 7, None), Colour.RED, b"\xff", "\ud800", 1.0, None]


class Listens(Agent):
    """Puts out the number that a signal says, if one comes."""

    @action(InputEvent)
    async def listen(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.wait_for_signal("said", int))


class Asks(Agent):
    """Asks for what its input says."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        outcome = await ctx.request_approval(event.input)
        return OutputEvent(output=str(outcome.decision))


def first(record: Any) -> Any:
    return record[0]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_each_stray_has_the_key_of_its_signal(agent_harness: Make, key: Any) -> None:
    """Whoever reads the strays can send them once more."""
    harness = agent_harness(Listens, first, config={"signals.ttl": "10 s", "signals.max-per-key": 2})
    harness.signal(key, "other", 1)
    harness.signal(key, "other", 2)
    harness.signal(key, "other", 3)
    harness.advance_time(10_000)
    harness.push((key,))
    [wait] = harness.waits(key)
    harness.signal(key, "said", "no number")
    harness.signal(key, "said", 4, wait=wait.id)
    harness.signal(key, "said", 5, wait=wait.id)
    harness.signal(key, "other", 6)
    harness.end_input()
    strays = harness.unmatched_signals
    assert sorted(stray.reason for stray in strays) == sorted(
        [
            UnmatchedReason.OVERFLOW,
            UnmatchedReason.EXPIRED,
            UnmatchedReason.EXPIRED,
            UnmatchedReason.INVALID,
            UnmatchedReason.DUPLICATE,
            UnmatchedReason.END_OF_INPUT,
        ]
    )
    assert [(type(stray.signal.key), stray.signal.key) for stray in strays] == [(type(key), key)] * 6


@dataclasses.dataclass
class Amount:
    """Cannot be made with what it may hold later."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below zero")


def changed() -> Amount:
    amount = Amount(1)
    amount.number = -1
    return amount


@pytest.mark.parametrize("before", [True, False], ids=["before the wait", "behind it"])
def test_a_value_that_state_cannot_give_back_ends_no_run(agent_harness: Make, before: bool) -> None:
    """Pickle, by which signals come, does not ask the class."""
    harness = agent_harness(Listens)
    if before:
        harness.signal(0, "said", changed())
    harness.push("a")
    if not before:
        harness.signal(0, "said", changed())
    assert [(stray.reason, stray.signal.value.number) for stray in harness.unmatched_signals] == [
        ("invalid", -1)
    ]
    assert harness.signal(0, "said", 7) == [7]


@pytest.mark.parametrize("what", [None, 5, b"refund", ("refund",)], ids=repr)
def test_a_request_says_what_is_to_be_done(agent_harness: Make, what: Any) -> None:
    with pytest.raises(
        ActionFailedError, match="ctx.request_approval needs a description of what to approve"
    ) as at:
        agent_harness(Asks, crash=None).push(what)
    assert "test_operator_stray_signals.py" in str(at.value).splitlines()[0]
