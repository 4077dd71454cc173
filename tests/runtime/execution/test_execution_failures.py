"""Actions that raise: the policies, what is taken back, and what a dead letter tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from core_agents import Other, Step

from flink_agents import Agent, DeadLetter, Event, InputEvent, OnError, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, MemoryPathError
from flink_agents.testing import OperatorHarness


class OrderRefused(Exception):
    pass


def leave_traces(ctx: Any, name: str) -> None:
    """Write and send by every way that there is."""
    ctx.short_term_memory.set("mine", name)
    ctx.short_term_memory.set("new.object", name)
    ctx.short_term_memory.append("log", name)
    ctx.short_term_memory.delete("victim")
    ctx.sensory_memory.set("mine", name)
    ctx.send_event(Step(number=99))
    ctx.send_event(OutputEvent(output=f"{name} must not leave"))
    ctx.emit_to("audit", f"{name} must not leave")


def fail_plainly(self: Any, event: InputEvent, ctx: Any) -> Event | None:
    leave_traces(ctx, "failing")
    if event.input == "bad":
        raise OrderRefused("no stock")
    return None


def fail_in_generator(self: Any, event: InputEvent, ctx: Any) -> Iterator[Event]:
    yield OutputEvent(output="must not leave")
    leave_traces(ctx, "failing")
    yield Step(number=98)
    if event.input == "bad":
        raise OrderRefused("no stock")


def fail_by_result(self: Any, event: InputEvent, ctx: Any) -> Any:
    leave_traces(ctx, "failing")
    return [OutputEvent(output="must not leave"), 5] if event.input == "bad" else None


def fail_by_exit(self: Any, event: InputEvent, ctx: Any) -> None:
    leave_traces(ctx, "failing")
    if event.input == "bad":
        raise SystemExit(3)


async def fail_in_coroutine(self: Any, event: InputEvent, ctx: Any) -> None:
    leave_traces(ctx, "failing")
    if event.input == "bad":
        raise OrderRefused("no stock")


async def fail_in_async_generator(self: Any, event: InputEvent, ctx: Any) -> AsyncIterator[Event]:
    yield OutputEvent(output="must not leave")
    leave_traces(ctx, "failing")
    if event.input == "bad":
        raise OrderRefused("no stock")


async def fail_by_cancellation(self: Any, event: InputEvent, ctx: Any) -> None:
    leave_traces(ctx, "failing")
    if event.input == "bad":
        waiting = asyncio.ensure_future(asyncio.sleep(9))
        waiting.cancel()
        await waiting


def fail_with_clean_up(self: Any, event: InputEvent, ctx: Any) -> Iterator[Any]:
    try:
        leave_traces(ctx, "failing")
        yield OutputEvent(output="must not leave")
        yield 5 if event.input == "bad" else None
    finally:
        ctx.short_term_memory.set("mine", "failing")


async def fail_with_async_clean_up(self: Any, event: InputEvent, ctx: Any) -> AsyncIterator[Any]:
    try:
        leave_traces(ctx, "failing")
        yield 5 if event.input == "bad" else None
    finally:
        ctx.short_term_memory.set("mine", "failing")


WAYS = [
    fail_plainly,
    fail_in_generator,
    fail_by_result,
    fail_by_exit,
    fail_in_coroutine,
    fail_in_async_generator,
    fail_by_cancellation,
    fail_with_clean_up,
    fail_with_async_clean_up,
]


class Shop(Agent):
    """Three actions for each input; the middle one is given by the test and may fail."""

    side_outputs = {"audit": str}

    @action(InputEvent)
    def before(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        memory = ctx.short_term_memory
        memory.set("victim", "alive")
        memory.set("mine", "before")
        memory.set("log", ["before"])
        ctx.sensory_memory.set("mine", "before")
        ctx.emit_to("audit", "before")
        yield OutputEvent(output="before")
        yield Step(number=1)

    @action(InputEvent)
    def failing(self, event: InputEvent, ctx: Any) -> Any:
        raise NotImplementedError

    @action(InputEvent)
    def after(self, event: InputEvent, ctx: Any) -> Event:
        memory = ctx.short_term_memory
        memory.append("log", "after")
        seen = memory.get("mine"), ctx.sensory_memory.get("mine"), memory.field_names()
        return OutputEvent(output=seen)

    @action(Step)
    def chained(self, event: Step, ctx: Any) -> Event:
        ctx.short_term_memory.append("log", f"step {event.number}")
        return OutputEvent(output=f"step {event.number}")


def shop(way: Any, **attributes: Any) -> Agent:
    """An instance of ``Shop`` whose middle action is ``way``."""
    return type("Shop", (Shop,), {"failing": way, "__module__": __name__, **attributes})()


AFTER_ROLLBACK = [
    "before",
    ("before", "before", ["log", "mine", "victim"]),
    "step 1",
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("policy", ["ignore", "dead-letter"])
def test_failed_action_leaves_no_trace_and_the_run_goes_on(policy: str, way: Any) -> None:
    harness = OperatorHarness(shop(way), config={"actions.on-error": policy})
    assert harness.push("bad") == AFTER_ROLLBACK
    assert harness.memory() == {"victim": "alive", "mine": "before", "log": ["before", "after", "step 1"]}
    assert harness.side_output("audit") == ["before"]
    assert [letter.action for letter in harness.dead_letters] == ["failing"] * (policy == "dead-letter")
    assert harness.sequence_number() == 1
    harness.close()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_failed_job_leaves_no_trace(way: Any) -> None:
    harness = OperatorHarness(shop(way))
    harness.push("good")
    memory = harness.memory()
    outputs = list(harness.outputs)
    audit = list(harness.side_output("audit"))
    with pytest.raises(ActionFailedError):
        harness.push("bad")
    # An action that is awaited fails on its own time: its input waits in state till the restart.
    assert harness.memory() == memory
    assert harness.sequence_number() == 1
    assert harness.outputs == outputs
    assert harness.side_output("audit") == audit
    harness.close()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_the_good_runs_sent_is_all_there(way: Any) -> None:
    """The counterpart of the tests above: these ways do leave traces where they do not fail."""
    harness = OperatorHarness(shop(way))
    outputs = harness.push("good")
    assert "failing must not leave" in outputs
    assert "step 99" in outputs
    assert harness.side_output("audit") == ["before", "failing must not leave"]
    assert harness.memory()["mine"] == "failing"
    assert "victim" not in harness.memory()
    harness.close()


# -- which policy --------------------------------------------------------------------

POLICIES = [
    # option, agent, action -> what happens
    (None, None, None, "fail"),
    ("ignore", None, None, "ignore"),
    ("fail", "ignore", None, "ignore"),
    ("ignore", "fail", None, "fail"),
    ("ignore", "dead-letter", "fail", "fail"),
    ("fail", "fail", "dead-letter", "dead-letter"),
    ("fail", "dead-letter", OnError.IGNORE, "ignore"),
]


@pytest.mark.parametrize(("option", "agent", "action_", "expected"), POLICIES)
def test_nearest_policy_wins(option: Any, agent: Any, action_: Any, expected: str) -> None:
    way = action(InputEvent, on_error=action_)(lambda self, event, ctx: 1 / 0)
    shop_agent = shop(way)
    shop_agent.on_error = agent
    harness = OperatorHarness(shop_agent, config={"actions.on-error": option} if option else None)
    if expected == "fail":
        with pytest.raises(ActionFailedError):
            harness.push(1)
        return
    assert harness.push(1) == AFTER_ROLLBACK
    assert len(harness.dead_letters) == (expected == "dead-letter")
    counter = "events_dead_lettered" if expected == "dead-letter" else "events_ignored"
    assert harness.run_metrics[counter] == 1


class TwoPolicies(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        yield Step(number=event.input)
        yield Other(value=event.input)

    @action(Step, on_error="dead-letter")
    def fragile(self, event: Step, ctx: Any) -> Event:
        return OutputEvent(output=10 // event.number)

    @action(Other, on_error="ignore")
    def careless(self, event: Other, ctx: Any) -> Event:
        return OutputEvent(output=100 // event.value)


@pytest.mark.executes_once
def test_policies_of_the_actions_of_one_chain() -> None:
    harness = OperatorHarness(TwoPolicies)
    assert harness.push_all([5, 0, 2]) == [2, 20, 5, 50]
    assert [letter.event for letter in harness.dead_letters] == [Step(number=0)]
    assert harness.run_metrics.items() >= {"events_dead_lettered": 1, "events_ignored": 1}.items()


# -- what is told --------------------------------------------------------------------


class Payload:
    def __init__(self, number: int) -> None:
        self.number = number

    def check(self) -> None:
        raise OrderRefused(f"number {self.number}")


class Deep(Agent):
    @action(InputEvent)
    def dive(self, event: InputEvent, ctx: Any) -> None:
        Payload(event.input["number"]).check()


def test_dead_letter_tells_what_why_and_where() -> None:
    harness = OperatorHarness(
        Deep, key_selector=lambda record: (record["user"], 1), config={"actions.on-error": "dead-letter"}
    )
    harness.push({"user": "ada", "number": 7}, timestamp=1234)
    harness.push({"user": "ada", "number": 8})
    first, second = harness.dead_letters
    assert type(first) is DeadLetter
    assert (first.agent, first.action, first.key) == ("Deep", "dive", ("ada", 1))
    assert (first.sequence_number, second.sequence_number) == (0, 1)
    assert (first.timestamp, second.timestamp) == (1234, None)
    assert first.event == InputEvent(input={"user": "ada", "number": 7})
    assert first.event_type == "_input_event"
    assert (first.error_type, first.error_message) == ("OrderRefused", "number 7")
    assert first.where.startswith("tests/runtime/execution/test_execution_failures.py:")
    assert first.where.endswith("check") or first.where.endswith("Payload.check")
    assert "OrderRefused: number 7" in first.traceback
    assert "flink_agents/runtime" not in first.traceback


def test_failure_tells_the_users_own_line_first() -> None:
    harness = OperatorHarness(Deep, key_selector=lambda record: "k")
    with pytest.raises(ActionFailedError) as caught:
        harness.push({"number": 7})
    first, second, *_ = str(caught.value).split("\n")
    assert first.startswith("tests/runtime/execution/test_execution_failures.py:")
    assert first.endswith("OrderRefused: number 7")
    assert second == "  agent Deep, action dive, key 'k', sequence 0, event _input_event"
    assert (caught.value.agent, caught.value.action, caught.value.key) == ("Deep", "dive", "k")
    assert isinstance(caught.value.__cause__, OrderRefused)


def test_failure_inside_the_package_names_the_line_of_the_call() -> None:
    class Careless(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None:
            ctx.short_term_memory.get("bad..path")

    with pytest.raises(ActionFailedError) as caught:
        OperatorHarness(Careless).push(1)
    assert (caught.value.where or "").startswith("tests/runtime/execution/test_execution_failures.py:")
    assert isinstance(caught.value.__cause__, MemoryPathError)
    assert caught.value.expected


def test_result_that_is_no_event_names_the_action() -> None:
    with pytest.raises(ActionFailedError, match="test_execution_failures.py") as caught:
        OperatorHarness(shop(fail_by_result)).push("bad")
    assert "int 5" in (caught.value.found or "")


@pytest.mark.executes_once
@pytest.mark.parametrize("policy", ["ignore", "dead-letter"])
def test_failure_is_logged(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    harness = OperatorHarness(Deep, config={"actions.on-error": policy})
    with caplog.at_level(logging.WARNING, logger="flink_agents"):
        harness.push({"number": 7})
    (record,) = caplog.records
    text = record.getMessage()
    for part in (
        "test_execution_failures.py",
        "action dive",
        "agent Deep",
        "key 0",
        "sequence 0",
        policy,
        "number 7",
    ):
        assert part in text


class TwoLines(Exception):
    def __str__(self) -> str:
        return "line one\nline two"


def test_error_of_several_lines_keeps_all_of_them() -> None:
    class Talks(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None:
            raise TwoLines

    with pytest.raises(ActionFailedError) as caught:
        OperatorHarness(Talks).push(1)
    lines = str(caught.value).split("\n")
    assert lines[0].endswith("TwoLines: line one")
    assert "line two" in lines


def test_operator_works_on_after_a_failed_run() -> None:
    harness = OperatorHarness(shop(fail_plainly))
    with pytest.raises(ActionFailedError):
        harness.push("bad")
    assert "step 99" in harness.push("good")
    assert harness.sequence_number() == 1


def test_interrupt_is_no_failure_of_the_action() -> None:
    class Interrupted(Agent):
        on_error = "ignore"

        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OperatorHarness(Interrupted).push(1)


@pytest.mark.executes_once
def test_clean_up_of_a_failed_generator_still_belongs_to_the_action() -> None:
    seen: list[str] = []

    def act(event: InputEvent, ctx: Any) -> Iterator[Any]:
        try:
            yield 5
        finally:
            seen.append(ctx.short_term_memory.get("place", "none yet"))

    agent = Agent(name="probe").add_action("act", [InputEvent], act, on_error="ignore")
    assert OperatorHarness(agent, forced_serialization=False).push(1) == []
    assert seen == ["none yet"]
