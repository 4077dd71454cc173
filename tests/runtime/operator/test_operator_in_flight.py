"""What goes wrong elsewhere with calls in flight: leaks into state, mixed contexts, no backpressure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness

WAIT_SECONDS = 30


def fresh(agent: type[Agent], **attributes: Any) -> Any:
    """A class like ``agent`` with these attributes, which its instances share with the test."""
    return type(agent.__name__, (agent,), attributes)


class Half(Agent):
    """Writes before and after a call, and sends to a side output before it."""

    side_outputs = {"audit": None}

    begun: threading.Event
    go_on: threading.Event

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        memory = ctx.short_term_memory
        memory.set("before", memory.get("before", 0) + 1)
        ctx.emit_to("audit", event.input)
        self.begun.set()
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)
        memory.set("after", memory.get("after", 0) + 1)
        return OutputEvent(output=(event.input, memory.get("before"), memory.get("after")))


def test_what_a_call_did_so_far_is_in_no_checkpoint() -> None:
    agent = fresh(Half, begun=threading.Event(), go_on=threading.Event())
    with OperatorHarness(agent, forced_serialization=False, auto_run=False) as harness:
        harness.push_all(["a", "b"])
        assert agent.begun.wait(WAIT_SECONDS)
        harness.advance_time(5000)
        snapshot = harness.snapshot()
        [state] = snapshot.keys.values()
        head = Head.unpack(state.head or b"")
        assert (state.memory, head.nodes, sorted(head.inputs)) == ({}, {}, [0, 1])
        assert (harness.outputs, harness.side_output("audit")) == ([], [])
        agent.go_on.set()
        harness.run_until_idle()
        once = (list(harness.outputs), harness.memory(), list(harness.side_output("audit")))
        assert once == ([("a", 1, 1), ("b", 2, 2)], {"before": 2, "after": 2}, ["a", "b"])
        # From there, everything comes as if the first attempt had never begun.
        harness.restore(snapshot)
        harness.end_input()
        assert (harness.outputs, harness.memory(), harness.side_output("audit")) == once


class Own(Agent):
    """Asks its context who it is, before and after calls, in tasks, and in a thread's result."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.sensory_memory.set("mine", event.input)
        values = [ctx.key]

        async def look() -> None:
            await asyncio.sleep(0)
            values.append(ctx.key)
            values.append(ctx.sensory_memory.get("mine"))

        await asyncio.gather(look(), look())
        values.append(await asyncio.to_thread(lambda: event.input))
        values.append(ctx.key)
        previous_inputs = ctx.short_term_memory.get("seen", [])
        ctx.short_term_memory.set("seen", [*previous_inputs, event.input])
        return OutputEvent(output=(event.input, set(values)))


def test_each_call_sees_its_own_key_and_memory() -> None:
    keys = 50
    with OperatorHarness(Own, lambda number: number, auto_run=False) as harness:
        harness.push_all(list(range(keys)) * 2)
        harness.run_until_idle()
        assert sorted(harness.outputs) == sorted([(key, {key}) for key in range(keys)] * 2)
        assert all(harness.memory(key) == {"seen": [key, key]} for key in range(keys))


class Door(Agent):
    """Its calls wait until it opens."""

    opened: threading.Event

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        while not self.opened.is_set():
            await asyncio.sleep(0.001)
        return OutputEvent(output=event.input)


@pytest.mark.executes_once
@pytest.mark.parametrize("inline", [True, False])
def test_subtask_takes_no_more_than_it_has_room_for(inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = fresh(Door, opened=threading.Event())
    config = {"run.max-in-flight": 2, "queue.max-total": 3, "run.inline": inline}
    with OperatorHarness(
        agent, lambda number: number, config=config, forced_serialization=False, auto_run=False
    ) as harness:
        [task] = harness._subtasks
        waits = task.processor.loop_access
        wait = waits.wait_for_progress
        full = []

        def spy(*arguments: Any) -> None:
            # Flink's thread waits for room: what came before waits here, and nothing else does.
            full.append(len(task.processor.actors))
            agent.opened.set()
            wait(*arguments)

        monkeypatch.setattr(waits, "wait_for_progress", spy)
        harness.push_all(range(5))
        assert full == []
        harness.push_all(range(5, 20))
        assert full[0] == 5
        harness.run_until_idle()
        assert sorted(harness.outputs) == list(range(20))


class Barrier(Agent):
    """Calls in threads that go on only together."""

    barrier: threading.Barrier

    @action(InputEvent, blocking=True)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.barrier.wait()
        return OutputEvent(output=event.input)


@pytest.mark.executes_once
def test_blocking_actions_of_different_keys_overlap() -> None:
    agent = fresh(Barrier, barrier=threading.Barrier(8, timeout=WAIT_SECONDS))
    with OperatorHarness(agent, lambda n: n, forced_serialization=False, auto_run=False) as harness:
        harness.push_all(range(8))
        harness.run_until_idle()
        assert sorted(harness.outputs) == list(range(8))


async def call() -> OutputEvent:
    return OutputEvent(output="called")


async def listed(event: InputEvent, ctx: Any) -> Any:
    return [asyncio.ensure_future(call())]


def yielded(event: InputEvent, ctx: Any) -> Iterator[Any]:
    yield Half.act


async def number(event: InputEvent, ctx: Any) -> Any:
    await asyncio.sleep(0)
    return 5


@pytest.mark.parametrize("act", [listed, yielded, number])
def test_what_an_awaited_action_gives_is_never_dropped(act: Any) -> None:
    """A value that is no event is an error, wherever it comes from; it does not vanish."""
    agent = Agent(name="gives").add_action("act", [InputEvent], act)
    with OperatorHarness(agent) as harness:
        with pytest.raises(ActionFailedError, match="event"):
            harness.push(1)


def test_awaitable_that_an_action_returns_is_awaited() -> None:
    async def inner() -> Event:
        return await call()

    agent = Agent(name="gives").add_action("act", [InputEvent], lambda event, ctx: inner())
    with OperatorHarness(agent) as harness:
        assert harness.push(1) == ["called"]
