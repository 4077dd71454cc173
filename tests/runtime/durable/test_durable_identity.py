"""What the outside learns of a run belongs to its input, whatever comes first after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import EFFECTS, crash, forget, journal

from flink_agents import NOT_DONE, Agent, Event, InputEvent, OutputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def _forget() -> None:
    forget()


def charge(order: str, identity: str) -> str:
    """A service that learns an identity."""
    EFFECTS.append((order, identity))
    return order


async def charge_async(order: str, identity: str) -> str:
    return charge(order, identity)


def charge_by_key(order: str, idempotency_key: str) -> str:
    return charge(order, idempotency_key)


async def charge_by_key_async(order: str, *, idempotency_key: str) -> str:
    return charge(order, idempotency_key)


def fail(order: str) -> None:
    raise ConnectionError(order)


class Second(Event):
    order: str


async def with_uuid(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.input, str(ctx.uuid4()))


async def with_random(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge_async, event.input, str(ctx.random().random()))


async def with_event_id(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.input, event.id)


async def with_sequence_number(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.input, str(ctx.sequence_number))


async def with_ordinal(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.input, str(event.lineage.ordinal))


async def with_key(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge_by_key, event.input)


async def with_key_on_loop(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge_by_key_async, event.input)


async def with_key_in_branch(event: Any, ctx: Any) -> None:
    async def branch() -> None:
        await ctx.durable_execute_async(charge_by_key, event.input)

    await asyncio.gather(branch(), asyncio.sleep(0))


async def with_key_behind_failure(event: Any, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(fail, event.input)
    except ConnectionError:
        await ctx.durable_execute_async(charge_by_key, event.input)


def in_thread_with_key(event: Any, ctx: Any) -> None:
    ctx.durable_execute(charge_by_key, event.input)


def in_thread_with_uuid(event: Any, ctx: Any) -> None:
    ctx.durable_execute(charge, event.input, str(ctx.uuid4()))


def in_thread_with_event_id(event: Any, ctx: Any) -> None:
    ctx.durable_execute(charge, event.input, event.id)


async def _never_done(*args: Any, **kwargs: Any) -> Any:
    return NOT_DONE


async def with_key_and_reconciler(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge_by_key, event.input, reconciler=_never_done)


ACTIONS: dict[str, Callable[..., Any]] = {
    act.__name__: act
    for act in (
        with_uuid,
        with_random,
        with_event_id,
        with_sequence_number,
        with_ordinal,
        with_key,
        with_key_on_loop,
        with_key_in_branch,
        with_key_behind_failure,
        with_key_and_reconciler,
        in_thread_with_key,
        in_thread_with_uuid,
        in_thread_with_event_id,
    )
}


def first(event: Any, ctx: Any) -> Second:
    return Second(order=event.input)


async def upstream(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.order, event.upstream_event_id)


async def id_of_second(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge, event.order, event.id)


def _agent(name: str) -> Agent:
    if name in ACTIONS:
        return Agent(name="shop").add_action("act", [InputEvent], ACTIONS[name])
    act = {"upstream": upstream, "id_of_second": id_of_second}[name]
    return Agent(name="shop").add_action("first", [InputEvent], first).add_action("act", [Second], act)


@pytest.mark.parametrize("name", [*ACTIONS, "upstream", "id_of_second"])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST])
def test_an_order_keeps_its_identity_when_another_comes_first(name: str, fault: Fault) -> None:
    """Two sources feed one key. The process dies between the effect and its record."""
    faults = Faults(at_record(RecordKind.CALL, fault, 0 if name != "with_key_behind_failure" else 1))
    with OperatorHarness(_agent(name), store=faults.store, auto_run=False) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push("order-1")
            harness.run_until_idle()
        harness.restore(snapshot)
        for order in ("order-2", "order-1"):
            harness.push(order)
        harness.run_until_idle()
    identities = {
        order: {identity for effect_order, identity in EFFECTS if effect_order == order}
        for order, _ in EFFECTS
    }
    assert len(identities["order-1"]) == len(identities["order-2"]) == 1
    assert identities["order-1"] != identities["order-2"]


async def by_key(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(charge_by_key_async, event.input)


def test_nobody_learns_anything_of_a_run_that_is_not_bound_to_its_input() -> None:
    faults = Faults(at_record(RecordKind.RUN, Fault.REFUSED))
    agent = Agent(name="shop").add_action("act", [InputEvent], by_key)
    with OperatorHarness(agent, store=faults.store) as harness, crash():
        harness.push("order-1")
    assert EFFECTS == []


async def without(event: Any, ctx: Any) -> OutputEvent:
    ctx.short_term_memory.set("last", event.input)
    return OutputEvent(output=await ctx.durable_execute_async(charge, event.input, "none"))


def test_a_run_of_which_nobody_learns_anything_pays_nothing() -> None:
    faults = Faults()
    with OperatorHarness(_agent("with_key"), store=faults.store) as harness:
        harness.push("order-1")
    assert [[record.kind for record in records] for _, records, _ in faults.appends] == [
        [RecordKind.RUN],
        [RecordKind.CALL],
        [RecordKind.ACTION],
    ]
    faults = Faults()
    plain = Agent(name="shop").add_action("act", [InputEvent], without)
    with OperatorHarness(plain, store=faults.store) as harness:
        harness.push("order-1")
    assert [[record.kind for record in records] for _, records, _ in faults.appends] == [
        [RecordKind.RUN, RecordKind.CALL],
        [RecordKind.ACTION],
    ]


async def side_by_side(event: Any, ctx: Any) -> None:
    await asyncio.gather(*(ctx.durable_execute_async(charge_by_key, f"{n}") for n in range(5)))


def test_calls_that_begin_side_by_side_share_the_append_that_binds_them() -> None:
    faults = Faults()
    agent = Agent(name="shop").add_action("act", [InputEvent], side_by_side)
    with OperatorHarness(agent, store=faults.store) as harness:
        harness.push("order")
    assert sum(record.kind is RecordKind.RUN for record in journal(faults)) == 1
    assert len({key for _, key in EFFECTS}) == 5
