"""What goes on behind the end of an attempt records nothing, and what opens the store may raise anything."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.action_state import ActionStateStore, Owner, RecordKind
from flink_agents.connectors.action_state.memory import MemoryStore
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults

pytestmark = pytest.mark.executes_once

GO_ON = threading.Event()
LEFT = threading.Event()
ANSWERS = iter(())


def answer() -> str:
    """The first call waits until the action has gone on without it."""
    number = next(ANSWERS)
    if number == "first":
        GO_ON.wait(60)
    return number


def ask(event: InputEvent, ctx: Any) -> Event:
    try:
        return OutputEvent(output=ctx.durable_execute(answer))
    finally:
        if GO_ON.is_set():
            LEFT.set()


def test_a_call_of_an_attempt_that_is_over_is_not_recorded() -> None:
    """The attempt's time is over while its thread still calls; the next one has an answer by then."""
    global ANSWERS
    ANSWERS = iter(["first", "second"])
    GO_ON.clear()
    LEFT.clear()
    faults = Faults()
    agent = Agent(name="late").add_action(
        "ask", [InputEvent], ask, timeout=0.05, retry=RetryPolicy(initial_interval=0)
    )
    with OperatorHarness(agent, store=faults.store, forced_serialization=False) as harness:
        before = harness.snapshot()
        assert harness.push("x") == ["second"]
        GO_ON.set()
        assert LEFT.wait(60)
        codec = ValueCodec()
        calls = [
            CallRecord.unpack(codec, record.data)
            for _, records, _ in faults.appends
            for record in records
            if record.kind is RecordKind.CALL
        ]
        assert [codec.decode(call.value or b"") for call in calls] == ["second"]
        harness.restore(before)
        assert harness.push("x") == ["second"]


class Slow(MemoryStore):
    """Gives up while it opens, with the error that waiting for it raises as well."""

    async def open(self, owner: Owner | None) -> None:
        raise TimeoutError("nobody answered")


def test_a_store_that_times_out_while_it_opens() -> None:
    def store() -> ActionStateStore:
        return Slow()

    agent = Agent(name="late").add_action("ask", [InputEvent], ask)
    with pytest.raises(TimeoutError, match="nobody answered"):
        OperatorHarness(agent, store=store, forced_serialization=False)
