"""Recorded runs behind runs of which nothing is recorded: a replay sees what the first execution saw."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, crash, effect_async, forget, journal

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.runtime.journal.memory_reads import recorded_reads
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.factors import factors


@pytest.fixture(autouse=True)
def nothing_yet() -> Iterator[None]:
    forget()
    yield
    forget()


class Mixed(Agent):
    """Writes its input into memory in one of several ways, or passes what it reads to a durable call."""

    @action(InputEvent)
    async def read(self, event: InputEvent, ctx: Any) -> Any:
        how, name = event.input
        memory = ctx.short_term_memory
        if how == "write":
            memory.set("last", name)
            return None
        if how == "write later":
            await asyncio.sleep(0)
            memory.set("last", name)
            return None
        last_name = memory.get("last")
        SEEN.append((name, last_name))
        return OutputEvent(output=(name, await ctx.durable_execute_async(effect_async, (name, last_name))))


class MixedAtOnce(Agent):
    """Writes on Flink's own thread, and calls in another action."""

    @action(InputEvent, when=lambda event: event.input[0] != "read")
    def write(self, event: InputEvent, ctx: Any) -> None:
        ctx.short_term_memory.set("last", event.input[1])

    @action(InputEvent, when=lambda event: event.input[0] == "read")
    async def read(self, event: InputEvent, ctx: Any) -> OutputEvent:
        name = event.input[1]
        last_name = ctx.short_term_memory.get("last")
        SEEN.append((name, last_name))
        return OutputEvent(output=(name, await ctx.durable_execute_async(effect_async, (name, last_name))))


BEFORE = [("write", "a"), ("write later", "b")]
BEHIND = [("write", "c"), ("read", "y")]


@pytest.mark.executes_once
@factors(
    order=list(permutations(range(5)))[::7],
    kind=[RecordKind.CALL, RecordKind.ACTION],
    agent=[Mixed, MixedAtOnce],
    committed=[True, False],
)
def test_a_replay_reads_what_was_read(
    order: tuple[int, ...], kind: RecordKind, agent: type[Agent], committed: bool
) -> None:
    """Whatever the order in which the inputs of several sources come again."""
    inputs = [*BEFORE, ("read", "x"), *BEHIND]
    faults = Faults(at_record(kind, Fault.UNACKNOWLEDGED))
    harness = OperatorHarness(agent, store=faults.store, auto_run=False)
    snapshot = harness.snapshot()
    with crash():
        for record in inputs:
            harness.push(record)
            if committed:
                harness.run_until_idle()
        harness.run_until_idle()
    harness.restore(snapshot)
    for at in order:
        harness.push(inputs[at])
    harness.run_until_idle()
    assert ("x", "b") in SEEN
    assert EFFECTS.count(("x", "b")) == 1
    assert [effect for effect in EFFECTS if effect[0] == "x"] == [("x", "b")]
    assert ("x", ("x", "b")) in harness.outputs
    assert len(harness.outputs) == 2


@pytest.mark.executes_once
def test_only_behind_a_run_without_records_is_recorded_what_is_read() -> None:
    faults = Faults(lambda *at: None)
    harness = OperatorHarness(Mixed, store=faults.store)
    for name in range(3):
        harness.push(("read", name))
    assert not recorded_reads(ValueCodec(False), journal(faults))
    harness.push(("write", "a"))
    harness.push(("read", "x"))
    assert recorded_reads(ValueCodec(False), journal(faults))
