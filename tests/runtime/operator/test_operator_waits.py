"""Pauses and waits for signals: what they do, and that a crash at any moment makes no difference.

Each test runs without a store and with one, where that may differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from waiting_agents import Approval, Charges, Chosen, Naps, Opens, Refunds, calls, opened

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_a_run_sleeps_for_its_time_and_then_goes_on_once(agent_harness: Make) -> None:
    harness = agent_harness(Naps)
    assert harness.push("a") == []
    assert [wait.deadline for wait in harness.waits()] == [harness.current_time + 10_000]
    assert harness.advance_time(9_999) == []
    assert harness.advance_time(1) == [("a", 0)]
    assert harness.waits() == []
    assert harness.advance_time(100_000) == []
    assert harness.state().pending == {}


def test_inputs_behind_a_run_that_sleeps_wait_in_their_order(agent_harness: Make) -> None:
    harness = agent_harness(Naps)
    harness.push_all(["a", "b", "c"])
    assert harness.pending() == 3
    assert harness.advance_time(10_000) == [("a", 0)]
    assert harness.advance_time(10_000) == [("b", 1)]
    assert harness.advance_time(10_000) == [("c", 2)]


def test_other_keys_go_on_while_a_run_sleeps(agent_harness: Make) -> None:
    class Some(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            if event.input % 2:
                await ctx.sleep(60)
            return OutputEvent(output=event.input)

    harness = agent_harness(Some, key_selector=lambda number: number, config={"run.max-in-flight": 1})
    assert harness.push_all(range(6)) == [0, 2, 4]
    assert sorted(harness.advance_time(60_000)) == [1, 3, 5]


def test_what_a_sleeping_run_recorded_is_not_done_again(agent_harness: Make) -> None:
    harness = agent_harness(Charges)
    harness.push(1)
    assert len(harness.waits()) == 1
    harness.advance_time(10_000)
    assert len(harness.waits()) == 1
    assert harness.advance_time(1_000) == [30]


@pytest.mark.executes_once
def test_each_call_beside_a_pause_is_made_once(agent_harness: Make) -> None:
    harness = agent_harness(Charges)
    harness.push(1)
    harness.advance_time(10_000)
    assert harness.advance_time(1_000) == [30]
    assert calls == [1, 2]


def test_pauses_side_by_side_end_each_at_its_time(agent_harness: Make) -> None:
    class Both(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            seen: list[int] = []

            async def nap(seconds: int) -> None:
                await ctx.sleep(seconds)
                seen.append(seconds)

            await asyncio.gather(nap(20), nap(10), nap(5))
            return OutputEvent(output=seen)

    harness = agent_harness(Both)
    harness.push("a")
    assert len(harness.waits()) == 3
    harness.advance_time(5_000)
    assert len(harness.waits()) == 2
    harness.advance_time(5_000)
    assert len(harness.waits()) == 1
    assert harness.advance_time(10_000) == [[5, 10, 20]]


def test_a_call_that_goes_on_keeps_its_run_from_being_suspended(agent_harness: Make) -> None:
    async def slow(number: int) -> int:
        await asyncio.sleep(0.05)
        return number

    class Both(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            results = await ctx.gather(ctx.durable_execute_async(slow, 1), ctx.sleep(5))
            return OutputEvent(output=results)

    harness = agent_harness(Both)
    harness.push("a")
    assert len(harness.waits()) == 1
    assert harness.advance_time(5_000) == [[1, None]]


def test_outputs_of_a_run_leave_when_it_waits_and_only_then(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push("tea")
    assert harness.side_output("asked") == ["tea?"]
    assert harness.signal(0, "approval", {"granted": True, "by": "Ada"}) == [("tea", True, "Ada")]
    assert harness.side_output("asked") == ["tea?"]


def test_a_wait_ends_by_its_timeout_where_no_signal_comes(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push("tea")
    assert harness.advance_time(59_999) == []
    assert harness.advance_time(1) == [("tea", "nobody")]


def test_a_signal_that_comes_before_its_run_waits_for_it(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    assert harness.signal(0, "approval", Approval(granted=False)) == []
    assert harness.push("tea") == [("tea", False, "")]
    assert harness.state().pending == {}


def test_a_signal_overtakes_the_inputs_that_wait_behind_its_run(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push_all(["tea", "milk"])
    assert harness.signal(0, "approval", {"granted": True}) == [("tea", True, "")]
    assert harness.signal(0, "approval", {"granted": False}) == [("milk", False, "")]


def test_a_second_answer_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push("tea")
    [wait] = harness.waits()
    harness.signal(0, "approval", {"granted": True}, wait=wait.id)
    assert harness.signal(0, "approval", {"granted": False}, wait=wait.id) == []
    assert [
        (unmatched_signal.reason, unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ] == [("duplicate", {"granted": False})]
    harness.push("milk")
    assert len(harness.waits()) == 1


def test_a_second_signal_of_an_id_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.signal(0, "approval", {"granted": True}, id="a1")
    harness.signal(0, "approval", {"granted": True}, id="a1")
    harness.push("tea")
    harness.signal(0, "approval", {"granted": True}, id="a1")
    assert [
        (unmatched_signal.reason, unmatched_signal.signal.id)
        for unmatched_signal in harness.unmatched_signals
    ] == [("duplicate", "a1")] * 2
    assert harness.outputs == [("tea", True, "")]
    harness.push("milk")
    assert len(harness.waits()) == 1


def test_signals_that_nobody_takes_expire_and_do_not_grow_without_end(agent_harness: Make) -> None:
    config = {"signals.max-per-key": 2, "signals.ttl": "1 min"}
    harness = agent_harness(Refunds, config=config)
    for number in range(3):
        harness.signal(0, "other", number)
    assert [
        (unmatched_signal.reason, unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ] == [("overflow", 2)]
    harness.advance_time(60_000)
    assert [
        (unmatched_signal.reason, unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals[1:]
    ] == [
        ("expired", 0),
        ("expired", 1),
    ]
    assert harness.state().pending == {}


def test_a_signal_for_one_of_several_waits_has_to_name_it(agent_harness: Make) -> None:
    class Two(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=await ctx.gather(ctx.wait_for_signal("ok"), ctx.wait_for_signal("ok")))

    harness = agent_harness(Two)
    harness.push("a")
    first, second = harness.waits()
    harness.signal(0, "ok", "which?")
    assert [unmatched_signal.reason for unmatched_signal in harness.unmatched_signals] == ["ambiguous"]
    harness.signal(0, "ok", 2, wait=second.id)
    assert harness.signal(0, "ok", 1, wait=first.id) == [[1, 2]]


def test_a_value_of_another_type_is_a_stray_and_the_run_waits_on(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push("tea")
    assert harness.signal(0, "approval", {"granted": "maybe"}) == []
    assert [unmatched_signal.reason for unmatched_signal in harness.unmatched_signals] == ["invalid"]
    assert harness.signal(0, "approval", {"granted": True}) == [("tea", True, "")]


def test_a_signal_is_delivered_to_a_run_that_goes_on(agent_harness: Make) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "slow"

    class Both(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(
                output=await ctx.gather(ctx.durable_execute_async(slow), ctx.wait_for_signal("go"))
            )

    harness = agent_harness(Both, auto_run=False, crash=None, forced_replay=False, forced_restart=False)
    harness.push("a")
    harness.signal(0, "go", 1)
    harness.run_until_idle()
    assert harness.outputs == [["slow", 1]]
    assert harness.state().pending == {}


def test_a_run_that_cannot_be_suspended_gets_its_signal_at_once(agent_harness: Make) -> None:
    opened.clear()
    harness = agent_harness(Opens, auto_run=False, crash=None, forced_replay=False, forced_restart=False)
    harness.push("a")
    harness.signal(0, "go", 1)
    try:
        assert harness.run_until_idle(10) == [(1, "through")]
    finally:
        opened.set()


def test_memory_is_that_of_state_when_a_run_resumes(agent_harness: Make) -> None:
    harness = agent_harness(Naps, crash=None, forced_replay=False, forced_restart=False)
    for count in range(3):
        harness.push("a")
        assert harness.advance_time(10_000) == [("a", count)]


def test_the_end_of_the_input_ends_waits_and_lets_pauses_end(agent_harness: Make) -> None:
    harness = agent_harness(Refunds)
    harness.push_all(["tea", "milk"])
    assert harness.end_input() == [("tea", "the end"), ("milk", "the end")]

    waiting = agent_harness(Naps)
    waiting.push_all(["a", "b"])
    start_ms = waiting.current_time
    assert waiting.end_input() == [("a", 0), ("b", 1)]
    assert waiting.current_time >= start_ms + 20_000

    skipping = agent_harness(Naps, config={"run.timers-at-end": "skip"})
    skipping.push("a")
    assert skipping.end_input() == [("a", 0)]


def test_a_wait_in_code_that_may_not_wait_is_refused(agent_harness: Make) -> None:
    class Blocks(Agent):
        @action(InputEvent)
        def work(self, event: InputEvent, ctx: Any) -> None:
            ctx.sleep(1)

    with pytest.raises(ActionFailedError, match="no async def"):
        agent_harness(Blocks, crash=None).push("a")


def test_an_action_that_waits_is_tried_again_without_waiting_again(agent_harness: Make) -> None:
    from flink_agents import RetryPolicy

    tries: list[int] = []

    class Fails(Agent):
        @action(InputEvent, retry=RetryPolicy(initial_interval=0))
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.sleep(1)
            tries.append(1)
            if len(tries) % 2:
                raise ConnectionError("away")
            return OutputEvent(output="done")

    harness = agent_harness(Fails, crash=None, forced_serialization=False)
    harness.push("a")
    assert harness.advance_time(1_000) == ["done"]


def test_a_run_that_takes_ends_as_they_come_is_suspended_meanwhile(agent_harness: Make) -> None:
    class Race(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            waits = [ctx.wait_for_signal(name) for name in ("a", "b")]
            return OutputEvent(output=[answer async for answer in ctx.as_completed(waits)])

    harness = agent_harness(Race)
    harness.push("x")
    assert (len(harness.state().pending), harness.pending()) == (1, 1)
    assert harness.signal(0, "b", 2) == []
    assert (len(harness.state().pending), harness.pending()) == (1, 1)
    assert harness.signal(0, "a", 1) == [[2, 1]]


def test_a_parked_run_costs_little_state_and_nothing_in_the_process(agent_harness: Make) -> None:
    harness = agent_harness(Refunds, key_selector=lambda record: record)
    keys = [f"order-{number}" for number in range(100)]
    harness.push_all(keys)
    for key in keys:
        state = harness.state(key)
        parked = sum(len(entry) for number, entry in state.pending.items() if number < 0)
        assert parked + len(state.head or b"") < 1000
    assert not harness.busy


def test_a_key_that_only_signals_came_for_leaves_nothing(agent_harness: Make) -> None:
    harness = agent_harness(Refunds, config={"signals.ttl": "1 min"})
    harness.signal(0, "approval", 1)
    harness.advance_time(60_000)
    assert [str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals] == ["expired"]
    assert harness.state().head is None
    assert harness.state().pending == {}


def test_outputs_before_a_wait_stay_where_the_action_fails_later(agent_harness: Make) -> None:
    class Fails(Agent):
        side_outputs = {"asked": str}
        on_error = "dead-letter"

        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> None:
            ctx.emit_to("asked", "before")
            ctx.send_event(OutputEvent(output="before"))
            await ctx.sleep(1)
            ctx.emit_to("asked", "behind")
            raise ValueError("no")

    harness = agent_harness(Fails)
    assert harness.push("x") == ["before"]
    harness.advance_time(1_000)
    assert harness.outputs == ["before"]
    assert harness.side_output("asked") == ["before"]
    assert [letter.error_message for letter in harness.dead_letters] == ["no"]


def test_a_finally_block_cannot_change_a_run_that_is_suspended(agent_harness: Make) -> None:
    closed: list[str] = []

    class Cleans(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            try:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(_value(ctx))
                return OutputEvent(output=task.result())
            finally:
                closed.append("closed")
                ctx.short_term_memory.set("done", True)

    harness = agent_harness(Cleans, forced_serialization=False)
    harness.push("x")
    assert harness.memory() == {}
    assert closed
    assert harness.signal(0, "go", 1) == [1]
    assert harness.memory() == {"done": True}


async def _value(ctx: Any) -> Any:
    return await ctx.wait_for_signal("go")


def test_actions_before_a_wait_are_executed_once(agent_harness: Make) -> None:
    class Steps(Agent):
        @action(InputEvent)
        def first(self, event: InputEvent, ctx: Any) -> Any:
            calls.append("first")
            return Chosen(number=len(calls))

        @action(Chosen)
        async def second(self, event: Chosen, ctx: Any) -> OutputEvent:
            await ctx.sleep(1)
            await ctx.sleep(1)
            return OutputEvent(output=event.number)

    harness = agent_harness(
        Steps, crash=None, forced_replay=False, forced_restart=False, forced_serialization=False
    )
    harness.push("x")
    harness.advance_time(2_000)
    assert harness.outputs == [1]
    assert calls == ["first"]


def test_inputs_behind_a_suspended_run_take_no_room(agent_harness: Make) -> None:
    config = {"run.max-in-flight": 1, "queue.max-total": 2, "queue.max-per-key": 5}
    harness = agent_harness(Refunds, config=config)
    harness.push_all(range(20))
    for number in range(20):
        assert harness.signal(0, "approval", {"granted": True}) == [(number, True, "")]
    assert not any(task.processor.is_crowded("another key") for task in harness._subtasks)


def test_a_suspended_run_does_not_hold_the_low_watermark(agent_harness: Make) -> None:
    class Some(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            if event.input == "sleeps":
                await ctx.sleep(60)
            return OutputEvent(output=event.input)

    hold = EventTime.hold_watermarks(late="side")
    # A new operator computes the low watermark anew, and may find in time what came too late for another one.
    once = {"crash": None, "forced_replay": False, "forced_restart": False}
    harness = agent_harness(Some, lambda record: record[0], event_time=hold, **once)
    harness.push("sleeps", timestamp=1_000)
    harness.push("sleeps", timestamp=1_500)
    harness.push("goes on", timestamp=2_000)
    harness.watermark(5_000)
    harness.advance_time(1_000)
    assert harness.outputs == ["goes on"]
    assert harness.output_watermark == 5_000
    harness.advance_time(60_000)
    # What it puts out has the time of its input, which has passed.
    assert harness.late_outputs == ["sleeps"]


def test_signals_may_come_at_any_moment_of_a_suspension(agent_harness: Make) -> None:
    options = {"crash": None, "forced_replay": False, "forced_restart": False}
    harness = agent_harness(Refunds, lambda key: key, auto_run=False, **options)
    keys = range(300)
    for key in keys:
        harness.push(key)
        if key >= 3:
            harness.signal(key - 3, "approval", {"granted": True})
        if key % 10 == 0:
            harness.advance_time(1)
    for key in keys[-3:]:
        harness.signal(key, "approval", {"granted": True})
    harness.run_until_idle()
    assert sorted(harness.outputs) == [(key, True, "") for key in keys]
