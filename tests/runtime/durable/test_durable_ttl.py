"""Replays of runs whose memory has expired since: they see what the first execution saw."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, crash, effect, forget, one_action

from flink_agents import InputEvent, OutputEvent
from flink_agents.api.action_state import ActionStateStore, RecordKind
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append, at_record
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

TTL = {"memory.short-term.ttl": timedelta(minutes=10)}
PATHS = ["a", "b", "tree.x", "tree.y", "tree.deep.z", "list"]


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


def step(memory: Any, op: str, path: str, value: int) -> Any:
    """One operation; what it tells."""
    if op == "get":
        stored_value = memory.get(path)
        return (
            stored_value if isinstance(stored_value, (int, list, type(None))) else stored_value.field_names()
        )
    if op == "set":
        memory.delete(path)
        memory.set(path, value)
    elif op == "append":
        memory.delete("list") if not isinstance(memory.get("list", []), list) else None
        memory.append("list", value)
    elif op == "delete":
        return memory.delete(path)
    elif op == "exists":
        return memory.exists(path)
    elif op == "branch":
        return sorted(memory.get("tree").fields()) if memory.exists("tree") else None
    else:
        return memory.get("tree").field_names() if memory.exists("tree") else None
    return None


async def follow(event: InputEvent, ctx: Any) -> OutputEvent:
    """Do what the input says; each call follows from all that was seen before it."""
    name, steps = event.input
    seen: list[Any] = []
    for number, (op, path, value) in enumerate(steps):
        if op == "call":
            await ctx.durable_execute_async(effect, (name, number, list(seen)))
        else:
            seen.append(step(ctx.short_term_memory, op, path, value))
    return OutputEvent(output=(name, seen))


def follow_in_thread(event: InputEvent, ctx: Any) -> OutputEvent:
    """The same in a thread."""
    name, steps = event.input
    seen: list[Any] = []
    for number, (op, path, value) in enumerate(steps):
        if op == "call":
            ctx.durable_execute(effect, (name, number, list(seen)))
        else:
            seen.append(step(ctx.short_term_memory, op, path, value))
    return OutputEvent(output=(name, seen))


def program(chance: random.Random, name: int) -> Any:
    ops = ["get", "set", "append", "delete", "exists", "branch", "names", "call", "call", "call"]
    steps = [(chance.choice(ops), chance.choice(PATHS), chance.randrange(100)) for _ in range(12)]
    return (name, [*steps, ("call", "", 0)])


def effect_counts() -> Counter[Any]:
    """How often each call of each input took effect."""
    return Counter((name, number) for name, number, _ in EFFECTS)


@factors(strength=1, seed=range(25), act=[follow, follow_in_thread])
def test_a_replay_sees_the_memory_of_the_first_execution(seed: int, act: Any) -> None:
    chance = random.Random(seed)
    committed, again = [[program(chance, 10 * n + m) for m in range(4)] for n in range(2)]
    faults = Faults()
    agent = one_action(act, timeout=60) if seed % 3 == 0 else one_action(act)
    with OperatorHarness(agent, config=TTL, store=faults.store) as harness:
        for record in committed:
            harness.push(record)
            harness.advance_time(timedelta(minutes=chance.choice([0, 3, 6])))
        snapshot = harness.snapshot()
        # Each append that is not acknowledged ends an attempt. The clock goes on.
        for _ in range(6):
            faults.choose = at_append(len(faults.appends) + chance.randrange(12), Fault.UNACKNOWLEDGED)
            try:
                for record in again:
                    harness.push(record)
            except Exception as error:
                assert "unknown" in str(error), error
            harness.advance_time(timedelta(minutes=chance.choice([0, 5, 11])))
            harness.restore(snapshot)
        faults.choose = None
        for record in again:
            harness.push(record)
        assert set(effect_counts().values()) == {1}
        calls = [
            (name, n)
            for name, steps in committed + again
            for n, operation in enumerate(steps)
            if operation[0] == "call"
        ]
        assert sorted(effect_counts()) == sorted(calls)


# -- what is committed afterwards ----------------------------------------------------------------


async def read_and_write(event: InputEvent, ctx: Any) -> OutputEvent:
    memory = ctx.short_term_memory
    if event.input == "first":
        memory.set("only read", 1)
        memory.set("tree.read", 1)
        memory.append("list", "first")
        memory.set("deleted", 1)
        return OutputEvent(output="first")
    seen = [memory.get("only read"), memory.exists("tree.read"), memory.get("list"), memory.get("deleted")]
    await ctx.durable_execute_async(effect, seen)
    memory.append("list", "second")
    memory.delete("deleted")
    memory.set("new", 2)
    SEEN.append(seen)
    return OutputEvent(output=seen)


@pytest.mark.parametrize("kind", [RecordKind.ACTION, None])
def test_what_a_replay_only_read_stays_expired_and_what_it_wrote_is_kept(kind: RecordKind | None) -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED) if kind else None)
    with OperatorHarness(one_action(read_and_write), config=TTL, store=faults.store) as harness:
        harness.push("first")
        snapshot = harness.snapshot()
        if kind:
            with crash():
                harness.push("second")
        else:
            harness.push("second")
        harness.advance_time(timedelta(minutes=11))
        harness.restore(snapshot)
        harness.push("second")
        assert harness.memory() == {"list": ["first", "second"], "new": 2}
        assert EFFECTS == [[1, True, ["first"], 1]]
        harness.push("third")
        assert EFFECTS[1] == [None, False, ["first", "second"], None]


async def read_much(event: InputEvent, ctx: Any) -> None:
    memory = ctx.short_term_memory
    if event.input == "write":
        for number in range(20):
            memory.set(f"part.{number}", str(number) * 50_000)
        memory.set("one", "x" * 300_000)
        return
    fields = memory.get("part").fields()
    await ctx.durable_execute_async(effect, sum(map(len, fields.values())))
    await ctx.durable_execute_async(effect, len(memory.get("one") or ""))


@pytest.mark.parametrize("limit", [30_000, 100_000, 8 * 1024 * 1024])
def test_more_memory_than_fits_into_a_record(limit: int) -> None:
    place = MemoryPlace()

    def make() -> ActionStateStore:
        return MemoryStore(place, max_record_bytes=limit)

    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED), make)
    with OperatorHarness(one_action(read_much), config=TTL, store=faults.store) as harness:
        harness.push("write")
        snapshot = harness.snapshot()
        with crash():
            harness.push("read")
        harness.advance_time(timedelta(minutes=11))
        harness.restore(snapshot)
        harness.push("read")
        assert EFFECTS == [1_500_000, 300_000]
        assert all(len(record.data) <= limit for _, records, _ in faults.appends for record in records)


def test_runs_without_a_time_to_live_record_nothing_more() -> None:
    """Unless they come behind a run of which nothing is recorded: ``test_loop_unrecorded`` has that."""
    faults = Faults()
    with OperatorHarness(one_action(read_and_write), store=faults.store) as harness:
        harness.push("second")
        kinds = [(record.kind, record.index) for _, records, _ in faults.appends for record in records]
    assert kinds == [(RecordKind.RUN, 0), (RecordKind.CALL, 0), (RecordKind.ACTION, 1)]
