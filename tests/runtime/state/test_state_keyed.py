"""Where the state of a key lies: one value at rest or at work, and maps for what is large."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import LEAST_BYTES, MOST_BYTES, MOST_INPUTS, Head
from flink_agents.runtime.state.suspended import ListedRun
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes import state as fake_state
from flink_agents.testing.fakes.state import FakeBackend
from tests.suite import conditions

UNFORCED: Any = {**conditions.UNFORCED, "forced_serialization": False}

SLEEPING = ListedRun(0, 0, False, 1, None, None, [])

pytestmark = pytest.mark.own_conditions


class Sizes(Agent):
    """Sets the node ``data`` to the number of characters of an input; the first field is the key."""

    @action(InputEvent)
    def store(self, event: InputEvent, ctx: Any) -> OutputEvent:
        size = event.input[1]
        memory = ctx.short_term_memory
        length = len(memory.get("data", ""))
        memory.set("data", "x" * size)
        memory.set("count", memory.get("count", 0) + 1)
        return OutputEvent(output=(length, memory.get("count")))


class Waiting(Agent):
    """The same on the event loop."""

    @action(InputEvent)
    async def store(self, event: InputEvent, ctx: Any) -> OutputEvent:
        size = event.input[1]
        memory = ctx.short_term_memory
        length = len(memory.get("data", ""))
        memory.set("data", "x" * size)
        memory.set("count", memory.get("count", 0) + 1)
        return OutputEvent(output=(length, memory.get("count")))


def harness_of(agent: Any, **config: Any) -> OperatorHarness:
    return OperatorHarness(agent, lambda record: record[0], config=config, **UNFORCED)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The writes of keyed state, as ``state.method``."""
    log: list[str] = []

    def watch(kind: type, method: str) -> None:
        original = getattr(kind, method)

        def logged(self: Any, *arguments: Any) -> Any:
            log.append(f"{getattr(self, '_name', 'memory')}.{method}")
            return original(self, *arguments)

        monkeypatch.setattr(kind, method, logged)

    for kind, methods in (
        (fake_state._Value, ("update", "clear")),  # pyright: ignore[reportPrivateUsage]
        (fake_state._Entries, ("put", "remove", "clear")),  # pyright: ignore[reportPrivateUsage]
        (fake_state._Memory, ("put", "remove", "clear")),  # pyright: ignore[reportPrivateUsage]
    ):
        for method in methods:
            watch(kind, method)
    yield log


def test_an_input_that_ends_at_once_writes_one_value(writes: list[str]) -> None:
    with harness_of(Sizes) as harness:
        harness.push_all([("a", 5), ("a", 6)])
        assert writes == ["rested.update", "rested.update"]
        assert harness.memory("a") == {"data": "x" * 6, "count": 2}


def test_an_input_that_waits_makes_three_writes(writes: list[str]) -> None:
    with harness_of(Waiting) as harness:
        harness.push(("a", 5))
        assert writes == ["busy.update", "rested.update", "busy.clear"]


def test_only_a_key_with_work_is_listed() -> None:
    with OperatorHarness(Waiting, lambda record: record[0], auto_run=False, **UNFORCED) as harness:
        [subtask] = harness._subtasks
        harness.push(("a", 5))
        harness.run_until_idle()
        assert subtask.backend.waiting() == []
        harness.push(("b", 5))
        assert [key for key, _ in subtask.backend.waiting()] == ["sb"]
        harness.run_until_idle()
        assert subtask.backend.waiting() == []


def in_map(harness: OperatorHarness) -> bool:
    """Whether the memory of the key is in the map; all of it is in one place."""
    state = harness.state("a")
    nodes = Head.unpack(state.head or b"").nodes
    assert (nodes is None) == bool(state.memory)
    return nodes is None


@pytest.mark.parametrize("agent", [Sizes, Waiting])
def test_large_memory_is_in_its_map(agent: Any) -> None:
    with harness_of(agent) as harness:
        harness.push(("a", 10))
        assert not in_map(harness)
        harness.push(("a", 2 * MOST_BYTES))
        assert in_map(harness)
        harness.restore(harness.checkpoint())
        harness.push(("a", LEAST_BYTES + 100))
        # Not small enough to return: the next input may make it large again.
        assert in_map(harness)
        harness.push(("a", 10))
        harness.push(("a", 11))
        assert harness.outputs == [(0, 1), (10, 2), (2 * MOST_BYTES, 3), (LEAST_BYTES + 100, 4), (10, 5)]
        assert harness.memory("a") == {"data": "x" * 11, "count": 5}


def test_memory_that_became_small_returns() -> None:
    with harness_of(Waiting) as harness:
        harness.push(("a", 2 * MOST_BYTES))
        harness.push(("a", 10))
        assert not in_map(harness)
        harness.restore(harness.checkpoint())
        assert harness.push(("a", 3)) == [(10, 3)]


@pytest.mark.parametrize("agent", [Sizes, Waiting])
def test_the_place_does_not_change_with_each_input(agent: Any, writes: list[str]) -> None:
    with harness_of(agent) as harness:
        harness.push(("a", MOST_BYTES + 1))
        writes.clear()
        for size in (MOST_BYTES - 50, MOST_BYTES + 50) * 5:
            harness.push(("a", size))
        assert "memory.clear" not in writes
        assert in_map(harness)


def test_a_long_queue_is_in_its_map() -> None:
    with OperatorHarness(Waiting, lambda record: record[0], auto_run=False, **UNFORCED) as harness:
        harness.push_all([("a", size) for size in range(MOST_INPUTS + 3)])
        state = harness.state("a")
        assert list(Head.unpack(state.head or b"").inputs) == list(range(MOST_INPUTS))
        assert sorted(state.pending) == list(range(MOST_INPUTS, MOST_INPUTS + 3))
        harness.restore(harness.checkpoint())
        harness.run_until_idle()
        assert [length for length, _ in harness.outputs] == [0, 0, 1, 2, 3, 4, 5]
        state = harness.state("a")
        assert (state.busy, state.pending) == (None, {})
        assert Head.unpack(state.rested or b"").inputs == {}


def test_a_large_input_is_in_the_map() -> None:
    with OperatorHarness(Waiting, lambda record: record[0], auto_run=False, **UNFORCED) as harness:
        harness.push(("a" * MOST_BYTES, 1))
        assert Head.unpack(harness.state("a" * MOST_BYTES).head or b"").inputs == {}
        harness.run_until_idle()
        assert harness.outputs == [(0, 1)]


def test_memory_that_expires_is_never_in_the_head() -> None:
    with harness_of(Sizes, **{"memory.short-term.ttl": "1 min"}) as harness:
        harness.push(("a", 3))
        assert in_map(harness)
        harness.advance_time(60_000)
        assert harness.memory("a") == {}
        assert harness.push(("a", 1)) == [(0, 1)]


def test_memory_moves_when_a_job_gets_or_loses_a_time_to_live() -> None:
    backend = FakeBackend(lambda: 0, None)
    backend.key = "a"
    codec = ValueCodec()
    state = backend.keyed_state()
    head = Head("job", nodes={"n": codec.encode(1)})
    state.write(head)
    backend.memory_ttl = 1000
    state = backend.keyed_state()
    read = state.read()
    assert read is not None and read.nodes is None and state.read_memory(read) == head.nodes
    state.write(read)
    backend.memory_ttl = None
    state = backend.keyed_state()
    read = state.read()
    assert read is not None and state.read_memory(read) == head.nodes
    state.return_memory(read, {**state.read_memory(read), "gone": None})
    read = state.read()
    assert read is not None and read.nodes == head.nodes and not backend.current.memory


def test_a_key_at_work_has_its_new_head() -> None:
    backend = FakeBackend(lambda: 0, None)
    backend.key = "a"
    state = backend.keyed_state()
    head = Head("job", 1)
    state.write(head)
    head.next_seq = 2
    state.put_input(head, b"input")
    state.write(head)
    read = state.read()
    assert read is not None and (read.next_seq, read.is_busy, read.inputs) == (2, True, {0: b"input"})
    state.finish_input(read, 0)
    state.write(read)
    assert backend.current.busy is None
    state.remove(read)
    assert state.read() is None


def test_a_key_with_signals_or_suspended_runs_is_listed() -> None:
    backend = FakeBackend(lambda: 0, None)
    backend.key = "a"
    state = backend.keyed_state()
    for waiting in (Head("job", signals_expire=5), Head("job", suspended=[SLEEPING])):
        state.write(waiting)
        assert backend.waiting() == [("a", "a")]
        state.write(Head("job", is_busy=True))
        assert backend.waiting() == []


def test_memory_of_a_run_that_is_not_committed_is_not_in_the_head() -> None:
    with OperatorHarness(Waiting, lambda record: record[0], auto_run=False, **UNFORCED) as harness:
        harness.push(("a", 4))
        harness.run_until_idle()
        harness.push(("a", 5))
        [subtask] = harness._subtasks
        actor = subtask.processor.actors["sa"]
        deadline = time.monotonic() + 30
        while not actor.ended and time.monotonic() < deadline:
            time.sleep(0.001)
        harness.push(("a", 6))
        head = Head.unpack(harness.state("a").head or b"")
        assert (head.nodes or {})["count"] == ValueCodec().encode(1)
        assert sorted(head.inputs) == [1, 2]
