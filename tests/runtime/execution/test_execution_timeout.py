"""Timeouts of actions, and asyncio inside of actions as its users know it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import ActionFailedError, ActionTimeoutError, ContextMisuseError
from flink_agents.runtime.concurrency import timeouts
from flink_agents.testing import OperatorHarness

SHORT = 0.01
"""Seconds, for actions that never end."""

ENOUGH = 0.25
"""Seconds, where other actions have to end in time."""


def harness_of(act: Any, auto_run: bool = True, config: Any = None, **options: Any) -> OperatorHarness:
    agent = Agent(name="timed").add_action("act", [InputEvent], act, **options)
    return OperatorHarness(
        agent, lambda record: record, config=config, forced_serialization=False, auto_run=auto_run
    )


async def never(event: InputEvent, ctx: Any) -> Event:
    ctx.short_term_memory.set("trace", "left")
    await asyncio.Event().wait()
    return OutputEvent(output="never")


async def generate_never(event: InputEvent, ctx: Any) -> AsyncIterator[Event]:
    yield OutputEvent(output="trace")
    await asyncio.Event().wait()


async def never_in_a_task(event: InputEvent, ctx: Any) -> None:
    await asyncio.gather(never(event, ctx), asyncio.sleep(3600))


@pytest.mark.parametrize("act", [never, generate_never, never_in_a_task])
def test_async_action_that_takes_too_long_fails(act: Any) -> None:
    with harness_of(act, timeout=SHORT) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("x")
    cause = caught.value.__cause__
    assert isinstance(cause, ActionTimeoutError)
    assert isinstance(cause, TimeoutError)
    assert (cause.code, cause.seconds) == ("FA4011", SHORT)
    assert "ActionTimeoutError: action 'act' took longer than its timeout" in str(caught.value)
    assert caught.value.expected == "an end within 0.01 s"


def test_error_names_the_line_that_waited() -> None:
    with harness_of(never, timeout=SHORT, on_error="dead-letter") as harness:
        assert harness.push("x") == []
        (letter,) = harness.dead_letters
        assert harness.memory("x") == {}
        assert harness.run_metrics.items() >= {"action_timeouts": 1, "events_dead_lettered": 1}.items()
    assert letter.where.startswith("tests/runtime/execution/test_execution_timeout.py:")
    assert letter.where.endswith("in never")


@pytest.mark.executes_once
def test_timeout_frees_the_place_and_is_tried_again() -> None:
    attempts: list[Any] = []

    async def act(event: InputEvent, ctx: Any) -> Event:
        attempts.append(event.input)
        if event.input == "slow" and attempts.count("slow") < 3:
            await asyncio.Event().wait()
        return OutputEvent(output=event.input)

    retry = RetryPolicy(initial_interval=0)
    config = {"run.max-in-flight": 1}
    with harness_of(act, auto_run=False, config=config, timeout=ENOUGH, retry=retry) as harness:
        harness.push_all(["slow", "quick"])
        harness.run_until_idle()
        assert sorted(harness.outputs) == ["quick", "slow"]
        assert harness.run_metrics.items() >= {"action_timeouts": 2, "action_retries": 2}.items()
    assert attempts.count("slow") == 3


@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["plain", "timed"])
def test_action_within_its_time_is_as_without(options: Any) -> None:
    async def act(event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("seen", event.input)
        await asyncio.sleep(0)
        if event.input == "bad":
            raise ValueError("bad")
        return OutputEvent(output=event.input)

    with harness_of(act, on_error="ignore", **options) as harness:
        assert harness.push_all(["good", "bad"]) == ["good"]
        assert harness.memory("good") == {"seen": "good"}
        assert harness.memory("bad") == {}


@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["plain", "timed"])
def test_clean_up_runs_and_its_errors_do_not_hide_the_timeout(options: Any) -> None:
    seen: list[str] = []

    async def act(event: InputEvent, ctx: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append("cleaned up")
            raise OSError("in the clean-up")

    with harness_of(act, timeout=SHORT) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("x")
    assert isinstance(caught.value.__cause__, ActionTimeoutError)
    assert seen == ["cleaned up"]


@pytest.mark.executes_once
def test_action_that_ignores_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeouts, "CANCEL_SECONDS", SHORT)
    ends: list[asyncio.Event] = []
    errors: list[BaseException] = []

    async def act(event: InputEvent, ctx: Any) -> Event | None:
        if event.input == "next":
            ends[0].set()
            return OutputEvent(output="next")
        end = asyncio.Event()
        ends.append(end)
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        try:
            ctx.short_term_memory.set("late", True)
        except ContextMisuseError as error:
            errors.append(error)
        return None

    with caplog.at_level(logging.WARNING, logger="flink_agents"):
        with harness_of(act, timeout=ENOUGH, on_error="ignore") as harness:
            assert harness.push_all(["stubborn", "next"]) == ["next"]
            assert harness.memory("stubborn") == {}
    assert "keeps running although it was cancelled" in caplog.text
    assert len(errors) == 1


# -- def actions ---------------------------------------------------------------------


@pytest.mark.executes_once
def test_def_action_that_takes_too_long_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    leave, finished = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def act(event: InputEvent, ctx: Any) -> Iterator[Event]:
        memory = ctx.short_term_memory
        memory.set("trace", event.input)
        if event.input == "slow" and not leave.is_set():
            leave.wait(30)
            try:
                memory.set("late", True)
            except ContextMisuseError as error:
                errors.append(error)
            finished.set()
        yield OutputEvent(output=event.input)

    with caplog.at_level(logging.WARNING, logger="flink_agents"):
        with harness_of(act, timeout=ENOUGH, on_error="dead-letter") as harness:
            assert harness.push_all(["slow", "quick"]) == ["quick"]
            leave.set()
            assert finished.wait(30)
            assert harness.push("slow") == ["slow"]
            assert harness.memory("slow") == {"trace": "slow"}
            (letter,) = harness.dead_letters
    assert letter.error_type == "ActionTimeoutError"
    assert "keeps running after its timeout" in caplog.text
    assert len(errors) == 1


@pytest.mark.executes_once
def test_threads_that_are_held_are_made_up_for() -> None:
    leave = threading.Event()

    def act(event: InputEvent, ctx: Any) -> Event:
        if event.input < 5:
            leave.wait(30)
        return OutputEvent(output=event.input)

    try:
        with harness_of(act, timeout=ENOUGH, on_error="ignore", config={"run.pool-size": 2}) as harness:
            assert harness.push_all(range(8)) == [5, 6, 7]
    finally:
        leave.set()


def test_time_in_the_queue_of_the_pool_does_not_count() -> None:
    """With one thread, each action waits for the ones before it."""
    pause = threading.Event()

    def act(event: InputEvent, ctx: Any) -> Event:
        pause.wait(0.002)
        return OutputEvent(output=event.input)

    with harness_of(act, auto_run=False, timeout=60, config={"run.pool-size": 1}) as harness:
        harness.push_all(range(20))
        harness.run_until_idle()
        assert sorted(harness.outputs) == list(range(20))


def test_memory_of_a_timed_def_action_joins_that_of_the_run() -> None:
    class Chain(Agent):
        @action(InputEvent)
        def first(self, event: InputEvent, ctx: Any) -> None:
            ctx.short_term_memory.append("log", "first")
            ctx.sensory_memory.set("from", "first")

        @action(InputEvent, timeout=60, on_error="ignore")
        def second(self, event: InputEvent, ctx: Any) -> None:
            ctx.short_term_memory.append("log", ctx.sensory_memory.get("from"))
            ctx.sensory_memory.set("from", "second")
            if event.input == "bad":
                raise OSError

        @action(InputEvent)
        def third(self, event: InputEvent, ctx: Any) -> Event:
            ctx.short_term_memory.append("log", "third")
            return OutputEvent(output=ctx.sensory_memory.get("from"))

    with OperatorHarness(Chain, lambda record: record, forced_replay=True) as harness:
        assert harness.push_all(["good", "bad"]) == ["second", "first"]
        assert harness.memory("good") == {"log": ["first", "first", "third"]}
        assert harness.memory("bad") == {"log": ["first", "third"]}


async def _rest(ctx: Any, text: str) -> Event:
    await asyncio.sleep(0)
    if text == "bad":
        raise OSError
    return OutputEvent(output=text)


def test_def_action_that_returns_an_awaitable_may_have_a_timeout() -> None:
    def act(event: InputEvent, ctx: Any) -> Any:
        ctx.short_term_memory.set("trace", event.input)
        return never(event, ctx) if event.input == "slow" else _rest(ctx, event.input)

    with harness_of(act, timeout=ENOUGH, on_error="ignore") as harness:
        assert harness.push_all(["good", "bad", "slow"]) == ["good"]
        assert [harness.memory(key) for key in ("good", "bad", "slow")] == [{"trace": "good"}, {}, {}]


# -- exits ---------------------------------------------------------------------------


async def exits(event: InputEvent, ctx: Any) -> None:
    raise SystemExit(3)


async def exits_in_a_task(event: InputEvent, ctx: Any) -> None:
    await asyncio.gather(exits(event, ctx))


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("way", [exits, exits_in_a_task])
def test_exit_ends_neither_the_loop_nor_another_key(way: Any, timeout: float | None) -> None:
    started: list[str] = []

    async def act(event: InputEvent, ctx: Any) -> Event | None:
        started.append(event.input)
        if event.input == "exits":
            return await way(event, ctx)
        while "exits" not in started:
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return OutputEvent(output=event.input)

    with harness_of(act, auto_run=False, timeout=timeout, on_error="dead-letter") as harness:
        harness.push_all(["one", "exits", "two"])
        harness.run_until_idle()
        assert sorted(harness.outputs) == ["one", "two"]
        assert harness.push("three") == []
        assert harness.run_until_idle() == ["three"]
        assert [letter.error_type for letter in harness.dead_letters] == ["SystemExit"]


def test_action_that_cancels_itself_fails_by_name() -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)

    with harness_of(act) as harness:
        with pytest.raises(ActionFailedError, match="CancelledError"):
            harness.push("x")


def test_action_that_cancels_itself_at_its_end_fails_by_name() -> None:
    def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    class Cancels(Agent):
        @action(InputEvent)
        async def first(self, event: InputEvent, ctx: Any) -> None:
            cancel()

        @action(InputEvent)
        async def second(self, event: InputEvent, ctx: Any) -> None:
            await asyncio.sleep(0)

        @action(InputEvent)
        async def third(self, event: InputEvent, ctx: Any) -> None:
            cancel()

        @action(InputEvent, blocking=True)
        def fourth(self, event: InputEvent, ctx: Any) -> None:
            pass

    with OperatorHarness(Cancels) as harness:
        with pytest.raises((ActionFailedError, ContextMisuseError)):
            harness.push("x")


# -- asyncio as its users know it ----------------------------------------------------


def test_gather_keeps_order_and_overlaps() -> None:
    inside: list[int] = []
    most: list[int] = []

    async def call(number: int) -> int:
        inside.append(number)
        most.append(len(inside))
        await asyncio.sleep(0)
        inside.remove(number)
        return number * number

    async def act(event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=await asyncio.gather(*map(call, range(event.input))))

    with harness_of(act) as harness:
        assert harness.push(5) == [[0, 1, 4, 9, 16]]
    assert max(most) == 5


def test_gather_raises_the_first_error_and_collects_all() -> None:
    async def fail(text: str) -> None:
        raise OSError(text)

    async def act(event: InputEvent, ctx: Any) -> Event:
        errors: list[Any] = list(await asyncio.gather(fail("a"), fail("b"), return_exceptions=True))
        try:
            await asyncio.gather(fail("c"), asyncio.sleep(3600))
        except OSError as error:
            errors.append(error)
        return OutputEvent(output=[str(failure) for failure in errors])

    with harness_of(act) as harness:
        assert harness.push(1) == [["a", "b", "c"]]


def test_wait_for_times_out_inside_the_action() -> None:
    async def act(event: InputEvent, ctx: Any) -> Event:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), SHORT)
        except TimeoutError:
            return OutputEvent(output=await asyncio.wait_for(asyncio.sleep(0, "in time"), 60))
        raise AssertionError("it waited for ever")

    with harness_of(act) as harness:
        assert harness.push(1) == ["in time"]


@pytest.mark.executes_once
@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["plain", "timed"])
def test_task_group(options: Any) -> None:
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append("sibling")
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("one failed")

    async def act(event: InputEvent, ctx: Any) -> Event:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
        text = "no error"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait())
                group.create_task(fail())
        except Exception as error:
            text = type(error).__name__
        return OutputEvent(output=([task.result() for task in tasks], text))

    with harness_of(act, **options) as harness:
        assert harness.push_all([1, 2]) == [([0, 1, 2], "ExceptionGroup")] * 2
    assert cancelled == ["sibling"] * 2


class Shared(Agent):
    """Keys that share a lock and a semaphore through the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()
        self.inside = 0
        self.most = 0

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        async with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
        return OutputEvent(output=self.most)


def test_lock_of_the_agent_holds_for_all_keys() -> None:
    with OperatorHarness(Shared, lambda record: record, auto_run=False) as harness:
        harness.push_all(range(30))
        harness.run_until_idle()
        assert harness.outputs == [1] * 30


@pytest.mark.executes_once
@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["plain", "timed"])
def test_tasks_left_behind_are_cancelled_before_the_run_goes_on(options: Any) -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("left task")

    lingering_tasks: list[asyncio.Task[None]] = []

    async def act(event: InputEvent, ctx: Any) -> Event:
        lingering_tasks.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)
        return OutputEvent(output=list(ended))

    with harness_of(act, **options) as harness:
        assert harness.push_all([1, 2]) == [[], ["left task"]]
    assert ended == ["left task"] * 2


@pytest.mark.executes_once
def test_retried_attempt_begins_without_the_tasks_of_the_one_before() -> None:
    running: set[int] = set()
    seen: list[set[int]] = []

    async def linger(number: int) -> None:
        running.add(number)
        try:
            await asyncio.sleep(3600)
        finally:
            running.discard(number)

    lingering_tasks: list[asyncio.Task[None]] = []

    async def act(event: InputEvent, ctx: Any) -> None:
        seen.append(set(running))
        lingering_tasks.append(asyncio.create_task(linger(len(seen))))
        await asyncio.sleep(0)
        if len(seen) < 3:
            raise OSError

    with harness_of(act, retry=RetryPolicy(initial_interval=0)) as harness:
        harness.push(1)
    assert seen == [set()] * 3
