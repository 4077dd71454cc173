"""Actions whose end was recorded, and counts of what is replayed."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from durable_tools import (
    EFFECTS,
    SEEN,
    Money,
    Order,
    Point,
    crash,
    crash_and_replay,
    effect,
    effect_async,
    forget,
    one_action,
)

from flink_agents import Agent, Event, InputEvent, OutputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


# -- actions that ended -------------------------------------------------------------------


class Paid(Event):
    total: int
    money: Money


async def pay(event: InputEvent, ctx: Any) -> list[Event]:
    SEEN.append("pay")
    memory = ctx.short_term_memory
    memory.append("orders", event.input)
    memory.set("last.total", await ctx.durable_execute_async(effect_async, event.input))
    memory.set("gone", 1)
    memory.delete("gone")
    ctx.sensory_memory.set("seen", (1, 2))
    ctx.emit_to("audit", Order(number=event.input))
    return [
        Paid(total=event.input, money=Money(Decimal(1), "EUR")),
        OutputEvent(output=Point(1, event.input)),
    ]


async def ship(event: Paid, ctx: Any) -> OutputEvent:
    SEEN.append("ship")
    total = await ctx.durable_execute_async(effect_async, ("ship", event.total))
    memory = ctx.short_term_memory
    lineage = (event.id, event.upstream_event_id, event.upstream_action_name)
    seen = ctx.sensory_memory.get("seen"), memory.get("last.total"), memory.get("orders")
    return OutputEvent(output=(total, event.money, seen, lineage))


class Shop(Agent):
    side_outputs = {"audit": Order}


def shop() -> Agent:
    return Shop(name="shop").add_action("pay", [InputEvent], pay).add_action("ship", [Paid], ship)


def observed(harness: OperatorHarness) -> Any:
    return harness.outputs, harness.side_output("audit"), harness.memory(), harness.sequence_number()


def test_an_action_that_was_recorded_is_not_executed_again() -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.UNACKNOWLEDGED, number=2))
    with OperatorHarness(shop()) as plain:
        plain.push_all([1, 2])
        expected = observed(plain)
    forget()
    with OperatorHarness(shop(), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push_all([1, 2])
        assert SEEN == ["pay", "ship", "pay"]
        harness.restore(snapshot)
        harness.push_all([1, 2])
        assert SEEN == ["pay", "ship", "pay", "ship"]
        assert EFFECTS == [1, ("ship", 1), 2, ("ship", 2)]
        assert observed(harness) == expected
        assert harness.run_metrics["action_replays"] == 3


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST])
def test_each_effect_of_a_chain_happens_once_if_actions_were_not_recorded(fault: Fault) -> None:
    for number in range(4):
        forget()
        faults = Faults(at_record(RecordKind.ACTION, fault, number))
        with OperatorHarness(shop(), store=faults.store) as harness:
            snapshot = harness.snapshot()
            with crash():
                harness.push_all([1, 2])
            harness.restore(snapshot)
            harness.push_all([1, 2])
            assert EFFECTS == [1, ("ship", 1), 2, ("ship", 2)]
            assert len(SEEN) == 5


async def wait_for_it(event: InputEvent, ctx: Any) -> None:
    try:
        call = ctx.durable_execute_async(effect_async_slow, event.input)
        SEEN.append(await asyncio.wait_for(call, 0.01))
    except TimeoutError:
        SEEN.append("late")
    await ctx.durable_execute_async(effect, "next")


async def effect_async_slow(value: Any) -> Any:
    EFFECTS.append(value)
    await asyncio.Event().wait()


def test_a_call_that_was_cancelled_by_a_timeout_is_so_again() -> None:
    crash_and_replay(one_action(wait_for_it), "slow")
    assert SEEN == ["late", "late"]
    assert EFFECTS == ["slow", "next"]


def three(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=[ctx.durable_execute(effect, number) for number in range(3)])


def test_what_is_replayed_is_counted() -> None:
    agent = one_action(three, blocking=True)
    harness = crash_and_replay(agent, choose=at_record(RecordKind.CALL, Fault.REFUSED, 1))
    assert EFFECTS == [0, 1, 1, 2]
    metrics = harness.run_metrics
    counts = {name: metrics[f"action_calls_{name}"] for name in ("replayed", "reexecuted", "recorded")}
    assert counts == {"replayed": 1, "reexecuted": 2, "recorded": 2}
    assert metrics["action.act.calls_reexecuted"] == 2
    assert "action_replays" not in metrics


def test_an_action_that_is_taken_from_its_record_is_counted() -> None:
    agent = one_action(three, blocking=True)
    harness = crash_and_replay(agent, choose=at_record(RecordKind.ACTION, Fault.UNACKNOWLEDGED))
    assert EFFECTS == [0, 1, 2]
    assert harness.run_metrics["action_replays"] == 1
    assert "action_calls_reexecuted" not in harness.run_metrics


def test_calls_that_are_made_for_the_first_time_are_not_counted_as_made_again() -> None:
    harness = OperatorHarness(one_action(three, blocking=True))
    harness.push(1)
    assert harness.run_metrics["action_calls_recorded"] == 3
    assert "action_calls_reexecuted" not in harness.run_metrics
