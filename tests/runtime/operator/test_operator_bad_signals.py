"""Signals that nobody could mean, and waits that nothing could end: each ends as documented, and alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, ContextMisuseError, InvalidDurationError
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

OF_NO_TIME = [float("nan"), float("inf"), 1e300, 10**400, "5", True, [1], timedelta.max]


def refuses(value: int) -> int:
    if value < 10:
        raise KeyError("a validator that raises what pydantic does not expect")
    return value


class Listens(Agent):
    """Puts out what a signal says."""

    @action(InputEvent)
    async def listen(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.wait_for_signal("said"))


@pytest.mark.parametrize(
    "bad",
    [
        {"id": 5},
        {"id": ["a"]},
        {"id": "\ud800"},
        {"wait": 5},
        {"wait": ["i0|0|listen||0"]},
        {"wait": "i0|" + "9" * 5000 + "|listen||0"},
        {"wait": "\ud800"},
        {"name": 5},
        {"name": None},
        {"name": "\ud800"},
    ],
    ids=lambda bad: repr(bad)[:30],
)
def test_a_signal_with_a_name_or_id_that_is_no_text_is_a_stray(agent_harness: Make, bad: Any) -> None:
    harness = agent_harness(Listens)
    harness.push("a")
    arguments = {"name": "said", **bad}
    harness.signal(0, arguments.pop("name"), "bad", **arguments)
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.INVALID]
    assert harness.signal(0, "said", "good", id="1") == ["good"]


def test_a_signal_that_a_validator_breaks_at_is_a_stray(agent_harness: Make) -> None:
    class Checks(Agent):
        @action(InputEvent)
        async def check(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(
                output=await ctx.wait_for_signal("said", Annotated[int, AfterValidator(refuses)])
            )

    harness = agent_harness(Checks)
    harness.signal(0, "said", 1)
    harness.push("a")
    assert harness.signal(0, "said", 2) == []
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.INVALID] * 2
    assert harness.signal(0, "said", 20) == [20]


@pytest.mark.parametrize("time", OF_NO_TIME, ids=lambda time: repr(time)[:30])
@pytest.mark.parametrize("method", ["sleep", "wait_for_signal", "request_approval"])
def test_a_time_that_is_none_is_refused_where_it_is_given(
    agent_harness: Make, method: str, time: Any
) -> None:
    class Waits(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            with pytest.raises(InvalidDurationError, match=f"invalid duration of ctx.{method}"):
                if method == "sleep":
                    await ctx.sleep(time)
                elif method == "wait_for_signal":
                    await ctx.wait_for_signal("said", timeout=time)
                else:
                    await ctx.request_approval("pay", {}, timeout=time)
            return OutputEvent(output="refused")

    assert agent_harness(Waits).push("a") == ["refused"]


def test_a_pause_below_zero_ends_at_once(agent_harness: Make) -> None:
    class Naps(Agent):
        @action(InputEvent)
        async def nap(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.sleep(timedelta(seconds=-3))
            return OutputEvent(output="awake")

    assert agent_harness(Naps).push("a") == ["awake"]


@pytest.mark.parametrize("name", [None, 5, b"said", "\ud800"], ids=repr)
def test_a_wait_needs_a_name(agent_harness: Make, name: Any) -> None:
    class Waits(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> None:
            await ctx.wait_for_signal(name)

    with pytest.raises(ActionFailedError, match="ctx.wait_for_signal needs the name of a signal") as failed:
        agent_harness(Waits, crash=None).push("a")
    assert "test_operator_bad_signals.py" in str(failed.value).splitlines()[0]


class Foreign:
    """What pydantic knows nothing of."""


@pytest.mark.parametrize("kind", [Foreign, 5, "Nowhere"], ids=repr)
def test_a_wait_for_a_type_that_nothing_can_check_is_refused_before_it_begins(
    agent_harness: Make, kind: Any
) -> None:
    class Waits(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            with pytest.raises(ContextMisuseError, match="a type that no value can be checked against"):
                await ctx.wait_for_signal("said", kind)
            return OutputEvent(output="refused")

    assert agent_harness(Waits).push("a") == ["refused"]
