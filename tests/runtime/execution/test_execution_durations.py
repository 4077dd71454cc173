"""What is no duration is an error with a name wherever a duration is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from flink_agents import (
    Agent,
    DurableCallable,
    InputEvent,
    OutputEvent,
    RateLimit,
    RetryPolicy,
    Tool,
    action,
)
from flink_agents.api.errors import ActionFailedError, AgentsError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

HUGE = 10**400

INVALID: dict[str, Any] = {
    "huge int": HUGE,
    "NaN": math.nan,
    "infinity": math.inf,
    "bool": True,
    "text": "soon",
    "NaN of decimal": Decimal("NaN"),
    "huge decimal": Decimal("1e999"),
    "huge fraction": Fraction(HUGE, 3),
    "complex": 1j,
    "list": [],
}
BELOW: dict[str, Any] = {
    "-1": -1,
    "huge below": -HUGE,
    "minus infinity": -math.inf,
    "shortest timedelta": timedelta.min,
}
VALID: dict[str, Any] = {"int": 3, "float": 0.5, "timedelta": timedelta(hours=1)}


def function() -> int:
    return 1


async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


class Waiting(Agent):
    """Uses a duration in its action, and emits the result."""

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> OutputEvent:
        used = USE[0](ctx, USE[1])
        return OutputEvent(output=await used if hasattr(used, "__await__") else used)


USE: list[Any] = []


def in_action(use: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    def run(duration: Any) -> None:
        USE[:] = [use, duration]
        with OperatorHarness(Waiting(), hang_after=20) as harness:
            harness.push(1)

    return run


async def first(ctx: Any, duration: Any) -> Any:
    async for result in ctx.as_completed([ctx.durable_execute_async(function)], timeout=duration):
        return result


COUNTED: dict[str, Callable[[Any], Any]] = {
    "sleep": in_action(lambda ctx, duration: ctx.sleep(duration)),
    "signal": in_action(lambda ctx, duration: ctx.wait_for_signal("go", timeout=duration).close()),
    "approval": in_action(lambda ctx, duration: ctx.request_approval("pay", timeout=duration)),
    "wait": in_action(lambda ctx, duration: _awaited(ctx.wait([ctx.sleep(0)], timeout=duration))),
    "join": in_action(lambda ctx, duration: _awaited(ctx.join(ctx.sleep(0), timeout=duration))),
}
"""Calls in which a duration below 0 counts as 0."""

POSITIVE: dict[str, Callable[[Any], Any]] = {
    "action": lambda duration: action(InputEvent, timeout=duration)(act()),
    "approval of an action": lambda duration: action(
        InputEvent, needs_approval=True, approval_timeout=duration
    )(act()),
    "approval of a tool": lambda duration: Tool(pay, needs_approval=True, approval_timeout=duration),
    "step": lambda duration: DurableCallable(function, timeout=duration),
    "step in an action": in_action(
        lambda ctx, duration: ctx.durable_execute_async(function, timeout=duration)
    ),
    "retry, first interval": lambda duration: RetryPolicy(initial_interval=duration),
    "retry, longest interval": lambda duration: RetryPolicy(max_interval=duration),
    "retry, duration": lambda duration: RetryPolicy(max_duration=duration),
    "rate": lambda duration: RateLimit(10, per=duration),
    "delay": in_action(lambda ctx, duration: ctx.send_event(OutputEvent(output=1), delay=duration)),
}
"""Places that accept no duration below 0."""

ALL = {**COUNTED, **POSITIVE, "as_completed": in_action(first)}


def act() -> Callable[..., Any]:
    async def do_nothing(event: Any, ctx: Any) -> None:
        """Do nothing."""

    return do_nothing


async def _awaited(call: Any) -> None:
    await call


def rejected(place: str, duration: Any) -> None:
    with pytest.raises(AgentsError) as raised:
        ALL[place](duration)
    cause = raised.value.__cause__ if isinstance(raised.value, ActionFailedError) else raised.value
    assert isinstance(cause, AgentsError), f"an error without a name: {cause!r}"
    assert raised.value.expected


@each_case(("place", "duration"), [(place, duration) for place in ALL for duration in INVALID])
def test_what_is_no_duration_is_rejected_by_name(place: str, duration: str) -> None:
    rejected(place, INVALID[duration])


@each_case(("place", "duration"), [(place, duration) for place in POSITIVE for duration in BELOW])
def test_a_duration_below_0_is_rejected_by_name(place: str, duration: str) -> None:
    rejected(place, BELOW[duration])


@each_case(("place", "duration"), [(place, duration) for place in COUNTED for duration in BELOW])
def test_a_wait_below_0_counts_as_0(place: str, duration: str) -> None:
    COUNTED[place](BELOW[duration])


@each_case(("place", "duration"), [(place, duration) for place in ALL for duration in VALID])
def test_seconds_and_timedeltas_are_accepted_everywhere(place: str, duration: str) -> None:
    ALL[place](VALID[duration])


@each_case("place", [place for place in ALL if place not in ("delay", "sleep")])
def test_the_longest_timedelta_never_overflows(place: str) -> None:
    """It is either accepted, or rejected by name, as longer than a thousand years."""
    try:
        ALL[place](timedelta.max)
    except AgentsError as error:
        assert "OverflowError" not in str(error)
