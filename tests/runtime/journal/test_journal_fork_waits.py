"""A run that waits at the savepoint has the same idempotency keys in a fork; later runs have not.

A service that deduplicates does its work once for both jobs. A fork that must do everything itself needs
other accounts, or an argument of its own in the key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, ApprovalRequest, Event, InputEvent, OutputEvent, action
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from tests.suite import conditions
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

Finish = Callable[[OperatorHarness], Any]


def charge(order: str, idempotency_key: str) -> str:
    return idempotency_key


async def paid(ctx: Any, order: str) -> OutputEvent:
    return OutputEvent(output=(order, await ctx.durable_execute_async(charge, order)))


class Sleeps(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(60)
        return await paid(ctx, event.input)


class WaitsForSignal(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.wait_for_signal("go")
        return await paid(ctx, event.input)


class NeedsApproval(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return await paid(ctx, event.input)


class Due(Event):
    order: str


class Delays(Agent):
    @action(InputEvent)
    async def plan(self, event: InputEvent, ctx: Any) -> None:
        ctx.send_event(Due(order=event.input), delay=timedelta(seconds=60))

    @action(Due)
    async def pay(self, event: Due, ctx: Any) -> OutputEvent:
        return await paid(ctx, event.order)


class Calls(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Sleeps, event.input))


def let_time_pass(harness: OperatorHarness) -> None:
    harness.advance_time(timedelta(seconds=61))
    harness.run_until_idle()


def send_signal(harness: OperatorHarness) -> None:
    harness.signal("ada", "go")


REQUESTS: list[ApprovalRequest] = []


def approve(harness: OperatorHarness) -> None:
    # The request of the run that waits at the savepoint was emitted by the origin.
    REQUESTS.extend(harness.approvals)
    answer = (harness.approvals or REQUESTS)[-1 if harness.approvals else 0].approve(by="Ada")
    harness.signal(answer.key, answer.name, answer.value, wait=answer.wait)


WAITS: list[tuple[type[Agent], Finish, bool]] = [
    # The agent, what ends its wait, and if the first run has the same key in both jobs.
    (Sleeps, let_time_pass, True),
    (WaitsForSignal, send_signal, True),
    (NeedsApproval, approve, True),
    (Calls, let_time_pass, True),
    # A delayed event starts a run of its own when it is due.
    (Delays, let_time_pass, False),
]


def job(agent: type[Agent], place: MemoryPlace, name: str, **options: str) -> OperatorHarness:
    return OperatorHarness(
        agent,
        lambda order: "ada",
        config={"job-identifier": name, **options},
        store=lambda: MemoryStore(place),
        job_id=f"{abs(hash(name)):032x}"[:32],
        **conditions.UNFORCED,
    )


@each_case(("agent", "finish", "same"), WAITS, ids=lambda value: getattr(value, "__name__", value))
def test_the_run_that_waited_has_the_keys_of_the_origin(
    agent: type[Agent], finish: Finish, same: bool
) -> None:
    REQUESTS.clear()
    place = MemoryPlace()
    fork = {"action-state.on-job-change": "fork"}
    with job(agent, place, "production") as origin, job(agent, place, "staging", **fork) as copy:
        origin.push("o1")
        savepoint = origin.snapshot()
        copy.restore(savepoint)
        keys: list[list[str]] = []
        for harness in (origin, copy):
            finish(harness)
            harness.push("o2")
            finish(harness)
            assert [order for order, _ in harness.outputs] == ["o1", "o2"]
            keys.append([key for _, key in harness.outputs])
    first, second = keys
    assert (first[0] == second[0]) is same
    assert first[1] != second[1]
    assert len(set(first)) == 2
