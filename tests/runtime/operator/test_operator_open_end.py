"""The end of a bounded input that stays open until all runs have ended: checkpoints complete meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, Event, EventTime, InputEvent, OutputEvent, action
from flink_agents.runtime.operator.heartbeat import Heartbeat
from flink_agents.runtime.operator.services.service import START, EndTimes, is_held
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

Make = Callable[..., OperatorHarness]


class Later(Event):
    left: int


class Waits(Agent):
    """Answers after a while."""

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(0.02)
        return OutputEvent(output=event.input)


class Sends(Agent):
    """Sends itself three events, one after the other."""

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.send_event(Later(left=3), delay=70)
        return OutputEvent(output=event.input)

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        if event.left > 1:
            ctx.send_event(Later(left=event.left - 1), delay=70)
        return OutputEvent(output=(ctx.key, event.left))


class Asks(Agent):
    """Waits for a signal that never comes, or for the end of the input."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        try:
            answer = await ctx.wait_for_signal("answer")
        except Exception as error:
            answer = type(error).__name__
        return OutputEvent(output=(event.input, answer))


class Sleeps(Agent):
    """Sleeps for a while."""

    @action(InputEvent)
    async def sleep(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(70)
        return OutputEvent(output=event.input)


class Quick(Agent):
    """Never waits."""

    @action(InputEvent)
    def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


def _rests(harness: OperatorHarness) -> bool:
    processors = [task.processor for task in harness._subtasks]  # pyright: ignore[reportPrivateUsage]
    return all(
        isinstance(processor.schedule, Heartbeat) and processor.schedule.rests for processor in processors
    )


def _wait_until_it_rests(harness: OperatorHarness) -> None:
    """Hold the watermark at the end until no run is open."""
    harness.watermark(START)
    for _ in range(50):
        with harness._clock.fly_to_delayed(harness._next_due):  # pyright: ignore[reportPrivateUsage]
            harness.run_until_idle()
        if _rests(harness):
            return
        harness.advance_time(100_000)
    raise AssertionError("it never rests")


CASES = [
    (agent, config, event_time)
    for agent, config in [
        (Waits, {}),
        (Sends, {}),
        (Sends, {"run.timers-at-end": "skip"}),
        (Asks, {}),
        (Sleeps, {}),
        (Sleeps, {"run.timers-at-end": "skip"}),
        (Quick, {}),
    ]
    for event_time in (EventTime.ignore(), EventTime.hold_watermarks())
]


PLAIN = {"forced_replay": False, "forced_restart": False, "crash": None}
"""An operator that lives on after its end, so that its own flag can be seen."""


@pytest.mark.own_conditions
@pytest.mark.parametrize("restores", [False, True])
def test_what_an_open_end_puts_out(agent_harness: Make, restores: bool) -> None:
    """It is what the end puts out that waits at the last watermark, with a restart in the middle or not."""

    def harness_of(agent: type[Agent], config: dict[str, Any], event_time: EventTime) -> OperatorHarness:
        options = {"config": config, "event_time": event_time, "auto_run": False}
        options |= PLAIN
        harness = agent_harness(agent, lambda value: value % 3, parallelism=2, **options)
        for value in range(4):
            harness.push(value, 1000 + value)
        return harness

    # Events that a restart finds in state come in at once, too, if sleeps are skipped.
    cases = [case for case in CASES if not (restores and case[0] is Sends and case[1])]

    @each_case(("agent", "config", "event_time"), cases)
    def same(agent: type[Agent], config: dict[str, Any], event_time: EventTime) -> None:
        closed = harness_of(agent, config, event_time)
        closed.end_input()
        opened = harness_of(agent, config, event_time)
        if restores:
            opened.watermark(START)
            opened.restore(opened.snapshot(), parallelism=3)
        _wait_until_it_rests(opened)
        assert sorted(map(str, opened.outputs)) == sorted(map(str, closed.outputs))
        count = len(opened.outputs)
        opened.end_input()
        assert len(opened.outputs) == count
        if event_time.holds:
            pairs = zip(opened.timestamps, opened.lows, strict=True)
            assert all(at is None or at > low for at, low in pairs)

    same()


@pytest.mark.own_conditions
def test_it_rests_only_at_the_end(agent_harness: Make) -> None:
    harness = agent_harness(Waits, lambda value: value, auto_run=False, **PLAIN)
    assert _rests(harness)
    harness.push(1)
    assert not _rests(harness)
    harness.run_until_idle()
    harness.watermark(START - 1)
    assert not _rests(harness)
    _wait_until_it_rests(harness)


def test_timers_of_another_level_are_not_the_end() -> None:
    first = EndTimes()
    third = EndTimes(2)
    assert first.start < first.drain < EndTimes(1).start < third.start < third.drain
    assert not any(first.is_foreign(at) for at in (0, START - 1, first.start, first.drain))
    assert first.is_foreign(third.start) and third.is_foreign(first.start) and third.is_foreign(first.drain)
    assert is_held(first.start) and is_held(third.start)
    assert not is_held(START - 1) and not is_held(2**63 - 1)
