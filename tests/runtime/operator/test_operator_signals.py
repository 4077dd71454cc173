"""What becomes of signals, case by case: each is a defect that another engine had."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import SignalTimeoutError
from flink_agents.connectors.action_state.memory.store import MemoryStore
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

AS_IT_COMES: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
"""For tests that say themselves when something is repeated."""

gate = threading.Event()

started_calls: list[str] = []
"""A call adds to it when it begins."""


@pytest.fixture(autouse=True)
def _closed_gate() -> None:
    gate.clear()
    started_calls.clear()


async def pass_gate() -> None:
    started_calls.append("a call")
    while not gate.is_set():
        await asyncio.sleep(0.005)


class Answers(Agent):
    """Waits for one answer, for a minute at most."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        try:
            return OutputEvent(output=(event.input, await ctx.wait_for_signal("answer", timeout=60)))
        except SignalTimeoutError:
            return OutputEvent(output=(event.input, "nobody"))


class LastStep(Agent):
    """Waits for an answer, and for a gate behind it."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        answer = await ctx.wait_for_signal("answer")
        await ctx.durable_execute_async(pass_gate)
        return OutputEvent(output=(event.input, answer))


class LateWait(Agent):
    """Asks, and begins to wait for the answer later."""

    side_outputs = {"asked": str}

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        answer = ctx.wait_for_signal("answer")
        ctx.emit_to("asked", answer.id)
        await ctx.sleep(10)
        return OutputEvent(output=(event.input, await answer))


def reasons(harness: OperatorHarness) -> list[tuple[str, Any]]:
    return [
        (str(unmatched_signal.reason), unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ]


def test_a_signal_that_comes_before_its_wait_begins_is_kept_for_it(agent_harness: Make) -> None:
    harness = agent_harness(LateWait)
    harness.push("a")
    [wait] = harness.side_output("asked")
    assert harness.signal(0, "answer", "yes", wait=wait) == []
    assert harness.advance_time(10_000) == [("a", "yes")]
    assert harness.unmatched_signals == []
    assert harness.state().pending == {}


def test_a_signal_in_the_last_step_of_a_run_goes_to_the_next_run_that_waits(agent_harness: Make) -> None:
    harness = agent_harness(LastStep, auto_run=False, **AS_IT_COMES)
    harness.push_all(["a", "b"])
    harness.signal(0, "answer", 1)
    _until(lambda: started_calls, harness)
    harness.signal(0, "answer", 2)
    gate.set()
    harness.run_until_idle()
    assert harness.outputs == [("a", 1), ("b", 2)]
    assert harness.unmatched_signals == []
    assert harness.state().pending == {}


def test_a_signal_in_the_last_step_for_that_very_run_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(LastStep, auto_run=False, **AS_IT_COMES)
    harness.push("a")
    harness.run_until_idle()
    [wait] = harness.waits()
    harness.signal(0, "answer", 1, wait=wait.id)
    _until(lambda: started_calls, harness)
    harness.signal(0, "answer", 2, wait=wait.id)
    gate.set()
    harness.run_until_idle()
    assert harness.outputs == [("a", 1)]
    assert reasons(harness) == [("duplicate", 2)]
    harness.push("b")
    harness.run_until_idle()
    assert len(harness.waits()) == 1


@pytest.mark.parametrize("signal_first", [True, False])
def test_a_signal_and_the_timeout_at_the_same_moment_settle_the_wait_once(
    agent_harness: Make, signal_first: bool
) -> None:
    harness = agent_harness(Answers)
    harness.push("a")
    [wait] = harness.waits()
    harness.advance_time(59_999)
    if signal_first:
        assert harness.signal(0, "answer", "yes", wait=wait.id) == [("a", "yes")]
        harness.advance_time(1)
        assert harness.unmatched_signals == []
    else:
        assert harness.advance_time(1) == [("a", "nobody")]
        harness.signal(0, "answer", "yes", wait=wait.id)
        assert reasons(harness) == [("duplicate", "yes")]
    harness.advance_time(120_000)
    assert len(harness.outputs) == 1
    assert harness.state().pending == {}


def test_signals_and_timeouts_race_and_each_run_ends_once(agent_harness: Make) -> None:
    harness = agent_harness(Answers, lambda key: key, auto_run=False, **AS_IT_COMES)
    keys = range(60)
    harness.push_all(keys)
    harness.run_until_idle()
    waits = {key: harness.waits(key)[0].id for key in keys}
    harness.advance_time(59_999)
    for key in keys:
        # Timers of some keys fire between the signals of others.
        harness.signal(key, "answer", "yes", wait=waits[key])
        if key == 30:
            harness.advance_time(1)
    harness.run_until_idle()
    assert sorted(key for key, _ in harness.outputs) == list(keys)
    answered = {key for key, answer in harness.outputs if answer == "yes"}
    assert {unmatched_signal.signal.wait for unmatched_signal in harness.unmatched_signals} == {
        waits[key] for key in keys if key not in answered
    }
    assert all(harness.state(key).pending == {} for key in keys)


def test_signals_during_down_time_and_across_a_new_job_are_delivered_once(agent_harness: Make) -> None:
    first = agent_harness(LateWait, lambda key: key, job_id="1" * 32, **AS_IT_COMES)
    keys = [f"k{number}" for number in range(8)]
    first.push_all(keys)
    waits = dict(zip(keys, first.side_output("asked"), strict=True))
    first.signal("k0", "answer", 0, wait=waits["k0"], id="a0")
    savepoint = first.snapshot()
    first.close()

    second = agent_harness(LateWait, lambda key: key, job_id="2" * 32, parallelism=3, **AS_IT_COMES)
    second.restore(savepoint, parallelism=3)
    for number, key in enumerate(keys):
        # The stream of signals is read again from its begin.
        second.signal(key, "answer", number, wait=waits[key], id=f"a{number}")
    assert [unmatched_signal.reason for unmatched_signal in second.unmatched_signals] == ["duplicate"]
    second.advance_time(10_000)
    assert sorted(second.outputs) == [(key, number) for number, key in enumerate(keys)]
    for number, key in enumerate(keys):
        second.signal(key, "answer", number, wait=waits[key], id=f"a{number}")
    assert len(second.outputs) == len(keys)
    assert len(second.unmatched_signals) == 1 + len(keys)


def test_ids_of_a_suspended_run_are_the_same_in_a_job_that_is_submitted_again(agent_harness: Make) -> None:
    class Names(Agent):
        side_outputs = {"asked": str}

        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            name = str(ctx.uuid4())
            ctx.emit_to("asked", name)
            await ctx.sleep(1)
            return OutputEvent(output=name)

    first = agent_harness(Names, job_id="1" * 32, **AS_IT_COMES)
    first.push("a")
    savepoint = first.snapshot()
    first_outputs = first.side_output("asked")
    second = agent_harness(Names, job_id="2" * 32, **AS_IT_COMES)
    second.restore(savepoint)
    assert second.advance_time(1_000) == first_outputs


class NeverWaits(Agent):
    """Has no wait for signals, and passes a gate."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(pass_gate)
        return OutputEvent(output=event.input)


@pytest.mark.parametrize("store", [MemoryStore, None])
def test_a_signal_to_an_agent_that_never_waits_is_unmatched_also_if_the_key_is_busy(
    agent_harness: Make, store: type[MemoryStore] | None
) -> None:
    harness = agent_harness(NeverWaits, lambda key: key, auto_run=False, store=store, **AS_IT_COMES)
    harness.signal("a", "idle", 1)
    harness.push("a")
    while not started_calls:
        time.sleep(0.005)
    harness.signal("a", "busy", 2)
    gate.set()
    harness.run_until_idle()
    assert harness.outputs == ["a"]
    harness.end_input()
    assert sorted(reasons(harness)) == [("end-of-input", 1), ("end-of-input", 2)]


@pytest.mark.parametrize("ends", [True, False])
def test_signals_to_an_agent_that_never_waits_outlive_a_restart(agent_harness: Make, ends: bool) -> None:
    gate.set()
    harness = agent_harness(NeverWaits, lambda key: key, config={"signals.ttl": "10 s"}, **AS_IT_COMES)
    harness.signal("a", "early", 1)
    harness.push("a")
    harness.restore(harness.snapshot())
    if ends:
        harness.end_input()
    else:
        harness.advance_time(20_000)
    assert reasons(harness) == [("end-of-input" if ends else "expired", 1)]


def test_the_end_of_the_input_gives_signals_to_runs_first(agent_harness: Make) -> None:
    class Late(Agent):
        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.sleep(1)
            return OutputEvent(output=(event.input, await ctx.wait_for_signal("answer")))

    harness = agent_harness(Late, lambda key: key)
    harness.push_all(["a", "b"])
    for number in range(3):
        harness.signal("a", "answer", number)
    harness.signal("b", "answer", 3)
    harness.signal("c", "answer", 4)
    assert sorted(harness.end_input()) == [("a", 0), ("b", 3)]
    assert sorted(reasons(harness)) == [("end-of-input", 1), ("end-of-input", 2), ("end-of-input", 4)]
    assert all(harness.state(key).pending == {} for key in "abc")
    assert harness.state("c").head is None


def test_a_restored_key_that_only_has_signals_does_not_hold_the_low_watermark(agent_harness: Make) -> None:
    harness = agent_harness(Answers, lambda key: key, event_time=EventTime.hold_watermarks(), **AS_IT_COMES)
    harness.signal("a", "answer", 1)
    harness.restore(harness.snapshot())
    harness.watermark(5_000)
    harness.push("b", timestamp=6_000)
    harness.signal("b", "answer", 2)
    harness.advance_time(100)
    assert harness.outputs == [("b", 2)]
    assert harness.output_watermark == 5_000


def test_an_action_that_is_tried_again_keeps_the_signal_that_it_took(agent_harness: Make) -> None:
    tries = itertools.count()

    class Fails(Agent):
        @action(InputEvent, retry=RetryPolicy(initial_interval=0))
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            answer = await ctx.wait_for_signal("answer")
            if next(tries) % 2 == 0:
                raise ConnectionError("away")
            return OutputEvent(output=(event.input, answer))

    harness = agent_harness(Fails, crash=None, forced_serialization=False)
    harness.push_all(["a", "b"])
    assert harness.signal(0, "answer", 1) == [("a", 1)]
    assert len(harness.waits()) == 1
    assert harness.signal(0, "answer", 2) == [("b", 2)]
    assert harness.unmatched_signals == []


def _until(reached: Callable[[], Any], harness: OperatorHarness) -> None:
    """Let timers fire until a condition holds."""
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        harness.advance_time(1)
        time.sleep(0.005)
