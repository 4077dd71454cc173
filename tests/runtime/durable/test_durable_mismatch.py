"""A replay that asks for another call than was recorded: the error, and the policies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, crash, effect, effect_async, forget, one_action

from flink_agents import OutputEvent, RetryPolicy
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, NonDeterminismError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once

Calls = list[tuple[Callable[..., Any], Any]]


class Plan:
    """The calls that the action makes; a test changes them as a change of code would."""

    calls: Calls = []


RECORDED: Calls = [(effect, 1), (effect, 2)]
CHANGED: dict[str, tuple[Calls, int, str, str]] = {
    "function": ([(effect_async, 1), (effect, 2)], 0, "durable_tools:effect(", "durable_tools:effect_async("),
    "arguments": ([(effect, 1), (effect, 3)], 1, "value=2", "value=3"),
    "type of an argument": ([(effect, 1.0), (effect, 2)], 0, "value=1", "value=1.0"),
    "order": ([(effect, 2), (effect, 1)], 0, "value=1", "value=2"),
    "fewer": ([(effect, 1)], 1, "value=2", "the end of the action"),
    "none": ([], 0, "value=1", "the end of the action"),
}


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()
    Plan.calls = RECORDED


async def act(event: Any, ctx: Any) -> OutputEvent:
    SEEN.append("act")
    for function, value in Plan.calls:
        await ctx.durable_execute_async(function, value)
    ctx.short_term_memory.set("calls", len(Plan.calls))
    return OutputEvent(output=len(Plan.calls))


async def swallow(event: Any, ctx: Any) -> OutputEvent:
    for function, value in Plan.calls:
        try:
            await ctx.durable_execute_async(function, value)
        except Exception:
            SEEN.append("swallowed")
    return OutputEvent(output="went on")


def block(event: Any, ctx: Any) -> OutputEvent:
    for function, value in Plan.calls:
        ctx.durable_execute(function, value)
    return OutputEvent(output=len(Plan.calls))


def crashed(action: Any, record: Any = 1, **options: Any) -> OperatorHarness:
    """A harness whose next attempt finds both calls recorded, but not the end of the action."""
    settings = {name: options.pop(name) for name in ("retry", "on_error") if name in options}
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(
        one_action(action, **settings), lambda record: "k", store=faults.store, **options
    )
    snapshot = harness.snapshot()
    with crash():
        harness.push(record)
    harness.restore(snapshot)
    assert EFFECTS == [1, 2]
    return harness


@pytest.mark.parametrize("action", [act, block])
@pytest.mark.parametrize("change", [*CHANGED])
def test_a_mismatch_fails_the_job_and_shows_both_calls(change: str, action: Any) -> None:
    calls, index, recorded, requested_call = CHANGED[change]
    with crashed(action) as harness:
        Plan.calls = calls
        for _ in range(2):
            snapshot = harness.snapshot()
            with pytest.raises(ActionFailedError) as caught:
                harness.push(1)
            assert type(caught.value.__cause__) is NonDeterminismError
            for part in ("action 'act'", "key 'k'", "sequence 0", f"call {index}"):
                assert part in str(caught.value)
            assert caught.value.expected and recorded in caught.value.expected
            assert caught.value.found and requested_call in caught.value.found
            assert "clocks, chance" in str(caught.value) and "on-mismatch" in str(caught.value)
            harness.restore(snapshot)
    assert EFFECTS == [1, 2], "nothing takes effect behind a mismatch"


async def in_a_branch(event: Any, ctx: Any) -> None:
    """Make the calls one after the other; where they are changed, in a branch of the plan's kind."""

    async def branch() -> None:
        for function, value in Plan.calls:
            await ctx.durable_execute_async(function, value)

    if Plan.calls is RECORDED:
        await branch()
    elif event.input == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
    elif event.input == "gather":
        await asyncio.gather(branch(), asyncio.sleep(0))
    else:
        await asyncio.create_task(branch())


@pytest.mark.parametrize("kind", ["group", "gather", "task"])
def test_a_mismatch_is_found_where_the_action_waits_for_its_own_tasks(kind: str) -> None:
    with crashed(in_a_branch, record=kind) as harness:
        Plan.calls = [*RECORDED]
        with pytest.raises(ActionFailedError) as caught:
            harness.push(kind)
        assert type(caught.value.__cause__) is NonDeterminismError
        assert caught.value.found and caught.value.found.startswith("the same call as call 0 of its task ")
    assert EFFECTS == [1, 2]


def test_calls_behind_the_recorded_ones_are_no_mismatch() -> None:
    with crashed(act) as harness:
        Plan.calls = [*RECORDED, (effect, 3)]
        assert harness.push(1) == [3]
    assert EFFECTS == [1, 2, 3]


def test_equal_arguments_of_another_order_are_no_mismatch() -> None:
    Plan.calls = [(effect, {"a": 1, "b": {3, 1, 2}}), (effect, 2)]
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(one_action(act), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push(1)
        harness.restore(snapshot)
        Plan.calls = [(effect, {"b": {2, 3, 1}, "a": 1}), (effect, 2)]
        assert harness.push(1) == [2]
    assert len(EFFECTS) == 2


@pytest.mark.parametrize("change", ["arguments", "function", "fewer"])
def test_an_action_that_swallows_the_error_fails_all_the_same(change: str) -> None:
    with crashed(swallow) as harness:
        Plan.calls = CHANGED[change][0]
        with pytest.raises(ActionFailedError, match="does not make the calls that were recorded"):
            harness.push(1)
        assert harness.outputs == []


@pytest.mark.parametrize("settings", [{"on_error": "ignore"}, {"retry": RetryPolicy(initial_interval=0)}])
def test_policies_for_errors_do_not_hide_a_mismatch(settings: Any) -> None:
    with crashed(act, **settings) as harness:
        Plan.calls = CHANGED["arguments"][0]
        with pytest.raises(ActionFailedError, match="does not make the calls that were recorded"):
            harness.push(1)


@pytest.mark.parametrize("action", [act, block, swallow])
@pytest.mark.parametrize("change", [*CHANGED])
def test_rerun_executes_anew_and_records_that(change: str, action: Any) -> None:
    with crashed(action, config={"action-state.on-mismatch": "rerun"}) as harness:
        snapshot = harness.snapshot()
        Plan.calls = CHANGED[change][0]
        outputs = harness.push(1)
        assert len(outputs) == 1
        if change != "none":
            assert EFFECTS == [1, 2, *(value for _, value in Plan.calls)]
        effects = list(EFFECTS)
        assert harness.run_metrics["action_mismatches"] == 1
        # What was recorded anew counts from here on.
        harness.restore(snapshot)
        assert harness.push(1) == outputs
        assert effects == EFFECTS


@pytest.mark.parametrize("change", [*CHANGED])
def test_dead_letter_goes_on_without_the_event(change: str) -> None:
    with crashed(act, config={"action-state.on-mismatch": "dead-letter"}) as harness:
        snapshot = harness.snapshot()
        Plan.calls = CHANGED[change][0]
        assert harness.push(1) == []
        (letter,) = harness.dead_letters
        assert letter.error_type == "NonDeterminismError" and letter.event.input == 1
        assert harness.memory("k") == {} and harness.sequence_number("k") == 1
        harness.restore(snapshot)
        harness.push(1)
        assert len(harness.dead_letters) == 1
    assert EFFECTS == [1, 2]
