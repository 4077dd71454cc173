"""Each signal is consumed exactly once: by one wait, or it is a stray, whatever crashes in between."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from waiting_agents import behind_a_door, opened

from flink_agents import Agent, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import SignalTimeoutError
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

UNDISTURBED: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
"""The test says itself when something is repeated."""

SAID = pytest.mark.parametrize("ids", [True, False], ids=["by-id", "by-value"])
"""A signal is known again by the id that its sender gave, or by what it says."""


async def note(value: Any) -> Any:
    return value


class Notes(Agent):
    """Waits for a second at most, and makes a durable call with what it got."""

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        try:
            heard = await ctx.wait_for_signal("x", timeout=1)
        except SignalTimeoutError:
            return OutputEvent(output=(event.input, None))
        return OutputEvent(output=(event.input, await ctx.durable_execute_async(note, heard)))


def consumed(harness: OperatorHarness) -> list[Any]:
    """What runs took, and what left as a stray."""
    return sorted(
        [value for _, value in harness.outputs if value is not None]
        + [unmatched_signal.signal.value for unmatched_signal in harness.unmatched_signals]
    )


@SAID
@pytest.mark.parametrize("steps", [(1000,), (400, 600), (999, 1, 500)])
def test_a_run_that_is_executed_anew_takes_no_signal_of_a_recorded_one(
    agent_harness: Make, ids: bool, steps: tuple[int, ...]
) -> None:
    harness = agent_harness(Notes, **UNDISTURBED)
    first = harness.snapshot()
    harness.push(1)
    harness.push(2)
    for step in steps:
        harness.advance_time(step)
    harness.signal(0, "x", "S", id="s" if ids else None)
    assert harness.outputs == [(1, None), (2, "S")]
    assert harness.recover(first) == []
    assert harness.advance_time(1000) == [(1, None), (2, "S")]
    harness.advance_time(10_000)
    assert harness.outputs == [(1, None), (2, "S")]
    assert harness.unmatched_signals == []


@pytest.mark.nightly(beyond=8)
@SAID
@pytest.mark.parametrize("when", list(itertools.product([0, 1], repeat=4)))
def test_signals_of_many_runs_are_each_consumed_once_after_a_crash(
    agent_harness: Make, ids: bool, when: tuple[int, ...]
) -> None:
    """Of each run a signal comes in time or does not, and a crash comes after each of them."""
    for crash in range(1, len(when) + 1):
        with agent_harness(Notes, **UNDISTURBED) as harness:
            first = harness.snapshot()
            harness.push_all(range(len(when)))
            for number in range(crash):
                if when[number]:
                    harness.signal(0, "x", "S", id=f"s{number}" if ids else None)
                else:
                    harness.advance_time(1000)
            previous_outputs = list(harness.outputs)
            recorded = [output for output in previous_outputs if output[1] is not None]
            assert len(recorded) == sum(when[:crash])
            harness.recover(first)
            for _ in when:
                harness.advance_time(1000)
            assert len(harness.outputs) == len(when)
            assert consumed(harness) == ["S"] * sum(when[:crash])
            assert set(recorded) <= set(harness.outputs)


class HangsUp(Agent):
    """Listens for two signals at a time; the first one that it learns of ends the wait for the other."""

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        heard = [await first_of(ctx, ("stop", "x"))]
        for step in event.input:
            if step == "call":
                await ctx.durable_execute_async(note, "a call")
            elif step == "nap":
                await ctx.sleep(1)
            else:
                heard.append(await ctx.wait_for_signal(step, timeout=5))
        return OutputEvent(output=heard)


class OvertakenHangsUp(HangsUp):
    """Lets inputs overtake a run that waits."""

    on_suspend = "interleave"


async def first_of(ctx: Any, names: Sequence[str]) -> Any:
    """Return the signal that comes first, and wait for no other."""

    async def listen(name: str) -> Any:
        return await ctx.wait_for_signal(name, timeout=100)

    tasks = [asyncio.create_task(listen(name)) for name in names]
    done, pending_tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending_tasks:
        task.cancel()
    await asyncio.gather(*pending_tasks, return_exceptions=True)
    [first] = done
    return first.result()


BEHIND = pytest.mark.parametrize(
    "steps",
    [[], ["call"], ["nap"], ["nap", "call"], ["call", "nap", "call"]],
    ids=lambda steps: "-".join(steps) or "nothing",
)
"""What the run does once it has cancelled a wait."""


@SAID
@BEHIND
@pytest.mark.parametrize("order", [("stop", "x"), ("x", "stop")], ids=["stop-first", "x-first"])
@pytest.mark.parametrize("crash", [None, "everywhere"])
@pytest.mark.parametrize("agent", [HangsUp, OvertakenHangsUp])
def test_a_signal_that_a_cancelled_wait_would_have_got_goes_to_the_next_run(
    agent_harness: Make,
    ids: bool,
    steps: list[str],
    order: tuple[str, str],
    crash: str | None,
    agent: type[Agent],
) -> None:
    options = {"crash": crash} if crash else {}
    harness = agent_harness(agent, **options)
    for name in order:
        harness.signal(0, name, f"{name}!", id=f"id of {name}" if ids else None)
    harness.push(steps)
    harness.advance_time(1000)
    harness.advance_time(1000)
    assert harness.outputs == [["stop!"]]
    harness.push([])
    assert harness.outputs == [["stop!"], ["x!"]]
    assert harness.unmatched_signals == []


@SAID
@BEHIND
def test_a_later_wait_of_the_run_gets_the_signal_of_a_cancelled_one(
    agent_harness: Make, ids: bool, steps: list[str]
) -> None:
    harness = agent_harness(HangsUp)
    for name in ("x", "stop"):
        harness.signal(0, name, f"{name}!", id=f"id of {name}" if ids else None)
    harness.push([*steps, "x", *steps])
    for _ in range(4):
        harness.advance_time(1000)
    assert harness.outputs == [["stop!", "x!"]]
    harness.push([])
    assert len(harness.waits()) == 2
    assert harness.unmatched_signals == []


def test_signals_of_cancelled_waits_keep_their_order(agent_harness: Make) -> None:
    class Three(Agent):
        @action(InputEvent)
        async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
            heard = [await first_of(ctx, ("stop", "x", "x"))]
            await ctx.sleep(1)
            return OutputEvent(
                output=[*heard, await ctx.wait_for_signal("x"), await ctx.wait_for_signal("x")]
            )

    harness = agent_harness(Three)
    for name, value in (("x", 1), ("x", 2), ("stop", 0)):
        harness.signal(0, name, value)
    harness.push("a")
    harness.advance_time(1000)
    assert harness.outputs == [[0, 1, 2]]


@pytest.mark.parametrize("failures", [1, 2])
def test_an_action_that_fails_at_the_same_moment_gets_the_signal_when_it_is_tried_again(
    agent_harness: Make, failures: int
) -> None:
    tries = itertools.count()

    class Fails(Agent):
        @action(InputEvent, retry=RetryPolicy(initial_interval=0))
        async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
            async def listen() -> Any:
                return await ctx.wait_for_signal("x")

            task = asyncio.create_task(listen())
            await ctx.wait_for_signal("stop")
            if next(tries) < failures:
                raise ConnectionError("away")
            return OutputEvent(output=await task)

    harness = agent_harness(Fails, forced_serialization=False, **UNDISTURBED)
    harness.signal(0, "x", "x!")
    harness.signal(0, "stop")
    harness.push("a")
    assert harness.outputs == ["x!"]
    assert harness.unmatched_signals == []


def test_a_signal_for_a_wait_that_is_cancelled_at_the_same_moment_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(HangsUp)
    harness.push(["nap"])
    [_, wait] = harness.waits()
    assert wait.name == "x"
    first = harness.snapshot()
    with agent_harness(HangsUp, **UNDISTURBED, auto_run=False) as restored_harness:
        restored_harness.restore(first)
        restored_harness.signal(0, "stop", "stop!")
        restored_harness.signal(0, "x", "x!", wait=wait.id)
        restored_harness.run_until_idle()
        restored_harness.advance_time(1000)
        restored_harness.run_until_idle()
        assert restored_harness.outputs[-1:] == [["stop!"]]
        assert [
            (str(unmatched_signal.reason), unmatched_signal.signal.value)
            for unmatched_signal in restored_harness.unmatched_signals
        ] == [("duplicate", "x!")]


class OvertakenNotes(Notes):
    """Lets inputs overtake a run that waits."""

    on_suspend = "interleave"


@SAID
@pytest.mark.parametrize("aside", [False, True], ids=["anew", "aside"])
def test_a_run_that_is_set_aside_takes_no_signal_of_a_recorded_one(
    agent_harness: Make, ids: bool, aside: bool
) -> None:
    harness = agent_harness(OvertakenNotes, auto_run=False, **UNDISTURBED)
    snapshot = harness.snapshot()
    harness.push(1)
    harness.run_until_idle()
    if aside:
        snapshot = harness.snapshot()
    harness.advance_time(1000)
    harness.run_until_idle()
    harness.push(2)
    harness.signal(0, "x", "S", id="s" if ids else None)
    harness.run_until_idle()
    assert harness.outputs == [(1, None), (2, "S")]
    harness.recover(snapshot)
    # One that was set aside goes on at once: its time has come.
    _until(lambda: (harness.advance_time(1), harness.waits() or harness.outputs)[1])
    # As was recorded, the second run goes on behind the end of the first one, which comes with time.
    harness.advance_time(1000)
    harness.run_until_idle()
    assert harness.outputs == [(1, None), (2, "S")]
    assert harness.unmatched_signals == []


class Patient(Agent):
    """Waits for ten seconds at most, and makes a durable call with what it got."""

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        try:
            heard = await ctx.wait_for_signal("x", timeout=10)
        except SignalTimeoutError:
            return OutputEvent(output=(event.input, None))
        return OutputEvent(output=(event.input, await ctx.durable_execute_async(note, heard)))


@SAID
@pytest.mark.parametrize("steps", [(6_000, 4_000), (1_000,) * 10, (5_000, 5_000), (4_999, 1, 1, 4_999)])
@pytest.mark.parametrize("restored", [False, True], ids=["sent-again", "in-state"])
def test_a_signal_does_not_expire_while_a_run_that_has_taken_it_waits_for_its_turn(
    agent_harness: Make, ids: bool, steps: tuple[int, ...], restored: bool
) -> None:
    config = {"signals.ttl": "5 s"}
    harness = agent_harness(Patient, config=config, **UNDISTURBED)
    first = harness.snapshot()
    harness.push(1)
    harness.push(2)
    harness.advance_time(10_000)
    harness.signal(0, "x", "S", id="s" if ids else None)
    assert harness.outputs == [(1, None), (2, "S")]
    harness.recover(first)
    # Nobody has taken this one, which expires in time.
    harness.signal(0, "y", "free")
    if restored:
        harness.restore(harness.snapshot())
    for step in steps:
        harness.advance_time(step)
    assert harness.outputs == [(1, None), (2, "S")]
    assert [
        (str(unmatched_signal.reason), unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ] == [("expired", "free")]
    harness.advance_time(60_000)
    assert len(harness.unmatched_signals) == 1
    assert harness.state().pending == {}


def test_a_signal_that_no_recorded_run_has_taken_expires_once_behind_a_suspended_run(
    agent_harness: Make,
) -> None:
    harness = agent_harness(Patient, config={"signals.ttl": "5 s"}, **UNDISTURBED)
    harness.push(1)
    harness.signal(0, "x", "S")
    harness.push(2)
    harness.signal(0, "y", "free")
    harness.restore(harness.snapshot())
    harness.advance_time(5_000)
    assert [
        (str(unmatched_signal.reason), unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ] == [("expired", "free")]
    assert len(harness.waits()) == 1


class HearsOneByOne(Agent):
    """Hears two signals, and records each."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        heard = [
            await ctx.durable_execute_async(note, await ctx.wait_for_signal(name)) for name in ("x", "y")
        ]
        return OutputEvent(output=heard)


@SAID
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "free"])
def test_a_signal_expires_only_where_no_run_that_was_set_aside_has_taken_it(
    agent_harness: Make, ids: bool, taken: bool
) -> None:
    config = {"signals.ttl": "5 s"}
    harness = agent_harness(HearsOneByOne, config=config, **UNDISTURBED)
    harness.push(1)
    harness.signal(0, "y", "Y", id="y" if ids else None)
    snapshot = harness.snapshot()
    if taken:
        assert harness.signal(0, "x", "X", id="x" if ids else None) == [["X", "Y"]]
    harness.restore(snapshot)
    harness.advance_time(10_000)
    strays = [
        (str(unmatched_signal.reason), unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ]
    assert strays == ([] if taken else [("expired", "Y")])
    assert harness.outputs == ([["X", "Y"]] if taken else [])
    # The one that was taken before comes again.
    harness.signal(0, "x", "X", id="x" if ids else None)
    assert harness.outputs == ([["X", "Y"]] if taken else [])
    assert len(harness.unmatched_signals) == len(strays)


entered = threading.Event()


async def enter() -> str:
    entered.set()
    return await behind_a_door()


class HearsTwo(Agent):
    """Listens twice at a time, and naps once behind it; an input that is ``door`` only makes a call."""

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input[1] == "door":
            return OutputEvent(output=await ctx.durable_execute_async(enter))

        async def listen() -> Any:
            return await ctx.wait_for_signal("x")

        # The nap alone lets the run go on, and come back to both waits.
        first_signal, second_signal, _ = await asyncio.gather(listen(), listen(), ctx.sleep(10))
        return OutputEvent(output=[first_signal, second_signal])


@pytest.mark.parametrize("by_id", [False, True], ids=["by-name", "by-wait"])
@pytest.mark.parametrize("resuming", [False, True])
def test_a_signal_without_a_wait_is_refused_also_while_the_run_of_two_waits_is_being_resumed(
    agent_harness: Make, by_id: bool, resuming: bool
) -> None:
    opened.clear()
    entered.clear()
    options: dict[str, Any] = {"auto_run": False, "config": {"run.max-in-flight": 1}, **UNDISTURBED}
    harness = agent_harness(HearsTwo, lambda record: record[0], **options)
    harness.push(("a", "listen"))
    harness.run_until_idle()
    waits = [wait.id for wait in harness.waits("a") if wait.name == "x"]
    assert len(waits) == 2
    if resuming:
        harness.push(("b", "door"))
        _until(entered.is_set)
        # The run of "a" goes on, and does not come to its waits: there is no slot.
        harness.advance_time(10_000)
        _until(lambda: harness.waits("a") == [])
    harness.signal("a", "x", "which?", wait=waits[1] if by_id else None)
    opened.set()
    harness.run_until_idle()
    assert [str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals] == (
        [] if by_id else ["ambiguous"]
    )
    assert [wait.id for wait in harness.waits("a") if wait.name == "x"] == waits[: 1 if by_id else 2]


def _until(reached: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)
