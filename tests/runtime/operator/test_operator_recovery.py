"""Replay, checkpoints, rescaling, and inputs that wait in state until a timer runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from core_agents import Other, Step, probe

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, UnserializableValueError
from flink_agents.runtime.operator.services.service import START as START_OF_END
from flink_agents.testing import OperatorHarness

WAITING = {"run.inline": False}


class Ledger(Agent):
    """Uses all that a replay must give again: memory, ids, lineage, time and chance."""

    side_outputs = {"audit": str}

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        total = ctx.short_term_memory.get("total", 0) + event.input
        ctx.short_term_memory.set("total", total)
        ctx.short_term_memory.append("ids", event.id)
        yield Step(number=total)
        yield Step(number=-total)

    @action(Step)
    async def step(self, event: Step, ctx: Any) -> Event:
        ctx.emit_to("audit", f"{event.id} of {event.upstream_event_id}")
        return Other(value=ctx.random().random())

    @action(Other, on_error="dead-letter")
    def end(self, event: Other, ctx: Any) -> Event:
        if ctx.short_term_memory.get("total") % 5 == 0:
            raise ValueError(str(ctx.uuid4()))
        lineage = (event.id, event.upstream_event_id, event.upstream_action_name)
        return OutputEvent(output=(event.value, lineage, ctx.uuid4(), ctx.now(), ctx.sequence_number))


def by_parity(record: int) -> str:
    return "odd" if record % 2 else "even"


def drive(**options: Any) -> OperatorHarness:
    harness = OperatorHarness(Ledger, by_parity, **options)
    for record in range(20):
        harness.push(record, timestamp=record)
        harness.advance_time(7)
    harness.end_input()
    return harness


def observed(harness: OperatorHarness) -> Any:
    return (
        harness.outputs,
        harness.side_output("audit"),
        harness.dead_letters,
        [harness.memory(key) for key in ("odd", "even")],
        [harness.state(key) for key in ("odd", "even")],
    )


@pytest.mark.parametrize("config", [None, WAITING], ids=["inline", "waiting"])
def test_replay_gives_the_same_outputs_ids_time_and_chance(config: Any) -> None:
    once = drive(config=config)
    twice = drive(config=config, forced_replay=True)
    assert len(once.outputs) > 20
    assert once.dead_letters
    assert observed(twice) == observed(once)


ALWAYS: list[int] = []


class Impure(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        ALWAYS.append(event.input)
        return OutputEvent(output=len(ALWAYS))


@pytest.mark.parametrize("config", [None, WAITING], ids=["inline", "waiting"])
def test_forced_replay_does_run_everything_twice(config: Any) -> None:
    ALWAYS.clear()
    harness = OperatorHarness(Impure, forced_replay=True, crash=None, config=config)
    harness.push_all(["a", "b"])
    harness.advance_time(10)
    assert ALWAYS in (["a", "a", "b", "b"], ["a", "b", "a", "b"])
    assert len(harness.outputs) == 2


def test_events_have_distinct_ids() -> None:
    harness = drive()
    ids = [event_id for _, (event_id, *_), *_ in harness.outputs]
    steps = [text.split(" of ")[0] for text in harness.side_output("audit")]
    inputs = [input_id for key in ("odd", "even") for input_id in harness.memory(key)["ids"]]
    everything = [*ids, *steps, *inputs]
    assert len(set(everything)) == len(everything)
    assert {text.split(" of ")[1] for text in harness.side_output("audit")} == set(inputs)
    assert {upstream for _, (_, upstream, _), *_ in harness.outputs} < set(steps)
    assert {name for _, (_, _, name), *_ in harness.outputs} == {"step"}


def test_ids_follow_from_job_key_and_number() -> None:
    same = [drive(config={"job-identifier": "a"}).memory("odd")["ids"] for _ in range(2)]
    other_ids = drive(config={"job-identifier": "b"}).memory("odd")["ids"]
    assert same[0] == same[1]
    assert not set(same[0]) & set(other_ids)


# -- checkpoints ---------------------------------------------------------------------


@pytest.mark.nightly(beyond=7)
@pytest.mark.parametrize("config", [None, WAITING], ids=["inline", "waiting"])
@pytest.mark.parametrize("crash_after", range(0, 20, 3))
def test_restore_and_replay_give_what_no_crash_gives(crash_after: int, config: Any) -> None:
    harness = OperatorHarness(Ledger, by_parity, config=config)
    for record in range(20):
        snapshot = harness.snapshot()
        harness.push(record, timestamp=record)
        if record == crash_after:
            harness.push(1000)
            harness.restore(snapshot)
            harness.push(record, timestamp=record)
        harness.advance_time(7)
    harness.end_input()
    assert observed(harness) == observed(drive(config=config))


def test_snapshot_is_independent_of_what_follows() -> None:
    harness = probe(count, key_selector=lambda record: record)
    harness.push("a")
    snapshot = harness.snapshot()
    for _ in range(2):
        assert harness.push_all("aab") == [2, 3, 1]
        harness.restore(snapshot)
    assert harness.outputs == [1]
    assert harness.memory("a") == {"n": 1}


def count(record: Any, ctx: Any) -> int:
    number = ctx.short_term_memory.get("n", 0) + 1
    ctx.short_term_memory.set("n", number)
    return number


def test_job_identity_is_kept_in_state() -> None:
    """Ids of restored keys do not change where the job gets another name."""
    first = OperatorHarness(Ledger, by_parity, config={"job-identifier": "first"})
    first.push(1)
    second = OperatorHarness(Ledger, by_parity, config={"job-identifier": "second"})
    second.restore(first.snapshot())
    for record in (3, 2):
        first.push(record)
        second.push(record)
    assert second.memory("odd") == first.memory("odd")
    assert second.memory("even") != first.memory("even")


def test_rescaling_keeps_each_key_whole() -> None:
    keys = [f"key {number}" for number in range(50)]
    harness = probe(count, key_selector=lambda record: record)
    for round_, parallelism in enumerate([1, 4, 2, 3], start=1):
        harness.restore(harness.snapshot(), parallelism)
        assert harness.push_all(keys) == [round_] * 50
    assert [harness.sequence_number(key) for key in keys] == [4] * 50


def test_rescaling_keeps_what_waits() -> None:
    keys = [f"key {number}" for number in range(20)]
    harness = probe(count, key_selector=lambda record: record, config=WAITING, auto_run=False)
    harness.push_all(keys * 3)
    harness.restore(harness.snapshot(), parallelism=4)
    harness.push_all(keys)
    assert [harness.pending(key) for key in keys] == [4] * 20
    harness.restore(harness.snapshot(), parallelism=2)
    assert sorted(harness.end_input()) == sorted([1, 2, 3, 4] * 20)
    assert [harness.pending(key) for key in keys] == [0] * 20


# -- inputs that wait ----------------------------------------------------------------


@pytest.fixture
def waiting(agent_harness: Callable[..., OperatorHarness]) -> OperatorHarness:
    return agent_harness(Ledger, by_parity, config=WAITING, auto_run=False)


def test_inputs_wait_in_state_until_their_commit(waiting: OperatorHarness) -> None:
    assert waiting.push_all([1, 3, 2]) == []
    assert (waiting.pending("odd"), waiting.pending("even")) == (2, 1)
    assert waiting.sequence_number("odd") == 0
    assert len(waiting.run_until_idle()) == 6
    assert (waiting.pending("odd"), waiting.pending("even")) == (0, 0)
    assert waiting.memory("odd")["total"] == 4
    state = waiting.state("odd")
    assert (state.pending, state.processing_timers) == ({}, set())
    # One key has the timer that waits for the end of the input, for all of them.
    assert state.event_timers | waiting.state("even").event_timers <= {START_OF_END}


def test_inputs_keep_order_number_and_event_time(agent_harness: Callable[..., OperatorHarness]) -> None:
    def body(event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=(event.input, ctx.sequence_number, ctx.timestamp))

    agent = Agent(name="a").add_action("act", [InputEvent], body)
    harness = agent_harness(agent, config=WAITING, auto_run=False)
    for record in "abc":
        harness.push(record, timestamp=ord(record))
    harness.push("d")
    assert harness.run_until_idle() == [("a", 0, 97), ("b", 1, 98), ("c", 2, 99), ("d", 3, None)]


def test_end_of_input_drains_what_waits(waiting: OperatorHarness) -> None:
    waiting.push_all([1, 2, 3])
    assert waiting.watermark(2**62) == []
    assert len(waiting.end_input()) == 6
    assert waiting.advance_time(timedelta(days=1)) == []
    assert waiting.state("odd").event_timers == set()


def test_inline_runs_need_no_timer() -> None:
    harness = probe(count)
    harness.push(1)
    state = harness.state()
    assert (state.pending, state.processing_timers, state.event_timers) == ({}, set(), set())


def test_input_behind_waiting_ones_waits_too() -> None:
    """After a restart with other options, what waits goes first."""
    harness = probe(lambda record, ctx: (record, ctx.sequence_number), config=WAITING, auto_run=False)
    harness.push_all("ab")
    inline = probe(lambda record, ctx: (record, ctx.sequence_number))
    inline.restore(harness.snapshot())
    assert inline.push("c") == [("a", 0), ("b", 1), ("c", 2)]
    assert inline.push("d") == [("d", 3)]


def test_waiting_record_that_state_cannot_hold_is_a_named_error() -> None:
    harness = probe(lambda record, ctx: record, config=WAITING)
    with pytest.raises(UnserializableValueError, match="slice"):
        harness.push(slice(1))
    assert harness.pending() == 0


ALL_THERE = threading.Event()


def test_failure_of_a_waiting_input_fails_the_job_and_loses_nothing() -> None:
    def body(record: Any, ctx: Any) -> Any:
        if record == "bad" and count(record, ctx):
            ALL_THERE.wait(60)
            raise ValueError(record)
        return record

    harness = probe(body, config=WAITING, auto_run=False, forced_serialization=False)
    harness.push_all(["good", "bad", "later"])
    ALL_THERE.set()
    snapshot = harness.snapshot()
    for _ in range(2):
        with pytest.raises(ActionFailedError, match="sequence 1"):
            harness.run_until_idle()
        harness.restore(snapshot)
    assert harness.pending() == 3
    assert harness.memory() == {}


def test_failure_of_a_waiting_input_by_policy() -> None:
    harness = OperatorHarness(Ledger, config=WAITING, auto_run=False)
    harness.push_all([1, "text", 2])
    with pytest.raises(ActionFailedError):
        harness.run_until_idle()
    tolerant = OperatorHarness(Ledger, config={**WAITING, "actions.on-error": "dead-letter"})
    assert len(tolerant.push_all([1, "text", 2])) == 4
    assert [letter.event.input for letter in tolerant.dead_letters] == ["text"]
    assert tolerant.memory()["total"] == 3
