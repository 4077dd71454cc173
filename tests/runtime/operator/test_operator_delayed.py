"""Events that actions send with a delay: delivered once, not before their time, whatever dies meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from delayed_agents import (
    Calls,
    Chained,
    Later,
    Make,
    Plain,
    Sleeps,
    calls,
    charge,
)

from flink_agents import Agent, Event, InputEvent, OnError, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.api.events import DelayedLineage


class Unknown(Event):
    """No action takes it."""


class InThread(Agent):
    """The same by ``def`` actions, which make calls in threads."""

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        first = ctx.durable_execute(charge, event.input)
        ctx.send_event(Later(what=first), delay=10)
        return OutputEvent(output=first)

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.what, ctx.durable_execute(charge, event.what)))


def test_an_event_comes_at_its_time_and_once(make: Make) -> None:
    harness = make(Plain)
    assert harness.push(("a", 10)) == ["a"]
    assert harness.advance_time(9_999) == []
    assert harness.advance_time(1) == ["a0"]
    assert harness.advance_time(100_000) == []
    assert harness.sequence_number() == 2
    state = harness.state()
    assert (state.pending, state.delayed, harness.delayed()) == ({}, {}, [])


def test_what_is_to_come_can_be_listed(make: Make) -> None:
    harness = make(Plain)
    now = harness.current_time
    harness.push(("a", 10, timedelta(hours=1), 0.0004))
    shown = [
        (delayed_event.event, delayed_event.due - now, delayed_event.action, delayed_event.sequence_number)
        for delayed_event in harness.delayed()
    ]
    assert shown == [(Later(what="a2"), 1, "take", 0), (Later(what="a0"), 10_000, "take", 0)] + [
        (Later(what="a1"), 3_600_000, "take", 0)
    ]


def test_events_come_in_the_order_of_their_times_and_then_as_they_were_sent(make: Make) -> None:
    harness = make(Plain)
    harness.push_all([("a", 20, 10), ("b", 10, 10, 5)])
    assert harness.advance_time(60_000) == ["b2", "a1", "b0", "b1", "a0"]
    assert harness.memory()["seen"] == ["b2", "a1", "b0", "b1", "a0"]


def test_an_event_that_is_due_before_those_that_wait_comes_before_them(make: Make) -> None:
    harness = make(Plain)
    harness.push(("late", 60))
    harness.push(("early", 10))
    assert harness.advance_time(10_000) == ["early0"]
    assert harness.advance_time(50_000) == ["late0"]


def test_keys_have_their_own_events(make: Make) -> None:
    harness = make(Plain, lambda record: record[0], parallelism=2)
    harness.push_all([("a", 10), ("b", 20), ("c", 10)])
    assert sorted(harness.advance_time(10_000)) == ["a0", "c0"]
    assert [len(harness.delayed(key)) for key in "abc"] == [0, 1, 0]
    assert harness.advance_time(10_000) == ["b0"]
    assert harness.memory("b") == {"seen": ["b0"]}


def test_many_events_that_are_due_together_come_in_order(make: Make) -> None:
    harness = make(Plain, crash=None)
    harness.push(("a", *[10] * 450))
    assert harness.advance_time(10_000) == [f"a{number}" for number in range(450)]
    assert harness.state().delayed == {}


def test_an_event_comes_behind_the_inputs_that_wait(make: Make) -> None:
    harness = make(Sleeps)
    harness.push("first")
    harness.push("second")
    # The first run sleeps until 10 s; its event is due at 5 s, and waits behind the second input.
    assert harness.advance_time(5_000) == []
    assert (harness.pending(), harness.delayed()) == (3, [])
    assert harness.advance_time(60_000) == ["first", "second", "before", "behind", "before", "behind"]


def test_what_a_run_sent_before_it_was_suspended_is_sent_once(make: Make) -> None:
    harness = make(Sleeps)
    harness.push("a")
    assert [delayed_event.event for delayed_event in harness.delayed()] == [Later(what="before")]
    harness.restore(harness.snapshot())
    harness.advance_time(10_000)
    assert harness.outputs == ["a", "before"]
    assert harness.advance_time(5_000) == ["behind"]
    assert harness.sequence_number() == 3


@pytest.mark.parametrize("parallelism", [1, 3])
def test_events_survive_a_restore_at_another_parallelism(make: Make, parallelism: int) -> None:
    harness = make(Plain, lambda record: record[0], parallelism=2)
    harness.push_all([(name, 10, 20) for name in "abcdef"])
    harness.advance_time(10_000)
    harness.restore(harness.snapshot(), parallelism=parallelism)
    assert sorted(harness.advance_time(10_000)) == [f"{name}1" for name in "abcdef"]
    assert harness.advance_time(100_000) == []


def test_a_restore_behind_the_time_of_an_event_delivers_it(make: Make) -> None:
    harness = make(Plain)
    harness.push(("a", 10))
    snapshot = harness.snapshot()
    assert harness.advance_time(10_000) == ["a0"]
    harness.restore(snapshot)
    assert harness.outputs == ["a"]
    assert harness.advance_time(0) == ["a0"]
    assert harness.sequence_number() == 2


def test_an_event_exists_only_with_the_commit_of_the_run_that_sent_it(make: Make) -> None:
    harness = make(Plain)
    start = harness.snapshot()
    harness.push(("a", 10))
    harness.restore(start)
    assert harness.delayed() == []
    assert harness.advance_time(100_000) == []
    harness.push(("b", 10))
    assert harness.advance_time(10_000) == ["b0"]


CASES: list[tuple[type[Agent], list[Any], list[Any]]] = [
    (Plain, [("a", 10, 15), ("b", 10, 0)], ["a", "b", "b1", "a0", "b0", "a1"]),
    (Calls, [1, 2], [20, 30, (10, 1010), (20, 1020)]),
    (InThread, [1, 2], [10, 20, (10, 100), (20, 200)]),
    (Chained, [1, 2], [(1, 2), (2, 2), (1, 1), (2, 1), (1, 0), (2, 0)]),
    (Sleeps, ["a"], ["a", "before", "behind"]),
]


@pytest.mark.parametrize(("agent", "inputs", "outputs"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_crash_at_any_moment_makes_no_difference(
    make: Make, agent: type[Agent], inputs: list[Any], outputs: list[Any]
) -> None:
    harness = make(agent, crash="everywhere")
    harness.push_all(inputs)
    for _ in range(6):
        harness.advance_time(5_000)
    assert harness.outputs == outputs
    assert harness.state().delayed == {}


@pytest.mark.parametrize("agent", [Calls, InThread])
def test_calls_that_a_dead_attempt_recorded_are_not_made_again(make: Make, agent: type[Agent]) -> None:
    harness = make(agent, crash=None, forced_replay=False, forced_restart=False)
    begin = harness.snapshot()
    harness.push(1)
    harness.advance_time(10_000)
    outputs = list(harness.outputs)
    previous_calls = list(calls)
    # The checkpoint is older than the run that sent the event, and both were recorded.
    harness.recover(begin)
    harness.advance_time(10_000)
    assert harness.outputs == outputs
    assert calls == previous_calls


def test_the_time_of_an_event_is_that_of_the_record_of_its_action(make: Make) -> None:
    harness = make(Calls, crash=None, forced_replay=False, forced_restart=False)
    begin = harness.snapshot()
    harness.push(1)
    [sent] = harness.delayed()
    harness.advance_time(4_000)
    harness.recover(begin)
    assert [delayed_event.due for delayed_event in harness.delayed()] == [sent.due]


def test_an_action_that_fails_has_sent_nothing(make: Make) -> None:
    class Fails(Agent):
        @action(InputEvent, on_error=OnError.IGNORE)
        def take(self, event: InputEvent, ctx: Any) -> None:
            ctx.send_event(Later(what=event.input), delay=10)
            raise ValueError("no")

        @action(Later)
        def later(self, event: Later, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.what)

    harness = make(Fails)
    harness.push("a")
    assert harness.delayed() == []
    assert harness.advance_time(10_000) == []


def test_an_action_that_is_tried_again_has_sent_once(make: Make) -> None:
    class Flaky(Agent):
        @action(InputEvent, retry=RetryPolicy(initial_interval=0, max_attempts=3))
        def take(self, event: InputEvent, ctx: Any) -> None:
            ctx.send_event(Later(what=event.input), delay=10)
            if not calls:
                calls.append("failed")
                raise ValueError("no")

        @action(Later)
        def later(self, event: Later, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.what)

    harness = make(Flaky)
    harness.push("a")
    assert len(harness.delayed()) == 1
    assert harness.advance_time(10_000) == ["a"]


def test_the_content_of_an_event_is_that_of_when_it_was_sent(make: Make) -> None:
    class Changes(Agent):
        @action(InputEvent)
        def take(self, event: InputEvent, ctx: Any) -> None:
            what = [event.input]
            ctx.send_event(Later(what=what), delay=10)
            what.append("changed")

        @action(Later)
        def later(self, event: Later, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.what)

    harness = make(Changes)
    harness.push("a")
    assert harness.advance_time(10_000) == [["a"]]


def test_no_delay_belongs_to_the_run_and_a_delay_of_zero_does_not(make: Make) -> None:
    class Both(Agent):
        @action(InputEvent)
        def take(self, event: InputEvent, ctx: Any) -> None:
            ctx.send_event(Later(what="own"), delay=0)
            ctx.send_event(Later(what="same"), delay=None)
            ctx.send_event(Later(what="too"))

        @action(Later)
        def later(self, event: Later, ctx: Any) -> OutputEvent:
            return OutputEvent(output=(event.what, ctx.sequence_number))

    harness = make(Both)
    assert harness.push("a") == [("same", 0), ("too", 0), ("own", 1)]


def test_an_output_can_leave_later_as_a_run_of_its_own(make: Make) -> None:
    class Out(Agent):
        output_type = int

        @action(InputEvent)
        def take(self, event: InputEvent, ctx: Any) -> None:
            ctx.send_event(OutputEvent(output=event.input), delay=10)

    harness = make(Out)
    assert harness.push(1) == []
    assert harness.advance_time(10_000) == [1]
    assert harness.sequence_number() == 2
    with pytest.raises(ActionFailedError, match="output_type"):
        harness.push("no number")


class Shows(Agent):
    """Shows the lineage of what it handles."""

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.send_event(Later(what="b"), delay=10)
        return OutputEvent(output=event.id)

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        assert isinstance(event.lineage, DelayedLineage)
        seen = event.upstream_event_id, event.upstream_action_name, event.lineage.sender, event.id
        ctx.send_event(Later(what="c"), delay=10)
        return OutputEvent(output=seen)


def test_lineage_says_which_run_sent_an_event(make: Make) -> None:
    harness = make(Shows, lineage=True)
    harness.push("a")
    harness.advance_time(20_000)
    first, second, third = harness.outputs
    assert second.value[:3] == (first.value, "take", 0)
    assert third.value[:3] == (second.value[3], "later", 1)
    assert [output.lineage.sequence_number for output in harness.outputs] == [0, 1, 2]
    assert [output.lineage.parent for output in harness.outputs] == [
        None,
        first.lineage.run_id,
        second.lineage.run_id,
    ]
    assert len({output.lineage.id for output in harness.outputs}) == 3


@pytest.mark.parametrize(
    ("delay", "found"),
    [
        (-1, "-1 seconds"),
        (timedelta(seconds=-1), "-1.0 seconds"),
        (float("nan"), "nan seconds"),
        (float("inf"), "inf seconds"),
        (timedelta.max, "86400000000000.0 seconds"),
        pytest.param(10**400, "an int of 1329 bits", id="long"),
        ("10", "str '10'"),
        (True, "bool True"),
    ],
)
def test_a_delay_that_is_none_is_refused_by_the_authors_line(make: Make, delay: Any, found: str) -> None:
    class Bad(Agent):
        @action(InputEvent)
        def take(self, event: InputEvent, ctx: Any) -> None:
            ctx.send_event(Later(what=1), delay=delay)

        @action(Later)
        def later(self, event: Later, ctx: Any) -> None: ...

    harness = make(Bad)
    with pytest.raises(ActionFailedError) as caught:
        harness.push("a")
    text = str(caught.value)
    assert "InvalidDurationError" in text and found in text and "delay=None" in text
    assert text.startswith("tests/runtime/operator/test_operator_delayed.py:") and "Bad.take" in text


def test_what_nobody_could_take_is_refused_when_it_is_sent(make: Make) -> None:
    class Bad(Agent):
        @action(InputEvent)
        def take(self, event: InputEvent, ctx: Any) -> None:
            bad_event = {"event": Unknown(), "value": 1, "object": Later(what=object())}[event.input]
            ctx.send_event(bad_event, delay=1)

        @action(Later)
        def later(self, event: Later, ctx: Any) -> None: ...

    for name, error in (("event", "UnknownEvent"), ("value", "NotAnEvent"), ("object", "Unserializable")):
        with pytest.raises(ActionFailedError, match=error):
            make(Bad).push(name)


def test_a_run_sends_no_more_events_than_it_may(make: Make) -> None:
    harness = make(Plain, config={"run.max-events": 3}, crash=None)
    harness.push(("a", 1, 1))
    with pytest.raises(ActionFailedError, match="EventLimitError"):
        harness.push(("b", 1, 1, 1, 1))


def test_an_asked_agent_cannot_send_later(make: Make) -> None:
    class Asks(Agent):
        @action(InputEvent)
        async def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(Plain, (event.input, 10)))

    with pytest.raises(ActionFailedError, match="with a delay"):
        make(Asks).push("a")


def test_an_agent_whose_new_code_sends_nothing_later_gets_what_was_sent(make: Make) -> None:
    class Newer(Agent):
        @action(InputEvent, emits=[Later])
        def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.input)

        @action(Later)
        def other(self, event: Later, ctx: Any) -> OutputEvent:
            return OutputEvent(output=("newer", event.what))

    old_harness = make(Plain)
    old_harness.push(("a", 10))
    after = make(Newer)
    after.restore(old_harness.snapshot())
    assert after.advance_time(old_harness.current_time - after.current_time + 10_000) == [("newer", "a0")]
