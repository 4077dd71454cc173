"""Delayed events at the end of a bounded input, with event time, and in keys that have nothing else to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from delayed_agents import Calls, Chained, Later, Make, Plain, Sleeps

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.operator.services.delayed import AwaitedKeys
from flink_agents.testing.run_replay import replay_run


class Forgets(Agent):
    """Sends an event that comes in two hours."""

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: Any) -> None:
        ctx.send_event(Later(what=event.input), delay=timedelta(hours=2))

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.what)


# -- the end of a bounded input -----------------------------------------------------------------


def test_the_end_of_the_input_waits_for_events(make: Make) -> None:
    harness = make(Chained)
    start_ms = harness.current_time
    harness.push(1)
    assert harness.end_input() == [(1, 1), (1, 0)]
    assert harness.current_time >= start_ms + 20_000
    assert harness.delayed() == []


def test_the_end_of_the_input_waits_for_events_of_all_keys(make: Make) -> None:
    # How far the clock goes on while one key waits for another one is not the same in each execution.
    harness = make(Chained, lambda number: number % 2, crash=None)
    start_ms = harness.current_time
    harness.push_all([1, 2])
    assert sorted(harness.end_input()) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert harness.current_time >= start_ms + 20_000
    assert [harness.delayed(key) for key in (0, 1)] == [[], []]


@pytest.mark.parametrize("agent", [Plain, Chained, Sleeps])
def test_the_end_of_the_input_skips_the_time_of_events(make: Make, agent: type[Agent]) -> None:
    # Flink takes no checkpoint between the begin of the end and what is sent behind it, and no timer in
    # processing time fires there, by which a harness settles.
    undisturbed = {"crash": None, "forced_replay": False, "forced_restart": False, "auto_run": False}
    conditions: dict[str, Any] = {} if agent is Plain else undisturbed
    harness = make(agent, config={"run.timers-at-end": "skip"}, **conditions)
    if agent is Plain:
        harness.push(("a", 10, 3_600))
        assert harness.end_input() == ["a0", "a1"]
    elif agent is Chained:
        harness.push(1)
        harness.run_until_idle()
        # What is sent behind the end stays in state.
        assert harness.end_input() == [(1, 1)]
        assert [delayed_event.event for delayed_event in harness.delayed()] == [Later(what=1)]
        assert harness.run_metrics["delayed_events_left"] >= 1
    else:
        harness.push("a")
        harness.run_until_idle()
        assert harness.end_input() == ["a", "before"]
        assert [delayed_event.event for delayed_event in harness.delayed()] == [Later(what="behind")]


# -- event time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["emit", "side", "drop"])
def test_a_pending_event_holds_no_watermark_and_its_run_is_a_straggler(make: Make, late: str) -> None:
    hold = EventTime.hold_watermarks(max_hold=timedelta(days=1), idle_timeout="9 s", late=late)
    # An operator that begins anew has told no watermark yet, so that nothing is late for it.
    harness = make(Plain, event_time=hold, crash=None)
    harness.push(("a", 10), timestamp=1_000)
    harness.watermark(2_000)
    harness.advance_time(5_000)
    assert harness.output_watermark == 2_000
    harness.advance_time(5_000)
    expected = {"emit": [("a", 1_000), ("a0", 1_000)]}.get(late, [("a", 1_000)])
    assert list(zip(harness.outputs, harness.timestamps, strict=True)) == expected
    assert harness.late_outputs == (["a0"] if late == "side" else [])


def test_an_event_that_comes_in_time_is_on_time(make: Make) -> None:
    harness = make(Plain, event_time=EventTime.hold_watermarks(idle_timeout="9 s"))
    harness.watermark(500)
    harness.push(("a", 10), timestamp=1_000)
    harness.advance_time(10_000)
    assert list(zip(harness.outputs, harness.timestamps, strict=True)) == [("a", 1_000), ("a0", 1_000)]
    assert all(at is not None and at > low for at, low in zip(harness.timestamps, harness.lows, strict=True))


# -- keys that have nothing else to do --------------------------------------------------------------


def test_a_key_is_not_forgotten_while_an_event_is_to_come(make: Make) -> None:
    harness = make(Forgets, config={"state.idle-key-ttl": "1 min"})
    harness.push("a")
    harness.advance_time(timedelta(hours=1))
    assert len(harness.delayed()) == 1 and harness.sequence_number() > 0
    assert harness.advance_time(timedelta(hours=1)) == ["a"]
    harness.advance_time(timedelta(hours=1))
    assert harness.state().head is None


def test_a_key_without_delayed_events_has_nothing_of_them(make: Make) -> None:
    harness = make(Plain)
    harness.push(("a",))
    state = harness.state()
    assert (state.delayed, state.processing_timers) == ({}, set())


def test_a_run_of_a_delayed_event_is_replayed_for_debugging(make: Make) -> None:
    place = MemoryPlace()
    harness = make(Calls, store=lambda: MemoryStore(place))
    harness.push(1)
    assert harness.advance_time(10_000) == [(10, 1010)]
    [(key, journal)] = [pair for pair in place.journals.items() if 1 in pair[1].runs]
    replay = replay_run(Calls, key, journal.runs[1])
    assert replay.outputs == [(10, 1010)]
    assert replay.ended is None
    assert replay.memory == {"count": 1}


def test_the_end_of_the_input_takes_a_key_at_its_latest_time() -> None:
    """The first event of a key may have come in meanwhile, so that another one is the first."""
    keys = AwaitedKeys()
    keys.note("k", "key", 10)
    keys.note("k", "key", 20)
    assert (keys.pop_due(10), bool(keys)) == (None, True)
    assert (keys.pop_due(20), bool(keys)) == ("key", False)
