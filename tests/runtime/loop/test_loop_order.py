"""Inputs that come again in another order: each gets the run that was recorded for it."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, counted, effect, forget, one_action

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.events.event_time import EventTime
from flink_agents.runtime.loop.replays import MAX_SHOWN
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


async def tell(event: Any, ctx: Any) -> OutputEvent:
    """Call, with what memory says about the runs before: another order would be another call."""
    previous_inputs = ctx.short_term_memory.get("before", [])
    SEEN.append(event.input)
    result = await ctx.durable_execute_async(effect, (event.input, tuple(previous_inputs)))
    ctx.short_term_memory.set("before", [*previous_inputs, event.input])
    return OutputEvent(output=(ctx.sequence_number, result))


async def tell_unless(event: Any, ctx: Any) -> OutputEvent:
    """The same, but inputs that begin with ``quiet`` make no call."""
    if not event.input.startswith("quiet"):
        return await tell(event, ctx)
    previous_inputs = ctx.short_term_memory.get("before", [])
    ctx.short_term_memory.set("before", [*previous_inputs, event.input])
    return OutputEvent(output=(ctx.sequence_number, event.input))


def merged(chance: random.Random, left: list[str], right: list[str]) -> list[str]:
    """Two upstream subtasks, each in order, in an order of chance."""
    ahead = [list(left), list(right)]
    order = []
    while any(ahead):
        order.append(chance.choice([queue for queue in ahead if queue]).pop(0))
    return order


@pytest.mark.parametrize("act", [tell, tell_unless])
@pytest.mark.parametrize("seed", range(10))
def test_recorded_results_return_to_their_own_inputs(seed: int, act: Any) -> None:
    chance = random.Random(seed)
    left_inputs = [f"left{number}" for number in range(6)]
    right = [("quiet" if number % 3 == 1 else "right") + str(number) for number in range(6)]
    with OperatorHarness(one_action(act), auto_run=False) as harness:
        snapshot = harness.snapshot()
        order = merged(chance, left_inputs, right)
        harness.push_all(order)
        expected = harness.run_until_idle()
        assert [output[0] for output in expected] == list(range(12))
        effects = list(EFFECTS)
        for _ in range(5):
            harness.restore(snapshot)
            harness.push_all(merged(chance, left_inputs, right))
            assert sorted(harness.run_until_idle()) == sorted(expected)
            assert harness.memory() == {"before": order}
            assert EFFECTS == effects


def test_inputs_behind_the_recorded_ones_run_behind_them() -> None:
    with OperatorHarness(one_action(tell), auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["a", "b"])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all(["new", "b", "a"])
        harness.run_until_idle()
        assert harness.memory() == {"before": ["a", "b", "new"]}
    assert set(counted().values()) == {1} and len(EFFECTS) == 3


def test_equal_inputs_of_equal_time_may_swap_but_none_is_lost_or_repeated() -> None:
    with OperatorHarness(one_action(tell), auto_run=False) as harness:
        snapshot = harness.snapshot()
        for record in ("same", "other", "same", "same"):
            harness.push(record, timestamp=5)
        expected = harness.run_until_idle()
        for order in (("same", "same", "other", "same"), ("other", "same", "same", "same")):
            harness.restore(snapshot)
            for record in order:
                harness.push(record, timestamp=5)
            assert Counter(harness.run_until_idle()) == Counter(expected)
    assert set(counted().values()) == {1} and len(EFFECTS) == 4


def test_equal_inputs_of_other_times_are_distinguished() -> None:
    with OperatorHarness(one_action(tell), auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push("same", timestamp=1)
        harness.push("same", timestamp=2)
        expected = harness.run_until_idle()
        harness.restore(snapshot)
        harness.push("same", timestamp=2)
        harness.push("same", timestamp=1)
        assert sorted(harness.run_until_idle()) == sorted(expected)
    assert len(EFFECTS) == 2


def test_an_input_that_never_comes_again_is_waited_for_in_bounded_time() -> None:
    config = {"action-state.reorder-timeout": timedelta(milliseconds=20)}
    with OperatorHarness(one_action(tell), config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["gone", "b"])
        harness.run_until_idle()
        forget()
        harness.restore(snapshot)
        harness.push("new")
        (output,) = harness.run_until_idle()
        # Behind all that was recorded, so that no record is taken for its own.
        assert output == (2, ("new", ()))
        assert EFFECTS == [("new", ())]
        assert harness.run_metrics["runs_reordered"] == 1
        assert harness.run_metrics["inputs_held_back"] == 1


def test_a_recorded_input_goes_on_without_the_one_before_it_that_never_comes() -> None:
    config = {"action-state.reorder-timeout": timedelta(milliseconds=20), "action-state.on-mismatch": "rerun"}
    with OperatorHarness(one_action(tell), config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["gone", "b"])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push("b")
        ((number, _),) = harness.run_until_idle()
        assert number == 1
    # Its action was recorded, and is not executed again.
    assert counted()["b", ("gone",)] == 1


def wait_in_vain(harness: OperatorHarness, keys: int) -> str:
    """What is told when all runs of so many keys wait for another input."""
    while harness.run_metrics.get("inputs_held_back", 0) < keys:
        commit(harness)
    with pytest.raises(TimeoutError) as caught:
        harness.run_until_idle(0.01)
    return str(caught.value)


def test_inputs_that_are_held_back_are_told_where_the_harness_gives_up() -> None:
    config = {"action-state.reorder-timeout": timedelta(hours=1)}
    agent = one_action(tell_unless)
    with OperatorHarness(agent, lambda record: record[-1], config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["one-a", "two-a", "quiet-b", "two-b"])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all(["two-a", "new-a", "two-b"])
        text = wait_in_vain(harness, 2)
        assert text.startswith("no run ended within 0.01 s: inputs wait for those of recorded runs: ")
        assert "key 'a' holds 2 back, for the input of recorded run 0" in text
        assert "key 'b' holds 1 back, for the input of run 0, which recorded nothing" in text
        assert "action-state.reorder-timeout, 3600 s, bounds the wait" in text
        harness.push_all(["one-a", "quiet-b"])
        harness.run_until_idle()
        assert harness.memory("a") == {"before": ["one-a", "two-a", "new-a"]}
        assert harness.memory("b") == {"before": ["quiet-b", "two-b"]}


def test_many_keys_that_hold_inputs_back_are_counted() -> None:
    config = {"action-state.reorder-timeout": timedelta(hours=1), "queue.max-per-key": 1}
    keys = range(MAX_SHOWN + 3)
    with OperatorHarness(
        one_action(tell), lambda record: record[1], config=config, auto_run=False
    ) as harness:
        snapshot = harness.snapshot()
        harness.push_all([(name, key) for key in keys for name in ("gone", "b", "c")])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all([(name, key) for key in keys for name in ("b", "c")])
        text = wait_in_vain(harness, len(keys))
    # One of each two waits in state only.
    assert text.count(" holds 2 back, for the input of recorded run 0") == MAX_SHOWN
    assert "; and so do 3 more keys. " in text


def test_the_end_of_a_bounded_input_lets_held_inputs_go() -> None:
    with OperatorHarness(one_action(tell), auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["gone", "b"])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push("new")
        assert len(harness.end_input()) == 1
        assert harness.pending() == 0


def test_what_was_committed_out_of_order_survives_a_restore() -> None:
    config = {"action-state.reorder-timeout": timedelta(seconds=30)}
    with OperatorHarness(one_action(tell), config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["a", "b"])
        harness.run_until_idle()
        harness.restore(snapshot)
        # "new" is held; "a" and "b" come behind it and are committed before it.
        harness.push_all(["new", "a"])
        while harness.sequence_number() < 1:
            commit(harness)
        middle = harness.snapshot()
        head = Head.unpack(next(iter(middle.keys.values())).head or b"")
        assert (head.first_pending, head.ahead, head.waiting, head.next_seq) == (0, 1, 1, 1)
        for parallelism in (1, 2):
            harness.restore(middle, parallelism)
            harness.push("b")
            harness.run_until_idle()
            assert harness.memory() == {"before": ["a", "b", "new"]}
            assert harness.pending() == 0
    assert set(counted().values()) == {1} and len(EFFECTS) == 3


def commit(harness: OperatorHarness) -> None:
    """Let timers that are due commit what has ended, and wait for nothing else."""
    harness.advance_time(1)


def test_event_time_is_held_while_the_recorded_order_is_restored() -> None:
    faults = Faults()
    held = EventTime.hold_watermarks(max_hold=timedelta(days=100), late="side")
    with OperatorHarness(one_action(tell), event_time=held, store=faults.store, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push("a", timestamp=2)
        harness.push("b", timestamp=1)
        harness.watermark(5)
        harness.run_until_idle()
        expected = list(zip(harness.outputs, harness.timestamps, strict=True))
        assert [at for _, at in expected] == [2, 1]
        harness.restore(snapshot)
        harness.push("b", timestamp=1)
        harness.push("a", timestamp=2)
        harness.watermark(5)
        harness.run_until_idle()
        assert list(zip(harness.outputs, harness.timestamps, strict=True)) == expected
        assert max(harness.lows) < 1
        assert harness.late_outputs == []
    assert len(EFFECTS) == 2


@pytest.mark.parametrize("late", ["emit", "side"])
@pytest.mark.parametrize("waiting", [1, 3])
def test_an_input_that_waits_for_another_one_does_not_hold_the_watermark(waiting: int, late: str) -> None:
    """What it waits for may come behind the watermark, which would wait for it."""
    config = {"action-state.reorder-timeout": timedelta(hours=1)}
    held = EventTime.hold_watermarks(max_hold=timedelta(days=100), late=late)
    inputs = [f"input {number}" for number in range(1 + waiting)]
    with OperatorHarness(one_action(tell), config=config, event_time=held, auto_run=False) as harness:
        snapshot = harness.snapshot()
        for number, record in enumerate(inputs):
            harness.push(record, timestamp=number)
        harness.run_until_idle()
        expected = list(harness.outputs)
        harness.restore(snapshot)
        for number, record in enumerate(inputs[1:], 1):
            harness.push(record, timestamp=number)
        while not harness.run_metrics.get("inputs_held_back", 0):
            commit(harness)
        harness.watermark(10)
        while harness.output_watermark != 10:
            commit(harness)
        harness.push(inputs[0], timestamp=0)
        harness.run_until_idle()
        outputs = harness.outputs + harness.late_outputs
        assert sorted(outputs) == sorted(expected)
        assert len(harness.late_outputs) == (waiting if late == "side" else 0)
    assert len(EFFECTS) == len(inputs)


def test_keys_do_not_wait_for_each_other() -> None:
    agent = Agent(name="keys").add_action("act", [InputEvent], tell)
    with OperatorHarness(agent, lambda record: record[0], auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["a1", "a2", "b1"])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all(["a2", "b1"])
        while harness.sequence_number("b") < 1:
            commit(harness)
        assert harness.sequence_number("a") == 0
        harness.push("a1")
        harness.run_until_idle()
        assert harness.memory("a") == {"before": ["a1", "a2"]}
    assert len(EFFECTS) == 3


async def change_the_input(event: Any, ctx: Any) -> OutputEvent:
    event.input.append("changed")
    return OutputEvent(output=await ctx.durable_execute_async(effect, list(event.input)))


def test_what_an_action_does_to_its_input_does_not_hide_the_record() -> None:
    """The digest is that of the input as it came: so it comes again."""
    config = {"action-state.reorder-timeout": timedelta(hours=1)}
    with OperatorHarness(
        one_action(change_the_input), config=config, forced_serialization=False, auto_run=False
    ) as harness:
        snapshot = harness.snapshot()
        harness.push_all([["a"], ["b"]])
        harness.run_until_idle()
        outputs = list(harness.outputs)
        harness.restore(snapshot)
        harness.push_all([["a"], ["b"]])
        harness.run_until_idle(5)
        assert harness.outputs == outputs == [["a", "changed"], ["b", "changed"]]
    assert set(map(len, EFFECTS)) == {2}
    assert len(EFFECTS) == 2


@pytest.mark.parametrize("limits", [{"queue.max-per-key": 1}, {"queue.max-total": 1, "run.max-in-flight": 1}])
def test_inputs_that_are_held_back_leave_room_for_those_they_wait_for(limits: dict[str, int]) -> None:
    """Else the awaited input stayed in state, or in front of a subtask that takes nothing more."""
    config = {"action-state.reorder-timeout": timedelta(hours=1), **limits}
    inputs = [f"{number}{key}" for number in range(3) for key in "abc"]
    with OperatorHarness(one_action(tell), lambda text: text[1], config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(inputs)
        expected = sorted(harness.run_until_idle())
        harness.restore(snapshot)
        harness.push_all(inputs[::-1])
        assert sorted(harness.run_until_idle(20)) == expected
    assert len(EFFECTS) == len(inputs)


def test_a_recorded_run_that_comes_too_late_keeps_its_number_and_takes_no_other() -> None:
    config = {"action-state.reorder-timeout": timedelta(0)}
    with OperatorHarness(one_action(tell), config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all("abc")
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all("bc")
        while harness.run_metrics.get("action_replays", 0) < 2:
            time.sleep(0.001)
        harness.push_all("ad")
        harness.run_until_idle()
        assert sorted(output[0] for output in harness.outputs) == [0, 1, 2, 3]
        assert harness.sequence_number() == 4
    assert len(EFFECTS) == 4
