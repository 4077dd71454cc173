"""Runs that wait: order within a key, concurrency between keys, limits, restores, the end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from core_agents import Other, Step

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


class Gates:
    """Lets a test decide when the calls of its actions end; usable from any thread."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._open: set[Any] = set()
        self._changed = threading.Condition()

    async def pass_through(self, name: Any) -> None:
        """Wait until ``name`` is opened."""
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        while name not in self._open:
            await asyncio.sleep(0.001)

    def open(self, *names: Any) -> None:
        """Let calls end."""
        self._open.update(names)

    def wait_for(self, count: int) -> list[Any]:
        """The calls that began, as soon as there are ``count``."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, 30), self.begun
            return list(self.begun)


@pytest.fixture
def gates() -> Gates:
    return Gates()


def gated(gates: Gates) -> Agent:
    """An agent that counts the inputs of its key after a call that passes a gate."""

    async def act(event: InputEvent, ctx: Any) -> OutputEvent:
        previous_count = ctx.short_term_memory.get("count", 0)
        await gates.pass_through(event.input)
        ctx.short_term_memory.set("count", previous_count + 1)
        return OutputEvent(output=(event.input, previous_count, ctx.sequence_number))

    return Agent(name="gated").add_action("act", [InputEvent], act)


@pytest.fixture
def make(agent_harness: MakeHarness, gates: Gates) -> MakeHarness:
    def make_(**options: Any) -> OperatorHarness:
        return agent_harness(
            gated(gates), lambda record: record[0], auto_run=False, forced_serialization=False, **options
        )

    return make_


@pytest.mark.executes_once
def test_keys_do_not_wait_for_each_other(make: MakeHarness, gates: Gates) -> None:
    harness = make()
    harness.push_all(["a1", "b1", "c1"])
    assert sorted(gates.wait_for(3)) == ["a1", "b1", "c1"]
    gates.open("c1")
    harness.push("d1")
    gates.open("a1", "b1", "d1")
    assert sorted(harness.run_until_idle()) == [("a1", 0, 0), ("b1", 0, 0), ("c1", 0, 0), ("d1", 0, 0)]


@pytest.mark.executes_once
def test_runs_of_a_key_follow_each_other_before_they_are_committed(make: MakeHarness, gates: Gates) -> None:
    harness = make()
    harness.push_all(["a1", "a2", "a3"])
    assert gates.wait_for(1) == ["a1"]
    gates.open("a1")
    assert gates.wait_for(2) == ["a1", "a2"]
    # The second run has begun on the memory of the first, and nothing is committed.
    assert (harness.sequence_number("a"), harness.pending("a"), harness.memory("a")) == (0, 3, {})
    gates.open("a2", "a3")
    assert harness.run_until_idle() == [("a1", 0, 0), ("a2", 1, 1), ("a3", 2, 2)]
    assert (harness.sequence_number("a"), harness.pending("a"), harness.memory("a")) == (3, 0, {"count": 3})


@pytest.mark.executes_once
def test_a_checkpoint_in_the_middle_holds_what_is_not_committed(make: MakeHarness, gates: Gates) -> None:
    harness = make()
    harness.push_all(["a1", "a2", "b1"])
    gates.open("a1")
    gates.wait_for(3)
    snapshot = harness.snapshot()
    harness.restore(snapshot, parallelism=3)
    gates.open("a2", "b1")
    assert sorted(harness.run_until_idle()) == [("a1", 0, 0), ("a2", 1, 1), ("b1", 0, 0)]


@pytest.mark.executes_once
def test_one_slot_is_enough(make: MakeHarness, gates: Gates) -> None:
    harness = make(config={"run.max-in-flight": 1})
    harness.push_all(["a1", "b1", "a2", "c1"])
    assert gates.wait_for(1) == ["a1"]
    gates.open("a1", "b1", "a2", "c1")
    assert len(harness.run_until_idle()) == 4
    assert gates.begun[0] == "a1" and gates.begun.index("a2") > gates.begun.index("a1")


def test_what_does_not_fit_into_memory_waits_in_state(make: MakeHarness, gates: Gates) -> None:
    harness = make(config={"queue.max-per-key": 2})
    records = [f"a{number:02}" for number in range(20)]
    harness.push_all(records)
    assert harness.pending("a") == 20
    gates.open(*records)
    assert harness.run_until_idle() == [(record, place, place) for place, record in enumerate(records)]


@pytest.mark.executes_once
def test_end_of_input_waits_for_all_keys_at_once(make: MakeHarness, gates: Gates) -> None:
    """Restored keys begin before the first of them is waited for."""
    first = make()
    records = [f"{chr(97 + number)}1" for number in range(20)]
    first.push_all(records)
    second = make()
    gates.wait_for(20)
    gates.begun.clear()
    second.restore(first.snapshot())
    opener = threading.Thread(target=lambda: (gates.wait_for(20), gates.open(*records)))
    opener.start()
    assert sorted(second.end_input()) == [(record, 0, 0) for record in records]
    opener.join()
    assert all(second.state(record[0]).event_timers == set() for record in records)


def test_a_failure_surfaces_with_its_own_run(make: MakeHarness) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError(event.input)

    agent = Agent(name="failing").add_action("act", [InputEvent], act)
    with OperatorHarness(agent, lambda record: record) as harness:
        with pytest.raises(ActionFailedError, match=r"LookupError: 'lost'|LookupError: lost"):
            harness.push("lost")
        assert harness.pending("lost") == 1


class Mixed(Agent):
    """A chain of ``def`` and ``async def`` actions that tells on which threads it ran."""

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: Any) -> Step:
        ctx.sensory_memory.set("threads", [threading.current_thread().name])
        return Step(number=event.input)

    @action(Step)
    async def wait(self, event: Step, ctx: Any) -> Other:
        await asyncio.sleep(0)
        ctx.sensory_memory.append("threads", threading.current_thread().name)
        return Other(value=event.number)

    @action(Other)
    def end(self, event: Other, ctx: Any) -> Iterator[Event]:
        ctx.sensory_memory.append("threads", threading.current_thread().name)
        yield OutputEvent(output=(event.value, ctx.sensory_memory.get("threads")))


def test_def_actions_never_run_on_the_loop() -> None:
    with OperatorHarness(Mixed) as harness:
        [(value, threads)] = harness.push(7)
    assert value == 7
    assert [name.split("_")[0] for name in threads] == ["MainThread", "agent-loop", "agent-pool"]


class Jittery(Agent):
    """Random durations, memory, and a second action in the chain."""

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> Step:
        await asyncio.sleep(random.Random(event.input).random() / 500)
        return Step(number=event.input)

    @action(Step)
    def count(self, event: Step, ctx: Any) -> OutputEvent:
        total = ctx.short_term_memory.get("total", 0) + 1
        ctx.short_term_memory.set("total", total)
        return OutputEvent(output=(ctx.key, event.number, total))


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_order_of_each_key_under_random_durations(replay: bool, parallelism: int) -> None:
    options: dict[str, Any] = {"forced_replay": replay, "auto_run": replay, "parallelism": parallelism}
    with OperatorHarness(Jittery, lambda number: number % 7, **options) as harness:
        harness.push_all(range(140))
        harness.run_until_idle()
        outputs = harness.outputs
    for key in range(7):
        mine = [(number, total) for k, number, total in outputs if k == key]
        assert mine == [(number, place) for place, number in enumerate(range(key, 140, 7), 1)]


def test_closing_ends_what_runs(make: MakeHarness, gates: Gates) -> None:
    ended = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        try:
            await gates.pass_through("never")
        finally:
            ended.set()

    agent = Agent(name="endless").add_action("act", [InputEvent], act)
    previous_threads = set(threading.enumerate())
    harness = OperatorHarness(agent, forced_serialization=False, auto_run=False)
    harness.push(1)
    gates.wait_for(1)
    harness.close()
    assert ended.is_set()
    started = set(threading.enumerate()) - previous_threads
    assert not [thread for thread in started if thread.name == "agent-loop"]


def test_runs_behind_one_that_began_on_flinks_thread_have_numbers_of_their_own() -> None:
    async def numbered(event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.sequence_number)

    agent = Agent(name="numbered").add_action("act", [InputEvent], numbered)
    with OperatorHarness(agent, auto_run=False, forced_restart=False, crash=None) as harness:
        harness.push_all("abc")
        assert harness.run_until_idle() == [0, 1, 2]
