"""Runs that do not end are reported while they go on, with what they wait for."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from watch_tools import STUCK, Reports, WithClient, harness_of, harness_with, until

from flink_agents import Agent, Event, InputEvent, OutputEvent, RateLimit, RetryPolicy, Tool
from flink_agents.api.events.key_requests import WATCH_MARK
from flink_agents.runtime.loop import watchdog
from tests.suite.tables import each_case

LEAVE = threading.Event()

pytestmark = pytest.mark.executes_once


def seen_at(text: str, function: str, line: str) -> None:
    """Check that the report begins at a line of this file, and shows it as the innermost of these."""
    first, *remaining_lines = text.splitlines()
    assert first.startswith("tests/runtime/loop/test_loop_watch_runs.py:"), text
    place, _, behind = first.partition(" in ")
    name, _, _ = behind.partition(": ")
    assert name.rpartition(".")[2] == function, text
    number = place.rpartition(":")[2]
    shown = [
        at
        for at, report_line in enumerate(remaining_lines)
        if f'test_loop_watch_runs.py", line {number}, in ' in report_line
    ]
    assert shown, text
    assert remaining_lines[shown[-1] + 1].strip() == line, text


async def never(event: InputEvent, ctx: Any) -> None:
    await asyncio.Event().wait()


def test_run_that_does_not_end_is_reported(reports: Reports) -> None:
    with harness_of(never, STUCK) as harness:
        harness.push("k")
        (text,) = reports(1)
        assert harness.run_metrics["runs_stuck"] == 1
    seen_at(text, "never", "await asyncio.Event().wait()")
    assert ": action act of agent watched, key 'k', sequence 0, event '_input_event', runs for " in text
    assert ", and waits for asyncio.locks." in text.splitlines()[0]
    assert "Event.wait" in text
    assert "flink_agents/runtime" not in text


def blocks() -> None:
    LEAVE.wait()


async def calls(event: InputEvent, ctx: Any) -> None:
    await ctx.durable_execute_async(blocks)


@each_case("act, function", [(never, "never"), (calls, "blocks")])
def test_a_line_for_programs_names_the_line_that_waits(
    act: Any, function: str, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flink_agents.watched")
    caplog.clear()
    LEAVE.clear()
    with harness_of(act, STUCK) as harness:
        harness.push("k")
        reports(1)
        until(lambda: [record for record in caplog.records if record.name == "flink_agents.watched"])
        LEAVE.set()
    line = next(record.getMessage() for record in caplog.records if record.name == "flink_agents.watched")
    assert json.loads(line.removeprefix(WATCH_MARK))["where"].endswith(f" in {function}"), line


def test_each_run_is_reported_once(reports: Reports) -> None:
    with harness_of(never, STUCK) as harness:
        harness.push("a")
        reports(1)
        # Each look that sees this one saw the first one again.
        harness.push("b")
        reports(2)
        harness.push("c")
        texts = reports(3)
        assert harness.run_metrics["runs_stuck"] == 3
    assert [text.count(f"key {key!r}") for key, text in zip("abc", texts, strict=True)] == [1, 1, 1]


def test_run_that_ends_after_all_is_told(reports: Reports) -> None:
    leave = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> Event:
        while not leave.is_set():
            await asyncio.sleep(0.001)
        leave.clear()
        return OutputEvent(output=event.input)

    with harness_of(act, STUCK) as harness:
        harness.push_all(["k", "k"])
        reports(1)
        leave.set()
        # The next run of the key is another one.
        first, second = reports(2)
        leave.set()
        ends = reports(2, logging.INFO)
        assert harness.run_until_idle() == ["k", "k"]
        assert harness.run_metrics["runs_stuck"] == 2
    assert "key 'k', sequence 0, event" in first and "key 'k', sequence 1, event" in second
    assert "waits for asyncio.sleep(0.001)" in first
    for number, text in enumerate(ends):
        assert text.startswith(f"agent watched, key 'k', sequence {number}: the run ended after all; it took")


def test_quick_runs_are_not_reported(reports: Reports) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        if event.input == "stuck":
            await asyncio.Event().wait()

    with harness_of(act, {"run.stuck-after": "50 ms", "loop.blocked-after": "0 s"}) as harness:
        harness.push("stuck")
        until(lambda: harness.push("quick") or harness.run_metrics["runs_stuck"])
        (text,) = reports(1)
    assert "key 'stuck'" in text


def test_run_that_has_not_begun_is_not_taken_for_the_one_before(reports: Reports) -> None:
    looked = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        if event.input == "looks":
            # Its task is there, but has not begun: the key still has the state of its last run.
            squick = agent_loop().actors["squick"]
            inner = agent_loop().loop_access.running_loop
            task = asyncio.create_task(inner._work(squick))
            inner._watch._actors = {task: squick}
            inner._watch._report_old_runs(squick.state.started + 3600)
            looked.set()

    with harness_of(act, {"run.stuck-after": "1 h", "loop.blocked-after": "0 s"}) as harness:

        def agent_loop() -> Any:
            return harness._subtasks[0].processor

        harness.push("quick")
        until(
            lambda: agent_loop().actors["squick"].ended and not agent_loop().loop_access.running_loop._tasks
        )
        harness.push("looks")
        assert looked.wait(30)
        assert harness.run_metrics["runs_stuck"] == 0


async def deep(event: InputEvent, ctx: Any) -> None:
    await level(3)


async def level(number: int) -> None:
    if number:
        await level(number - 1)
    await asyncio.get_running_loop().create_future()


async def generates(event: InputEvent, ctx: Any) -> AsyncIterator[Event]:
    yield OutputEvent(output=1)
    async for _ in endless():
        pass


async def endless() -> AsyncIterator[int]:
    await asyncio.get_running_loop().create_future()
    yield 1


class Custom:
    def __await__(self) -> Any:
        return level(0).__await__()


async def through_an_object(event: InputEvent, ctx: Any) -> None:
    await Custom()


async def through_wait_for(event: InputEvent, ctx: Any) -> None:
    await asyncio.wait_for(level(0), 3600)


async def through_a_task(event: InputEvent, ctx: Any) -> None:
    await asyncio.create_task(level(0))


@pytest.mark.parametrize("timeout", [None, 3600])
@pytest.mark.parametrize(
    ("act", "inner"),
    [
        (deep, "level"),
        (generates, "endless"),
        (through_an_object, "level"),
        (through_wait_for, "level"),
        (through_a_task, "level"),
    ],
)
def test_stack_leads_to_the_innermost_await(
    act: Any, inner: str, timeout: float | None, reports: Reports
) -> None:
    with harness_of(act, STUCK, timeout=timeout) as harness:
        harness.push("k")
        (text,) = reports(1)
    seen_at(text, inner, "await asyncio.get_running_loop().create_future()")
    assert text.splitlines()[0].endswith(" and waits for a future")
    assert f", in {act.__name__}\n" in text
    assert "task '" not in text and "flink_agents/runtime" not in text


async def gathers(event: InputEvent, ctx: Any) -> None:
    await asyncio.gather(asyncio.sleep(3600), level(0), asyncio.sleep(0))


async def groups(event: InputEvent, ctx: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(3600))
        group.create_task(level(0))


def test_tasks_that_a_step_waits_for_are_named(reports: Reports) -> None:
    acts = [(gathers, "asyncio.gather"), (groups, "asyncio.taskgroups.TaskGroup.__aexit__")]
    for number, (act, waits) in enumerate(acts, 1):
        with harness_of(act, STUCK) as harness:
            harness.push("k")
            text = reports(number)[-1]
        first, *lines = text.splitlines()
        assert first.endswith(f"waits for {waits}"), text
        assert [line for line in lines if "asyncio.tasks.sleep, waits for asyncio.sleep(3600)" in line]
        [line] = [line for line in lines if line.endswith("in level, waits for a future")]
        assert line.startswith("  task 'Task-")
        assert sum("  task '" in report_line for report_line in lines) == 2


def test_many_tasks_are_counted(reports: Reports) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        await asyncio.gather(*(level(0) for _ in range(9)))

    with harness_of(act, STUCK) as harness:
        harness.push("k")
        (text,) = reports(1)
    assert text.count("task '") == 5
    assert text.endswith("and 4 more tasks")


def reports_of_two(act: Any, reports: Reports, config: dict[str, Any], **options: Any) -> list[str]:
    """Reports of two runs, the first of which stands in the way of the second."""
    with harness_of(act, {**STUCK, **config}, **options) as harness:
        harness.push("first")
        reports(1)
        harness.push("second")
        first, second = reports(2)
    assert "key 'first'" in first and "key 'second'" in second
    return [first.splitlines()[0], second.splitlines()[0]]


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({"run.max-in-flight": 1}, {}, "a slot of run.max-in-flight"),
        ({}, {"max_concurrency": 1}, "max_concurrency of the action"),
        ({}, {"rate_limit": RateLimit(1, per=3600)}, "rate limit of the action"),
    ],
)
def test_waiting_for_a_place_is_named(
    config: dict[str, Any], options: dict[str, Any], expected: str, reports: Reports
) -> None:
    first, second = reports_of_two(never, reports, config, **options)
    assert "waits for asyncio.locks." in first
    assert second.endswith(f"waits for {expected}")
    # No line of the author's is reached yet: the action itself is named.
    assert (
        second.startswith("tests/runtime/loop/test_loop_watch_runs.py:") and " in never: action act" in second
    )


async def hold(number: int) -> None:
    await asyncio.Event().wait()


def test_waiting_for_a_limit_of_a_tool_is_named(reports: Reports) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        await ctx.get_resource("hold", "tool")(1)

    agent = Agent(name="watched").add_action("act", [InputEvent], act)
    agent.add_resource("hold", "tool", Tool(hold, max_concurrency=1))
    with harness_with(agent, STUCK) as harness:
        harness.push("a")
        reports(1)
        harness.push("b")
        _, text = reports(2)
    assert text.splitlines()[0].endswith("waits for max_concurrency of tool 'hold'")
    seen_at(text, "act", 'await ctx.get_resource("hold", "tool")(1)')


def test_pause_before_the_next_attempt_is_named(reports: Reports) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        raise OSError("refused")

    retry = RetryPolicy(initial_interval=3600, max_interval=3600)
    with harness_of(act, STUCK, retry=retry) as harness:
        harness.push("k")
        (text,) = reports(1)
    assert text.splitlines()[0].endswith("and waits for a pause before attempt 2")
    assert "event '_input_event', attempt 2, runs for" in text
    assert "in pause" in text and "flink_agents/runtime" not in text


def test_attempt_is_named(reports: Reports) -> None:
    errors = [OSError(), OSError()]

    async def act(event: InputEvent, ctx: Any) -> None:
        if errors:
            raise errors.pop()
        await asyncio.sleep(3600)

    with harness_of(act, STUCK, retry=RetryPolicy(initial_interval=0)) as harness:
        harness.push("k")
        (text,) = reports(1)
    assert "event '_input_event', attempt 3, runs for" in text
    assert text.splitlines()[0].endswith("waits for asyncio.sleep(3600)")


@pytest.mark.parametrize("options", [{"blocking": True}, {"timeout": 3600}], ids=["blocking", "timed"])
def test_stack_of_the_thread_of_a_def_action(options: dict[str, Any], reports: Reports) -> None:
    leave = threading.Event()

    def act(event: InputEvent, ctx: Any) -> None:
        leave.wait(30)

    try:
        with harness_of(act, {**STUCK, "run.pool-size": 1}, **options) as harness:
            harness.push("a")
            reports(1)
            harness.push("b")
            first, second = reports(2)
            leave.set()
            harness.run_until_idle()
    finally:
        leave.set()
    seen_at(first, "act", "leave.wait(30)")
    assert first.splitlines()[0].endswith("waits for its thread of the pool")
    assert "threading.py" in first and "flink_agents/runtime" not in first
    assert second.splitlines()[0].endswith("waits for a thread of the pool")


def test_limit_of_a_tool_that_a_thread_waits_for_is_named(reports: Reports) -> None:
    leave = threading.Event()

    def keep(number: int) -> None:
        leave.wait(30)

    def act(event: InputEvent, ctx: Any) -> None:
        ctx.get_resource("keep", "tool")(1)

    agent = Agent(name="watched").add_action("act", [InputEvent], act, blocking=True)
    agent.add_resource("keep", "tool", Tool(keep, max_concurrency=1))
    try:
        with harness_with(agent, STUCK) as harness:
            harness.push("a")
            reports(1)
            harness.push("b")
            _, text = reports(2)
            leave.set()
            harness.run_until_idle()
    finally:
        leave.set()
    assert text.splitlines()[0].endswith(
        "its thread of the pool, and that for max_concurrency of tool 'keep'"
    )
    seen_at(text, "act", 'ctx.get_resource("keep", "tool")(1)')


def test_other_threads_are_named(reports: Reports) -> None:
    leave = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        await asyncio.to_thread(leave.wait)

    try:
        with harness_of(act, STUCK) as harness:
            harness.push("k")
            (text,) = reports(1)
            leave.set()
            harness.run_until_idle()
    finally:
        leave.set()
    assert text.splitlines()[0].endswith("waits for asyncio.to_thread(Event.wait)")
    seen_at(text, "act", "await asyncio.to_thread(leave.wait)")


def test_client_that_does_not_open_is_named(reports: Reports) -> None:
    class Waiting(WithClient):
        async def open(self) -> None:
            await asyncio.get_running_loop().create_future()

    with harness_with(Waiting, STUCK) as harness:
        harness.push("k")
        (text,) = reports(1)
    assert "and waits for the client 'slow' to open, and that for a future" in text
    seen_at(text, "open", "await asyncio.get_running_loop().create_future()")
    assert ", in slow\n" in text


def test_many_runs_are_told_in_short(reports: Reports) -> None:
    """They begin at once: the loop is held up until all are there."""
    leave = threading.Event()
    count = 10 * watchdog.MANY

    async def act(event: InputEvent, ctx: Any) -> None:
        if event.input < 0:
            leave.wait(30)
        await asyncio.Event().wait()

    with harness_of(act, {**STUCK, "run.stuck-after": "50 ms"}) as harness:
        harness.push_all(range(-1, count))
        leave.set()
        until(lambda: harness.run_metrics["runs_stuck"] > count)
    texts = reports(1)
    short = [text for text in texts if " more runs take longer than 0.05 s: keys " in text]
    assert short
    assert len(texts) - len(short) + sum(int(text.split()[2]) for text in short) == count + 1
    assert len(short[0].split(": keys ")[1].split(", ")) <= watchdog.MANY + 1
