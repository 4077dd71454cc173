"""Calls that run side by side, and calls of actions that fail, are retried or time out."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import (
    EFFECTS,
    SEEN,
    calls_of,
    counted,
    crash,
    crash_and_replay,
    effect,
    effect_async,
    forget,
    journal,
    one_action,
)

from flink_agents import Agent, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append, at_record

pytestmark = pytest.mark.executes_once

COUNT = 8


class Order:
    """In which order parallel calls end: each waits for the one that is to end before it."""

    steps = 1
    done: dict[int, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()
    Order.steps = 1
    Order.done = {}


async def in_order(number: int) -> int:
    """End behind the neighbour that ``Order.steps`` names."""
    EFFECTS.append(("began", number))
    neighbour = number - Order.steps
    done_event = Order.done.setdefault(number, asyncio.Event())
    if 0 <= neighbour < COUNT and Order.steps:
        await Order.done.setdefault(neighbour, asyncio.Event()).wait()
    done_event.set()
    EFFECTS.append(("ended", number))
    return number * 10


async def gather_them(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("act")
    calls = [ctx.durable_execute_async(in_order, number) for number in range(COUNT)]
    return OutputEvent(output=await asyncio.gather(*calls))


async def group_them(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("act")
    group = asyncio.TaskGroup()
    async with group:
        tasks = [group.create_task(ctx.durable_execute_async(in_order, number)) for number in range(COUNT)]
    return OutputEvent(output=[task.result() for task in tasks])


PARALLEL = [gather_them, group_them]


@pytest.mark.parametrize("act", PARALLEL)
@pytest.mark.parametrize("steps", [1, -1])
def test_parallel_calls_keep_their_results_whatever_order_they_end_in(
    act: Callable[..., Any], steps: int
) -> None:
    for point in range(COUNT + 1):
        clean_up(steps)
        faults = Faults(at_append(point, Fault.REFUSED))
        with OperatorHarness(one_action(act), store=faults.store) as harness:
            snapshot = harness.snapshot()
            with crash():
                harness.push(1)
            harness.restore(snapshot)
            # Calls beside the one whose record was refused may have been recorded before the end.
            recorded = {record.index for record in journal(faults) if record.kind is RecordKind.CALL}
            previous_counts = counted()
            # What is left to do ends the other way round, and nothing waits for what is recorded.
            Order.steps, Order.done = -steps, {number: set_event() for number in recorded}
            assert harness.push(1) == [[number * 10 for number in range(COUNT)]]
            again = {
                number
                for number in range(COUNT)
                if counted()["began", number] > previous_counts["began", number]
            }
            assert again == set(range(COUNT)) - recorded
            assert len(recorded) >= point
            calls = [record for record in journal(faults) if record.kind is RecordKind.CALL]
            assert sorted(record.index for record in calls) == list(range(COUNT))
            # What ended in this attempt ended behind all that was recorded before it.
            orders = {record.index: call.order for record, call in zip(calls, calls_of(calls), strict=True)}
            assert len(set(orders.values())) == COUNT
            last = max((orders[index] for index in recorded), default=-1)
            assert all(orders[index] > last for index in again)


def clean_up(steps: int) -> None:
    forget()
    Order.steps = steps
    Order.done = {}


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def fail_or(value: Any) -> Any:
    EFFECTS.append(value)
    if value < 0:
        raise ValueError(value)
    return value


async def gather_failures(event: Any, ctx: Any) -> OutputEvent:
    calls = [ctx.durable_execute_async(fail_or, value) for value in (1, -2, 3, -4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    SEEN.append([repr(result) for result in results])
    await ctx.durable_execute_async(effect, "next")
    return OutputEvent(output=SEEN[-1])


def test_failures_among_parallel_calls_are_part_of_the_history() -> None:
    harness = crash_and_replay(one_action(gather_failures))
    assert SEEN[0] == SEEN[1] == ["1", "ValueError(-2)", "3", "ValueError(-4)"]
    assert sorted(map(str, EFFECTS)) == ["-2", "-4", "1", "3", "next"]
    assert harness.outputs == [SEEN[0]]


# -- actions that fail --------------------------------------------------------------------


class Failing:
    left = 0


async def call_and_fail(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("act")
    first = await ctx.durable_execute_async(effect, "first")
    ctx.short_term_memory.append("calls", first)
    second = await ctx.durable_execute_async(effect_async, "second")
    if Failing.left > 0:
        Failing.left -= 1
        raise ConnectionError("failed")
    return OutputEvent(output=(first, second))


def block_and_fail(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("act")
    first = ctx.durable_execute(effect, "first")
    ctx.short_term_memory.append("calls", first)
    second = ctx.durable_execute(effect_async, "second")
    if Failing.left > 0:
        Failing.left -= 1
        raise ConnectionError("failed")
    return OutputEvent(output=(first, second))


@pytest.mark.parametrize("act", [call_and_fail, block_and_fail])
def test_a_retry_of_an_action_uses_its_recorded_calls(act: Callable[..., Any]) -> None:
    Failing.left = 3
    with OperatorHarness(one_action(act, retry=RetryPolicy(initial_interval=0))) as harness:
        assert harness.push(1) == [("first", "second")]
        assert harness.memory() == {"calls": ["first"]}
    assert EFFECTS == ["first", "second"]
    # A def action that makes durable calls begins in a thread of the pool, not anew there.
    assert len(SEEN) == 4


async def fail_after_call(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(effect, "first")
    await ctx.durable_execute_async(fail_or, -1)
    return OutputEvent(output="not reached")


async def then_go_on(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("second action")
    return OutputEvent(output=await ctx.durable_execute_async(effect, "other"))


@pytest.mark.parametrize("policy", ["ignore", "dead-letter"])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNACKNOWLEDGED])
def test_a_failure_that_the_run_went_on_without_is_the_same_on_replay(policy: str, fault: Fault) -> None:
    agent = Agent(name="two").add_action("first", [InputEvent], fail_after_call, on_error=policy)
    agent.add_action("second", [InputEvent], then_go_on)
    faults = Faults(at_record(RecordKind.ACTION, fault, 1))
    with OperatorHarness(agent, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push(1)
        assert [call.error is None for call in calls_of(journal(faults))] == [True, False, True]
        harness.restore(snapshot)
        assert harness.push(1) == ["other"]
        assert EFFECTS == ["first", -1, "other"]
        letters = harness.dead_letters
        assert len(letters) == (policy == "dead-letter")
        assert all((letter.error_type, letter.error_message) == ("ValueError", "-1") for letter in letters)
        # The end of what failed is recorded, as that of what did not.
        assert harness.run_metrics["action_replays"] == 1 + (fault is Fault.UNACKNOWLEDGED)


def test_a_failure_of_the_job_calls_again_but_for_its_successes() -> None:
    with OperatorHarness(one_action(fail_after_call)) as harness:
        snapshot = harness.snapshot()
        for _ in range(3):
            with pytest.raises(ActionFailedError, match="ValueError: -1"):
                harness.push(1)
            harness.restore(snapshot)
    assert counted() == {"first": 1, -1: 3}


async def shield_and_leave(event: Any, ctx: Any) -> OutputEvent:
    """Begin a call that is still going on when the action ends."""
    first = await ctx.durable_execute_async(effect, "first")
    ctx.left = asyncio.ensure_future(ctx.durable_execute_async(wait_long, "left"))
    await asyncio.sleep(0)
    return OutputEvent(output=first)


async def wait_long(value: Any) -> None:
    EFFECTS.append(value)
    await asyncio.Event().wait()


def test_a_call_that_the_action_left_behind_is_ended_with_it() -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.UNACKNOWLEDGED))
    with OperatorHarness(one_action(shield_and_leave), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push(1)
        harness.restore(snapshot)
        assert harness.push_all([1, 2]) == ["first", "first"]
    assert EFFECTS.count("first") == 2


async def never_awaited(event: Any, ctx: Any) -> OutputEvent:
    calls = [ctx.durable_execute_async(fail_or, number) for number in range(3)]
    last = await calls[2]
    for call in calls[:2]:
        call.close()
    return OutputEvent(output=last)


def test_a_call_that_was_never_awaited_has_its_number_all_the_same() -> None:
    harness = crash_and_replay(one_action(never_awaited))
    assert harness.outputs == [2]
    assert EFFECTS == [2]


def test_flinks_thread_and_the_loop_encode_at_the_same_time() -> None:
    """Inputs that wait and records of calls are written by one codec in two threads."""
    codec, wrong = ValueCodec(), list[Any]()

    def encode(tag: str) -> None:
        for number in range(5000):
            value = (tag, (number, ("x" * 50, (tag,))))
            if wrong or codec.decode(codec.encode(value)) != value:
                wrong.append(value)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=encode, args=(f"thread{number}",)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
