"""One timer for all keys commits their runs, and takes over what a restored state has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.runtime.operator.services.service import DRAIN, START
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing import OperatorHarness
from tests.runtime.observer_tools import Listener

KEYS = [f"key {number}" for number in range(20)]

MakeHarness = Callable[..., OperatorHarness]

UNFORCED: dict[str, Any] = {"forced_replay": False, "forced_restart": False}
"""For a look at one operator and its timers."""


class CountingAgent(Agent):
    """Counts its inputs."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        await asyncio.sleep(0.001 * (count % 3))
        return OutputEvent(output=(ctx.key, count, ctx.sequence_number))


class OnceAgent(Agent):
    """The first runs of all keys end at once, the later ones never; for a look at what is left."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        if event.input[1]:
            await asyncio.Event().wait()
        return OutputEvent(output=event.input)


def by_itself(record: Any) -> Any:
    return record


def expected(rounds: int, begin: int = 0) -> list[tuple[str, int, int]]:
    return sorted((key, number + 1, number) for key in KEYS for number in range(begin, rounds))


def test_a_restore_takes_over_what_waits(agent_harness: MakeHarness) -> None:
    old_harness = agent_harness(CountingAgent, by_itself, auto_run=False)
    old_harness.push_all(KEYS * 2)
    snapshot = old_harness.snapshot()
    new_harness = agent_harness(CountingAgent, by_itself, auto_run=False, parallelism=3)
    new_harness.restore(snapshot)
    assert sorted(new_harness.run_until_idle()) == expected(2)
    new_harness.push_all(KEYS)
    assert sorted(new_harness.run_until_idle()) == expected(3, 2)


def test_the_end_of_the_input_drains_what_waits(agent_harness: MakeHarness) -> None:
    old_harness = agent_harness(CountingAgent, by_itself, auto_run=False)
    old_harness.push_all(KEYS * 2)
    new_harness = agent_harness(CountingAgent, by_itself, auto_run=False, parallelism=2)
    new_harness.restore(old_harness.snapshot())
    assert sorted(new_harness.end_input()) == expected(2)
    assert all(new_harness.pending(key) == 0 for key in KEYS)


def timers_of(harness: OperatorHarness) -> Counter[str]:
    states = [harness.state(key) for key in KEYS]
    return Counter(
        processing=sum(len(state.processing_timers) for state in states),
        event=sum(len(state.event_timers) for state in states),
    )


def test_one_timer_of_each_kind_serves_all_keys(agent_harness: MakeHarness) -> None:
    harness = agent_harness(CountingAgent, by_itself, auto_run=False, **UNFORCED)
    # A further one comes before it where a run ends sooner than was expected.
    harness.push_all(KEYS)
    assert timers_of(harness)["event"] == 1 and timers_of(harness)["processing"] in (1, 2)
    harness.run_until_idle()
    assert timers_of(harness) == {"processing": 0, "event": 1}
    harness.push_all(KEYS)
    assert timers_of(harness)["event"] == 1 and timers_of(harness)["processing"] in (1, 2)


def test_other_timers_of_a_savepoint_do_nothing_twice(agent_harness: MakeHarness) -> None:
    """Those of several subtasks, and of all keys, fire before and after what waited is committed."""
    old_harness = agent_harness(CountingAgent, by_itself, auto_run=False)
    old_harness.push_all(KEYS * 2)
    snapshot = old_harness.snapshot()
    for state in snapshot.keys.values():
        state.processing_timers.add(old_harness.current_time)
    harness = agent_harness(CountingAgent, by_itself, auto_run=False, **UNFORCED)
    harness.restore(snapshot)
    assert timers_of(harness)["processing"] >= len(KEYS)
    for _ in range(3):
        for key in KEYS:
            for at in sorted(harness.state(key).processing_timers):
                harness._fire_timer(encode_key(key), "processing_timers", at)
    harness.run_until_idle()
    harness.end_input()
    assert sorted(harness.outputs) == expected(2)
    assert {harness.sequence_number(key) for key in KEYS} == {2}


def test_an_input_of_a_restored_key_does_not_pass_what_waits(agent_harness: MakeHarness) -> None:
    old_harness = agent_harness(CountingAgent, by_itself, auto_run=False)
    old_harness.push_all(KEYS)
    harness = agent_harness(CountingAgent, by_itself, auto_run=False)
    harness.restore(old_harness.snapshot())
    harness.push_all(KEYS)  # before any beat has woken the keys
    harness.run_until_idle()
    assert sorted(harness.outputs) == expected(2)
    assert {harness.pending(key) for key in KEYS} == {0}


def test_a_run_that_does_not_end_holds_no_other_key_back(agent_harness: MakeHarness) -> None:
    def by_first(record: Any) -> Any:
        return record[0]

    harness = agent_harness(OnceAgent, by_first, auto_run=False, **UNFORCED)
    harness.push_all([("endless", True), ("a", False), ("b", False)])
    subtask = harness._subtasks[0]
    while len(harness.outputs) < 2:
        seen = subtask.processor.loop_access.loop.progress
        harness.advance_time(10)
        if len(harness.outputs) < 2 and subtask.processor.loop_access.loop.progress == seen:
            subtask.processor.loop_access.loop.wait_for_progress(seen, 60)
    assert sorted(harness.outputs) == [("a", False), ("b", False)]
    assert (harness.pending("endless"), harness.pending("a"), harness.pending("b")) == (1, 0, 0)


class LookingHarness(OperatorHarness):
    """Looks at state whenever something leaves."""

    def _emit_outputs(self, emission: Any, backend: Any) -> None:
        for output in emission.outputs:
            key, count, number = output
            assert self.sequence_number(key) > number, "it left before its run was committed"
            assert self.memory(key)["count"] >= count
        super()._emit_outputs(emission, backend)


def test_nothing_leaves_before_its_run_is_committed() -> None:
    with LookingHarness(CountingAgent, by_itself, auto_run=False) as harness:
        harness.push_all(KEYS * 3)
        harness.run_until_idle()
        assert sorted(harness.outputs) == expected(3)


def test_a_beat_registers_no_timer_that_fires_in_it(agent_harness: MakeHarness) -> None:
    """Flink would fire it at once, again and again, and take no input meanwhile."""

    def by_first(record: Any) -> Any:
        return record[0]

    harness = agent_harness(OnceAgent, by_first, auto_run=False, **UNFORCED)
    harness.push(("endless", True))
    for _ in range(20):
        (at,) = harness.state("endless").processing_timers
        harness._fire_timer(encode_key("endless"), "processing_timers", at)
        (following,) = harness.state("endless").processing_timers
        assert following > at


def test_a_failure_ends_the_next_beat(agent_harness: MakeHarness) -> None:
    class Fails(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            await asyncio.sleep(0)
            raise ValueError("never mind")

    harness = agent_harness(Fails, by_itself)
    with pytest.raises(Exception, match="never mind"):
        harness.push("a")


def test_the_end_of_the_input_stands_behind_all_times() -> None:
    assert DRAIN == START + 1


class TellingAgent(Agent):
    """Asks outside once for some inputs, and answers others at once."""

    @action(InputEvent, when=lambda event: event.input[1] == "ask")
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=await ctx.durable_execute_async(str, event.input[0]))

    @action(InputEvent, when=lambda event: event.input[1] != "ask")
    def tell(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=event.input)


def test_a_key_comes_back_from_the_loop_without_a_timer(agent_harness: MakeHarness) -> None:
    """Behind a restart, the first input of a key looks for records. It does not keep those behind it."""
    options = {"auto_run": False, "observers": [Listener], **UNFORCED}
    harness = agent_harness(TellingAgent, lambda record: record[0], **options)
    snapshot = harness.snapshot()
    harness.push(("a", "ask"))
    harness.run_until_idle()
    harness.restore(snapshot)
    processor = harness._subtasks[0].processor
    (listener,) = harness.observers
    assert isinstance(listener, Listener)
    assert harness.push(("a", "ask")) == []
    wait_until(processor.actors[encode_key("a")], "is_done")
    assert harness.push(("a", 1)) == ["a", ("a", 1)]
    assert not processor.actors
    assert harness.push(("a", 2)) == [("a", 2)]
    assert [event for event in listener.told if event[0] == "ended"] == [("ended", "a", "tell", "inline")] * 2
    # From a run that could not end here on, keys stay with the loop until a timer looks.
    assert harness.push(("a", "ask")) == []
    wait_until(processor.actors[encode_key("a")], "is_done")
    assert harness.push(("a", 3)) == []
    assert harness.run_until_idle() == ["a", ("a", 3)]


def wait_until(owner: Any, name: str) -> None:
    deadline = time.monotonic() + 30
    while not getattr(owner, name):
        assert time.monotonic() < deadline
        time.sleep(0.001)
