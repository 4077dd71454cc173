"""Steps that may have been made twice are counted: those of runs whose earlier attempt ended within them."""

from __future__ import annotations

from typing import Any

import pytest
from durable_tools import EFFECTS, forget, one_action

from flink_agents import Agent
from flink_agents.api.action_state import RecordKind
from flink_agents.api.common.policies import OnSuspend
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {"forced_replay": False, "forced_restart": False, "crash": None}
REEXECUTED = "action_calls_reexecuted"


async def effect(value: Any, *, idempotency_key: str = "") -> Any:
    EFFECTS.append(value)
    return value


async def keyed(value: Any, *, idempotency_key: str) -> Any:
    EFFECTS.append(value)
    return value


async def sleep(ctx: Any) -> None:
    await ctx.sleep(1)


async def signal(ctx: Any) -> None:
    await ctx.wait_for_signal("paid")


async def approval(ctx: Any) -> None:
    await ctx.request_approval("pay", {"amount": 1})


def waiting(wait: Any, function: Any, steps_before: int, waits: int) -> Any:
    async def act(event: Any, ctx: Any) -> None:
        for number in range(steps_before):
            await ctx.durable_execute_async(function, f"before {number}")
        for number in range(waits):
            await wait(ctx)
            await ctx.durable_execute_async(function, f"after {number}")

    return act


def agent_of(act: Any, on_suspend: str) -> Agent:
    agent = one_action(act)
    agent.on_suspend = OnSuspend(on_suspend)
    return agent


def resume(harness: OperatorHarness, wait: Any) -> None:
    """End the wait of the run, and let the run go on."""
    if wait is sleep:
        harness.advance_time(1000)
    elif wait is signal:
        harness.signal("k", "paid")
    else:
        answer = harness.approvals[-1].approve(by="Ada")
        harness.signal(answer.key, answer.name, answer.value, wait=answer.wait)
    harness.run_until_idle()


def count(harness: OperatorHarness) -> float:
    return harness.run_metrics.get(REEXECUTED, 0)


TABLE = [(wait, function) for wait in (sleep, signal, approval) for function in (effect, keyed)]


@each_case("on_suspend", ["block", "interleave"])
@each_case("steps_before", [0, 2])
@each_case("wait, function", TABLE)
def test_steps_after_waits_are_made_for_the_first_time(
    wait: Any, function: Any, steps_before: int, on_suspend: str
) -> None:
    forget()
    place = MemoryPlace()
    agent = agent_of(waiting(wait, function, steps_before, 3), on_suspend)
    with OperatorHarness(agent, lambda _: "k", store=lambda: MemoryStore(place), **PLAIN) as harness:
        harness.push(1)
        for _ in range(3):
            resume(harness, wait)
        assert len(EFFECTS) == steps_before + 3
        assert harness.run_metrics["action_calls_recorded"] == steps_before + 3
        assert count(harness) == 0


@each_case("on_suspend", ["block", "interleave"])
@each_case("steps_before", [0, 2])
@each_case("wait, function", TABLE)
def test_a_restart_in_a_wait_repeats_no_step(
    wait: Any, function: Any, steps_before: int, on_suspend: str
) -> None:
    forget()
    place = MemoryPlace()
    agent = agent_of(waiting(wait, function, steps_before, 1), on_suspend)
    with OperatorHarness(agent, lambda _: "k", store=lambda: MemoryStore(place), **PLAIN) as harness:
        harness.push(1)
        harness.restore(harness.snapshot())
        resume(harness, wait)
        assert len(EFFECTS) == steps_before + 1 and count(harness) == 0


@each_case("on_suspend", ["block", "interleave"])
@each_case("steps_before", [0, 2])
@each_case("wait", [sleep, signal, approval])
def test_a_crash_after_a_wait_may_repeat_the_step_in_flight(
    wait: Any, steps_before: int, on_suspend: str
) -> None:
    """The header of the run, or of its part, is stored before a call that gets a key."""
    forget()
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, steps_before + 1))
    agent = agent_of(waiting(wait, keyed, steps_before, 2), on_suspend)
    with OperatorHarness(agent, lambda _: "k", store=faults.store, **PLAIN) as harness:
        harness.push(1)
        resume(harness, wait)
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="."):
            resume(harness, wait)
        assert EFFECTS.count("after 1") == 1
        harness.restore(snapshot)
        resume(harness, wait)
        assert EFFECTS.count("after 1") == 2
        # The step before the crash has its record in state, so nothing shows the attempt at the next one.
        assert count(harness) == (1 if on_suspend == "interleave" else 0)


@each_case("on_suspend", ["block", "interleave"])
@each_case("function", [effect, keyed])
@each_case("wait", [sleep, signal, approval])
def test_a_crash_between_steps_after_a_wait_may_repeat_the_later_one(
    wait: Any, function: Any, on_suspend: str
) -> None:
    async def act(event: Any, ctx: Any) -> None:
        await wait(ctx)
        for number in range(2):
            await ctx.durable_execute_async(function, number)

    forget()
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, 1))
    with OperatorHarness(agent_of(act, on_suspend), lambda _: "k", store=faults.store, **PLAIN) as harness:
        harness.push(1)
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="."):
            resume(harness, wait)
        harness.restore(snapshot)
        resume(harness, wait)
        assert EFFECTS == [0, 1, 1] and count(harness) == 1


@each_case("can_wait", [True, False])
def test_a_crash_in_the_first_step_of_a_run_is_counted_by_its_header(can_wait: bool) -> None:
    async def calls_only(event: Any, ctx: Any) -> None:
        await ctx.durable_execute_async(keyed, 0)

    async def may_wait(event: Any, ctx: Any) -> None:
        await ctx.durable_execute_async(keyed, 0)
        await ctx.sleep(1)

    forget()
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, 0))
    agent = one_action(may_wait if can_wait else calls_only)
    with OperatorHarness(agent, lambda _: "k", store=faults.store, **PLAIN) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="."):
            harness.push(1)
        harness.restore(snapshot)
        harness.push(1)
        assert EFFECTS == [0, 0] and count(harness) == 1
