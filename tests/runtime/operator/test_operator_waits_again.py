"""Pauses and waits behind a restart: nothing is done again, and a signal that comes again is absorbed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting_agents import Charges, Naps, Paid, Refunds, calls, charge

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_pauses_and_signals_survive_a_restart_and_another_parallelism(agent_harness: Make) -> None:
    harness = agent_harness(Refunds, key_selector=lambda record: record)
    harness.push_all(["tea", "milk", "rum", "gin"])
    harness.signal("rum", "approval", {"granted": True})
    snapshot = harness.snapshot()
    harness.restore(snapshot, parallelism=3)
    harness.signal("milk", "approval", {"granted": False})
    harness.advance_time(60_000)
    assert sorted(harness.outputs, key=str) == [
        ("gin", "nobody"),
        ("milk", False, ""),
        ("rum", True, ""),
        ("tea", "nobody"),
    ]


def test_a_run_whose_signal_came_goes_on_after_a_restart(agent_harness: Make) -> None:
    harness = agent_harness(Refunds, auto_run=False, crash=None, forced_replay=False, forced_restart=False)
    harness.push("tea")
    harness.run_until_idle()
    harness.signal(0, "approval", {"granted": True})
    # The run is on its way; state knows that it has to go on.
    harness.restore(harness.snapshot())
    harness.run_until_idle()
    assert harness.outputs == [("tea", True, "")]


def test_what_was_recorded_behind_a_suspension_is_not_done_again(agent_harness: Make) -> None:
    harness = agent_harness(Charges, crash=None, forced_replay=False, forced_restart=False)
    harness.push(1)
    suspended = harness.snapshot()
    harness.advance_time(10_000)
    assert calls == [1, 2]
    time = harness.current_time
    harness.restore(suspended)
    assert harness.current_time == time
    # The second call is recorded, though the wait before it is open in state.
    harness.advance_time(0)
    assert calls == [1, 2]
    assert harness.advance_time(1_000) == [30]
    assert calls == [1, 2]


def test_before_its_checkpoint_a_suspended_run_begins_with_its_input_again(agent_harness: Make) -> None:
    harness = agent_harness(Charges, crash=None, forced_replay=False, forced_restart=False)
    snapshot = harness.snapshot()
    harness.push(1)
    harness.advance_time(10_000)
    assert calls == [1, 2]
    harness.recover(snapshot)
    # The store knows that the first pause is over.
    assert calls == [1, 2]
    assert harness.advance_time(1_000) == [30]
    assert calls == [1, 2]


def test_a_signal_that_a_record_has_is_absorbed_when_it_comes_again(agent_harness: Make) -> None:
    harness = agent_harness(Paid, crash=None, forced_replay=False, forced_restart=False)
    snapshot = harness.snapshot()
    harness.push("a")
    harness.signal(0, "amount", 3)
    assert harness.outputs == [30]
    # The store knows what the run did. Signal and input come again.
    harness.recover(snapshot)
    assert harness.outputs == [30]
    assert calls == [3]
    harness.push("b")
    assert len(harness.waits()) == 1


def test_a_signal_that_comes_again_does_not_end_a_later_wait(agent_harness: Make) -> None:
    class Twice(Agent):
        @action(InputEvent)
        async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
            first = await ctx.wait_for_signal("amount", int)
            paid = await ctx.durable_execute_async(charge, first)
            return OutputEvent(output=(paid, await ctx.wait_for_signal("amount", int)))

    harness = agent_harness(Twice, crash=None, forced_replay=False, forced_restart=False)
    snapshot = harness.snapshot()
    harness.push("a")
    harness.signal(0, "amount", 3)
    harness.recover(snapshot)
    assert harness.outputs == []
    assert [wait.name for wait in harness.waits()] == ["amount"]
    assert harness.signal(0, "amount", 4) == [(30, 4)]
    assert calls == [3]


def test_a_restart_with_suspended_runs_lets_the_low_watermark_go_on(agent_harness: Make) -> None:
    once = {"crash": None, "forced_replay": False, "forced_restart": False}
    harness = agent_harness(Naps, lambda record: record[0], event_time=EventTime.hold_watermarks(), **once)
    harness.push("a", timestamp=1_000)
    harness.restore(harness.snapshot())
    harness.watermark(5_000)
    harness.advance_time(6_000)
    harness.push("b", timestamp=6_000)
    harness.advance_time(100)
    assert harness.output_watermark == 5_000


def test_memory_is_as_a_run_found_it_however_long_it_sleeps(agent_harness: Make) -> None:
    class Remembers(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            previous_input = ctx.short_term_memory.get("seen", None)
            ctx.short_term_memory.set("seen", event.input)
            await ctx.sleep(10)
            return OutputEvent(output=(event.input, previous_input, ctx.short_term_memory.get("seen")))

    harness = agent_harness(Remembers, config={"memory.short-term.ttl": "15 s"})
    harness.push_all(["a", "b", "c"])
    # What is written when the first run ends expires while the others sleep.
    harness.advance_time(30_000)
    assert harness.outputs == [("a", None, "a"), ("b", "a", "b"), ("c", "b", "c")]


@pytest.mark.parametrize("stored", [True, False])
def test_memory_that_expires_while_a_run_sleeps_is_as_the_run_has_read_it(
    agent_harness: Make, stored: bool
) -> None:
    """Also without a store: state has what the run has read."""

    class Remembers(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            previous_input = ctx.short_term_memory.get("seen", None)
            ctx.short_term_memory.set("seen", event.input)
            await ctx.sleep(10)
            return OutputEvent(output=(event.input, previous_input))

    place = MemoryPlace()
    store: dict[str, Any] = {"store": lambda: MemoryStore(place)} if stored else {}
    harness = agent_harness(Remembers, config={"memory.short-term.ttl": "8 s"}, **store)
    harness.push("a")
    harness.advance_time(15_000)
    harness.push("b")
    harness.advance_time(10_000)
    assert harness.outputs == [("a", None), ("b", "a")]


def test_what_a_suspended_run_recorded_is_in_the_store_of_its_key(agent_harness: Make) -> None:
    """A restore with another store is refused then."""
    harness = agent_harness(Charges)
    harness.push(1)
    packed = harness.state().head
    assert packed is not None and Head.unpack(packed).store is not None


def test_a_signal_that_comes_a_third_time_is_a_duplicate(agent_harness: Make) -> None:
    """A record has it, so that it is absorbed when it comes again; its id is known from then on."""
    harness = agent_harness(Paid, crash=None, forced_replay=False, forced_restart=False)
    snapshot = harness.snapshot()
    harness.push("a")
    harness.signal(0, "amount", 3, id="s1")
    harness.restore(snapshot)
    # The run is over before its signal comes again.
    assert harness.push("a") == [30]
    harness.signal(0, "amount", 3, id="s1")
    assert harness.unmatched_signals == []
    harness.signal(0, "amount", 3, id="s1")
    assert [
        (unmatched_signal.signal.id, str(unmatched_signal.reason))
        for unmatched_signal in harness.unmatched_signals
    ] == [("s1", "duplicate")]
    harness.push("b")
    assert calls == [3]


def test_a_signal_that_comes_again_behind_its_run_is_absorbed(agent_harness: Make) -> None:
    harness = agent_harness(Paid, crash=None, forced_replay=False, forced_restart=False)
    snapshot = harness.snapshot()
    harness.push("a")
    harness.signal(0, "amount", 3)
    harness.restore(snapshot)
    assert harness.push("a") == [30]
    assert harness.signal(0, "amount", 3) == []
    harness.push("b")
    assert len(harness.waits()) == 1
    # Each counts that has no id.
    assert harness.signal(0, "amount", 3) == [30]


gates: list[threading.Event] = []


async def pass_gate(number: int) -> int:
    while not gates[number].is_set():
        await asyncio.sleep(0.005)
    return number


def test_a_signal_that_comes_again_while_its_run_goes_on_is_absorbed(agent_harness: Make) -> None:
    class Twice(Agent):
        @action(InputEvent)
        async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
            first = await ctx.wait_for_signal("amount", int)
            await ctx.durable_execute_async(charge, first)
            await ctx.durable_execute_async(pass_gate, 0)
            return OutputEvent(output=await ctx.wait_for_signal("amount", int))

    gates[:] = [threading.Event()]
    options = {"crash": None, "forced_replay": False, "forced_restart": False}
    harness = agent_harness(Twice, auto_run=False, config={"action-state.shutdown-grace": "10 ms"}, **options)
    snapshot = harness.snapshot()
    harness.push("a")
    harness.signal(0, "amount", 3)
    _until(harness, "action_calls_recorded")
    harness.restore(snapshot)
    harness.push("a")
    _until(harness, "action_calls_replayed")
    harness.signal(0, "amount", 3)
    gates[0].set()
    harness.run_until_idle()
    assert [wait.name for wait in harness.waits()] == ["amount"]
    assert calls == [3]


def _until(harness: OperatorHarness, metric: str) -> None:
    """Let timers fire until a call was recorded, or came from its record."""
    deadline = time.monotonic() + 30
    while not harness.run_metrics.get(metric):
        assert time.monotonic() < deadline
        harness.advance_time(1)
        time.sleep(0.005)


@pytest.mark.parametrize("policy", ["block", "interleave"])
def test_a_run_whose_code_waits_no_more_goes_on(policy: str) -> None:
    class Asks(Agent):
        on_suspend = policy

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Any:
            yield OutputEvent(output=f"{event.input} asked")
            await ctx.wait_for_signal("answer")
            yield OutputEvent(output=f"{event.input} answered")

    class Tells(Agent):
        on_suspend = policy

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Any:
            yield OutputEvent(output=f"{event.input} asked")
            yield OutputEvent(output=f"{event.input} told")

    old_harness = OperatorHarness(Asks, name="one", crash=None)
    assert old_harness.push("a") == ["a asked"]
    behind = OperatorHarness(Tells, name="one", crash=None)
    behind.restore(old_harness.snapshot())
    behind.signal(0, "answer", 1)
    behind.push("b")
    assert behind.outputs == ["a told", "b asked", "b told"]
    # Nobody has taken the answer.
    assert behind.waits() == [] and list(behind.state().pending) == [-(2**62)]
