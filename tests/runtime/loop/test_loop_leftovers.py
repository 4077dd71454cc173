"""What goes on behind the end of an attempt records nothing, and what opens the store may raise anything."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.action_state import ActionStateStore, Owner, RecordKind
from flink_agents.connectors.action_state.memory.store import MemoryStore
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.codec import ValueCodec
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
        snapshot = harness.snapshot()
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
        harness.restore(snapshot)
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


REACHED = threading.Event()


async def wait_for_ever() -> str:
    REACHED.set()
    await asyncio.get_running_loop().create_future()
    return "never"


async def go_on_anyway(event: InputEvent, ctx: Any) -> Event:
    try:
        answer = await ctx.durable_execute_async(wait_for_ever if event.input == "first" else answer_at_once)
    except asyncio.CancelledError:
        answer = "cancelled"
    return OutputEvent(output=answer)


def answer_at_once() -> str:
    return "called again"


def test_an_action_that_goes_on_when_the_attempt_ends_records_nothing() -> None:
    """Its call was cancelled by the end of the attempt: how it goes on is nothing that happened."""
    REACHED.clear()
    faults = Faults()
    agent = Agent(name="late").add_action("ask", [InputEvent], go_on_anyway)
    with OperatorHarness(agent, store=faults.store, auto_run=False, forced_serialization=False) as harness:
        snapshot = harness.snapshot()
        harness.push("first")
        assert REACHED.wait(60)
        harness.restore(snapshot)
        assert [append for append in faults.appends if append[2] is None] == []
        harness.push("second")
        harness.run_until_idle(60)
        assert harness.outputs == ["called again"]


MADE: list[Coroutine[Any, Any, Event]] = []


async def later() -> Event:
    return OutputEvent(output="later")


def return_late(event: InputEvent, ctx: Any) -> Any:
    REACHED.set()
    assert GO_ON.wait(60)
    MADE.append(later())
    return MADE[-1]


@pytest.mark.parametrize("end", ["timeout", "restart"])
def test_a_coroutine_that_comes_when_nobody_waits_for_it_is_closed(end: str) -> None:
    """A function of a thread cannot be interrupted: it returns behind the end of its attempt."""
    for event in (REACHED, GO_ON):
        event.clear()
    MADE.clear()
    options: dict[str, Any] = {"timeout": 0.05, "on_error": "dead-letter"} if end == "timeout" else {}
    agent = Agent(name="late").add_action("return_late", [InputEvent], return_late, **options)
    with OperatorHarness(agent, config={"run.inline": False}, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push("first")
        assert REACHED.wait(60)
        if end == "timeout":
            harness.run_until_idle(60)
            assert [letter.error_type for letter in harness.dead_letters] == ["ActionTimeoutError"]
        else:
            threading.Timer(0.1, GO_ON.set).start()
            harness.restore(snapshot)
        GO_ON.set()
        for _ in range(6000):
            if MADE and inspect.getcoroutinestate(MADE[0]) == inspect.CORO_CLOSED:
                return
            time.sleep(0.01)
    raise AssertionError("the coroutine was left to the collector of garbage")


class Collected:
    """A harness that goes in its own loop, as where the collector of cycles works there."""

    harness: OperatorHarness | None = None
    outcome: str | None = None
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    over = threading.Event()

    @classmethod
    def collect(cls) -> None:
        try:
            assert cls.harness is not None
            cls.harness.__del__()
        except BaseException as error:
            cls.outcome = repr(error)
        cls.over.set()


async def is_collected(event: InputEvent, ctx: Any) -> Event:
    Collected.loop, Collected.thread = asyncio.get_running_loop(), threading.current_thread()
    return OutputEvent(output=event.input)


def test_a_harness_that_is_collected_in_its_own_loop_waits_for_nothing() -> None:
    Collected.over.clear()
    Collected.harness = OperatorHarness(
        Agent(name="collected").add_action("act", [InputEvent], is_collected), config={"run.inline": False}
    )
    Collected.harness.push_all(["x"])
    assert Collected.thread is not threading.current_thread()
    Collected.loop.call_soon_threadsafe(Collected.collect)
    assert Collected.over.wait(60)
    assert Collected.outcome is None
    Collected.thread.join(60)
    assert not Collected.thread.is_alive()
