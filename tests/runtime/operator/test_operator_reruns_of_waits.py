"""A change of code that voids what a run recorded: signals that it took are given to it again, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, NonDeterminismError
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

pytestmark = pytest.mark.executes_once

RERUN: dict[str, Any] = {"action-state.on-mismatch": "rerun"}

calls: list[Any] = []


class Code:
    """Which version of the code the job has; a test changes it as a change of code would."""

    version = 1


@pytest.fixture(autouse=True)
def _first_version() -> None:
    Code.version = 1
    calls.clear()


def call(value: Any) -> Any:
    calls.append(value)
    return value


class Versions(Agent):
    """Calls something else before its waits in each version of its code."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        call_result = await ctx.durable_execute_async(call, Code.version)
        if Code.version == 5:
            # In a task of its own, so that the waits behind it have the numbers that they had.
            await asyncio.create_task(_nap(ctx))
        first = await ctx.wait_for_signal("first")
        if Code.version == 3:
            await ctx.durable_execute_async(call, "more")
            await ctx.sleep(60)
        second = await ctx.wait_for_signal("second" if Code.version != 4 else "third")
        return OutputEvent(output=(call_result, first, second))


async def _nap(ctx: Any) -> None:
    await ctx.sleep(60)


class Overtaken(Versions):
    """The same, with inputs that overtake its runs."""

    on_suspend = "interleave"


@pytest.fixture(params=[Versions, Overtaken])
def suspended(agent_harness: Make, request: pytest.FixtureRequest) -> OperatorHarness:
    """A run that took its first signal, and waits for the second one; state is that of a checkpoint."""
    harness = agent_harness(request.param, config=RERUN)
    harness.push("a")
    harness.signal(0, "first", 1, id="s1")
    assert [wait.name for wait in harness.waits()] == ["second"]
    return harness


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_signal_is_taken_once_more_where_its_taking_is_void(
    suspended: OperatorHarness, version: int
) -> None:
    harness = suspended
    Code.version = version
    harness.restore(harness.snapshot())
    harness.signal(0, "second", 2, id="s2")
    harness.advance_time(60_000)
    if version == 4:
        harness.signal(0, "third", 3)
    assert harness.outputs == [(version, 1, 3 if version == 4 else 2)]
    assert calls == ([1] if version == 1 else [1, version, "more"] if version == 3 else [1, version])
    harness.push("b")
    assert [wait.name for wait in harness.waits()] == ["first"]
    # Both ids are known, though one was taken twice.
    harness.signal(0, "first", 1, id="s1")
    assert [
        (unmatched_signal.signal.id, str(unmatched_signal.reason))
        for unmatched_signal in harness.unmatched_signals
    ] == [("s1", "duplicate")]


@pytest.mark.parametrize("version", [2, 3])
def test_a_crash_behind_a_rerun_neither_loses_nor_repeats_its_signal(
    suspended: OperatorHarness, version: int
) -> None:
    harness = suspended
    snapshot = harness.snapshot()
    Code.version = version
    harness.restore(snapshot)
    harness.signal(0, "second", 2, id="s2")
    # The store has the new begin of the execution; state has what was recorded before.
    harness.restore(snapshot)
    harness.signal(0, "second", 2, id="s2")
    harness.advance_time(60_000)
    assert harness.outputs == [(version, 1, 2)]
    assert calls == ([1, 3, "more"] if version == 3 else [1, version])
    assert harness.unmatched_signals == []
    harness.push("b")
    assert [wait.name for wait in harness.waits()] == ["first"]


def test_code_that_changes_while_its_run_is_suspended_once_more(suspended: OperatorHarness) -> None:
    harness = suspended
    Code.version = 3
    harness.restore(harness.snapshot())
    # Its value is of no use to the run, which only looks at it.
    harness.signal(0, "third", 2, wait=harness.waits()[0].id)
    assert [wait.name for wait in harness.waits()] == [None]
    snapshot = harness.snapshot()
    Code.version = 2
    for _ in range(2):
        # The store has the second new begin, the second time; state has the first one.
        harness.restore(snapshot)
        harness.advance_time(60_000)
        assert [wait.name for wait in harness.waits()] == ["second"]
        assert calls == [1, 3, "more", 2]
    harness.signal(0, "second", 2, id="s2")
    assert harness.outputs == [(2, 1, 2)]
    assert calls == [1, 3, "more", 2]


@pytest.mark.parametrize("policy", ["block", "interleave"])
def test_what_the_new_code_does_not_take_is_kept_for_others(agent_harness: Make, policy: str) -> None:
    class Stops(Agent):
        on_suspend = policy

        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            if Code.version == 2:
                await ctx.durable_execute_async(call, "other")
                return OutputEvent(output="none")
            await ctx.durable_execute_async(call, event.input)
            first = await ctx.wait_for_signal("first", int)
            return OutputEvent(output=(first, await ctx.wait_for_signal("second")))

    harness = agent_harness(Stops, config=RERUN)
    harness.push("a")
    harness.signal(0, "first", 1, id="s1")
    # It stays behind the one that the run took before.
    harness.signal(0, "first", 3, id="s3")
    Code.version = 2
    harness.restore(harness.snapshot())
    harness.signal(0, "second", 2)
    assert harness.outputs == ["none"]
    Code.version = 1
    harness.push("b")
    assert harness.outputs == ["none", (1, 2)]
    assert harness.state().pending.keys() <= {-(2**62)}


def test_a_value_that_no_longer_fits_is_a_stray(agent_harness: Make) -> None:
    class Types(Agent):
        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.durable_execute_async(call, Code.version)
            first = await ctx.wait_for_signal("first", int if Code.version == 1 else str)
            return OutputEvent(output=(first, await ctx.wait_for_signal("second")))

    harness = agent_harness(Types, config=RERUN)
    harness.push("a")
    harness.signal(0, "first", 1)
    Code.version = 2
    harness.restore(harness.snapshot())
    harness.signal(0, "second", 2)
    assert [
        (unmatched_signal.signal.value, str(unmatched_signal.reason))
        for unmatched_signal in harness.unmatched_signals
    ] == [(1, "invalid")]
    assert harness.signal(0, "first", "one") == [("one", 2)]
    assert harness.state().pending == {}


@pytest.mark.parametrize("policy", ["fail", "rerun"])
def test_a_wait_for_another_signal_than_was_recorded_is_a_mismatch(agent_harness: Make, policy: str) -> None:
    class Names(Agent):
        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            first = await ctx.wait_for_signal("a" if Code.version == 1 else "b")
            return OutputEvent(output=(first, await ctx.wait_for_signal("c")))

    harness = agent_harness(Names, config={"action-state.on-mismatch": policy})
    harness.push("x")
    harness.signal(0, "a", 1)
    Code.version = 2
    harness.restore(harness.snapshot())
    if policy == "fail":
        with pytest.raises(ActionFailedError, match="signal 'b'"):
            harness.signal(0, "c", 3)
        return
    harness.signal(0, "c", 3)
    assert harness.signal(0, "b", 2) == [(2, 3)]


@pytest.mark.parametrize("restored", ["before", "suspended"])
def test_signals_without_ids_count_each_time(agent_harness: Make, restored: str) -> None:
    harness = agent_harness(Versions, config=RERUN)
    snapshots = {"before": harness.snapshot()}
    Code.version = 3
    harness.push("a")
    harness.signal(0, "first", 1)
    snapshots["suspended"] = harness.snapshot()
    Code.version = 2
    harness.restore(snapshots[restored])
    if restored == "before":
        harness.push("a")
        harness.signal(0, "first", 1)
    harness.signal(0, "second", 2)
    harness.advance_time(60_000)
    assert harness.outputs == [(2, 1, 2)]
    harness.push("b")
    harness.signal(0, "first", 1)
    assert [wait.name for wait in harness.waits()] == ["second"]


def test_a_signal_that_names_its_wait_is_not_taken_for_a_second_one(agent_harness: Make) -> None:
    harness = agent_harness(Versions, config=RERUN)
    harness.push("a")
    [wait] = harness.waits()
    harness.signal(0, "first", 1, wait=wait.id)
    Code.version = 5
    harness.restore(harness.snapshot())
    harness.signal(0, "second", 2)
    assert [wait.name for wait in harness.waits()] == [None]
    assert harness.advance_time(60_000) == [(5, 1, 2)]
    assert harness.unmatched_signals == []


class Typed(Agent):
    """Waits for two signals, the first of a type that a test changes as a change of code would."""

    kind: Any = int

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(
            output=(await ctx.wait_for_signal("first", self.kind), await ctx.wait_for_signal("second"))
        )


@pytest.mark.parametrize(
    ("kind", "fits"), [(int, True), (float, True), (None, True), (dict, False), (str, False)]
)
def test_another_type_for_a_signal_that_was_taken(
    agent_harness: Make, monkeypatch: pytest.MonkeyPatch, kind: Any, fits: bool
) -> None:
    harness = agent_harness(Typed)
    harness.push("a")
    harness.signal(0, "first", 1)
    snapshot = harness.snapshot()
    monkeypatch.setattr(Typed, "kind", kind)
    harness.restore(snapshot)
    if fits:
        assert harness.signal(0, "second", 2) == [(1, 2)]
        return
    with pytest.raises(ActionFailedError, match="of another type") as raised:
        harness.signal(0, "second", 2)
    assert isinstance(raised.value.__cause__, NonDeterminismError)
