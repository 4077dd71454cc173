"""``OperatorHarness(crash="everywhere")``: finds agents that a crash changes, and only those."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from flink_agents import (
    NOT_DONE,
    Agent,
    DurableCallable,
    Event,
    InputEvent,
    OutputEvent,
    RetryPolicy,
    action,
)
from flink_agents.api.errors import (
    ActionFailedError,
    AgentConfigurationError,
    DurableResultError,
    RecoveryMismatchError,
    SignalTimeoutError,
)
from flink_agents.api.settings.options import TEST_MODE_VARIABLE
from flink_agents.connectors.action_state.memory.store import MemoryStore
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.outside import AnswerLog, RecordedAnswer
from flink_agents.testing.recovery import everywhere
from flink_agents.testing.subtasks import crash_points
from tests.suite.tables import each_case

COUNT = itertools.count()
"""A global that code of an action must not use."""

DONE: list[Any] = []
"""What durable calls did outside."""


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    """Begin with nothing done."""
    DONE.clear()
    yield
    DONE.clear()


def fetch(word: str) -> str:
    DONE.append(word)
    return f"{word} {len(DONE)}"


async def fetch_async(word: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return fetch(word)


async def take_one(words: list[str]) -> str:
    return words.pop()


class Told(Event):
    words: list[str]


# -- agents that a crash changes --------------------------------------------------------------


class GlobalState(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        got = await ctx.durable_execute_async(fetch_async, event.input)
        return OutputEvent(output=(got, next(COUNT)))


class InstanceState(Agent):
    def __init__(self) -> None:
        self.seen = 0

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None:
        self.seen += 1
        ctx.short_term_memory.set("seen", self.seen)


class Chance(Agent):
    side_outputs = {"audit": None}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None:
        ctx.durable_execute(fetch, event.input)
        ctx.emit_to("audit", random.random())


class ChangedArgument(Agent):
    """Depends on whether its own list was changed by the call; a private copy makes that differ."""

    WORDS: list[str] = []

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.WORDS.append(event.input)
        got = await ctx.durable_execute_async(fetch_async, event.input)
        return OutputEvent(output=(got, len(self.WORDS)))


class OtherCalls(Agent):
    """Asks for another call each time: a mismatch."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(fetch_async, f"{event.input} {next(COUNT)}")
        return OutputEvent(output=await ctx.durable_execute_async(fetch_async, event.input))


class Clock(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=time.monotonic_ns())


class Second(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=next(COUNT) if event.input == "b" else 0)


DEFECTIVE: list[tuple[type[Agent], str, str]] = [
    (GlobalState, "outputs", "append 0"),
    (InstanceState, "memory", "before commit 0"),
    (Chance, "side output 'audit'", "append 0"),
    (ChangedArgument, "outputs", "append 0"),
    (OtherCalls, "the end", "append 0"),
    (Clock, "outputs", "before commit 0"),
]


@pytest.mark.executes_once
@pytest.mark.parametrize(
    ("agent", "what", "where"), DEFECTIVE, ids=lambda value: getattr(value, "__name__", "")
)
def test_agents_that_a_crash_changes_are_found(agent: type[Agent], what: str, where: str) -> None:
    with OperatorHarness(agent, crash="everywhere", forced_serialization=False) as harness:
        with pytest.raises(RecoveryMismatchError) as caught:
            harness.push_all(["a", "b"])
    assert caught.value.difference == what
    assert where in caught.value.crash_point
    if what != "the end":
        assert caught.value.key == 0
    text = str(caught.value)
    assert "expected: " in text and "found: " in text and "fix: usual causes" in text


def test_the_first_run_that_differs_is_named() -> None:
    """The first input gives nothing that can differ."""
    with OperatorHarness(Second, lambda word: "k", crash="everywhere", forced_serialization=False) as harness:
        assert harness.push("a") == [0]
        with pytest.raises(RecoveryMismatchError, match="key 'k', from sequence 1 on") as caught:
            harness.push("b")
    assert (caught.value.key, caught.value.sequence_number) == ("k", 1)


# -- agents that no crash changes -------------------------------------------------------------


class Straight(Agent):
    """Memory, outputs, chained events, a def action, results of an outside world that counts."""

    side_outputs = {"audit": None}

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Told:
        memory = ctx.short_term_memory
        memory.set("number", memory.get("number", 0) + 1)
        first = await ctx.durable_execute_async(fetch_async, event.input)
        second = await ctx.durable_execute_async(fetch, event.input)
        return Told(words=[first, second, str(ctx.uuid4())])

    @action(Told)
    def tell(self, event: Told, ctx: Any) -> OutputEvent:
        ctx.emit_to("audit", ctx.durable_execute(fetch, "told"))
        return OutputEvent(output=(ctx.short_term_memory.get("number"), event.words))


class NoCalls(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = ctx.short_term_memory.get("number", 0) + 1
        ctx.short_term_memory.set("number", number)
        return OutputEvent(output=(event.input, number))


class Flaky(Agent):
    """A call that fails at first, by its own retries and by those of the action."""

    @action(InputEvent, retry=RetryPolicy(initial_interval=0))
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        got = await ctx.durable_execute_async(fetch_async, event.input)
        again = await ctx.durable_execute_async(fail_at_first, f"{event.input} 1")
        by_call = DurableCallable(fail_at_first, retry=RetryPolicy(initial_interval=0))
        return OutputEvent(output=(got, again, await ctx.durable_execute_async(by_call, f"{event.input} 2")))


async def fail_at_first(word: str) -> str:
    DONE.append(word)
    if DONE.count(word) == 1:
        raise ConnectionError(word)
    return f"{word} {len(DONE)}"


class Letters(Agent):
    on_error = "dead-letter"

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> None:
        await ctx.durable_execute_async(fetch_async, event.input)
        await ctx.durable_execute_async(refuse, event.input)


async def refuse(word: str) -> None:
    DONE.append(word)
    raise ValueError(word)


class Caught(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        message = ""
        try:
            await ctx.durable_execute_async(refuse, event.input)
        except ValueError as error:
            message = str(error)
        return OutputEvent(output=(message, await ctx.durable_execute_async(fetch_async, event.input)))


class Hedge(Agent):
    """Takes the faster of two; the other one is cancelled."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        slow = asyncio.ensure_future(ctx.durable_execute_async(fetch_async, "slow", 5.0))
        fast = asyncio.ensure_future(ctx.durable_execute_async(fetch_async, "fast", 0.01))
        done, _ = await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        return OutputEvent(output=[task.result() for task in done])


def look_up(word: str) -> Any:
    return f"found {word}" if word in DONE else NOT_DONE


class Reconciled(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        call = DurableCallable(save, reconciler=look_up)
        return OutputEvent(output=ctx.durable_execute(call, event.input))


def save(word: str) -> str:
    DONE.append(word)
    return f"found {word}"


SOUND: list[type[Agent]] = [Straight, NoCalls, Flaky, Letters, Caught, Hedge, Reconciled]


@pytest.mark.parametrize("agent", SOUND, ids=lambda agent: agent.__name__)
def test_agents_that_no_crash_changes_pass(agent: type[Agent]) -> None:
    with OperatorHarness(agent, lambda word: word[0], crash=None, forced_replay=False) as plain:
        plain.push_all(["ab", "ba", "ac"])
        expected = list(plain.outputs)
        effects = list(DONE)
        memory = plain.memory("a")
        letters = len(plain.dead_letters)
    DONE.clear()
    with OperatorHarness(agent, lambda word: word[0], crash="everywhere") as harness:
        assert harness.push_all(["ab", "ba", "ac"]) == expected
        assert (harness.memory("a"), len(harness.dead_letters)) == (memory, letters)
        assert (harness.sequence_number("a"), harness.pending("a")) == (2, 0)
    # Crashes multiply no effects.
    assert DONE == effects


def test_all_that_is_in_flight_is_crashed_together() -> None:
    with OperatorHarness(Straight, lambda word: word[0], crash="everywhere", auto_run=False) as harness:
        harness.push_all(["ab", "ba", "ac"])
        assert len(harness.run_until_idle()) == 3
        assert harness.push_all(["bb"]) == []
        assert len(harness.run_until_idle()) == 1
        assert harness.sequence_number("b") == 2


class InTasks(Agent):
    """Makes its calls in tasks."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        async def branch(number: int) -> str:
            return (await ctx.durable_execute_async(fetch_async, f"{event.input}{number}"))[:2]

        return OutputEvent(output=await asyncio.gather(branch(0), branch(1)))


@pytest.mark.parametrize("agent", [Straight, InTasks])
def test_calls_that_are_recorded_and_made_again_are_an_error(
    monkeypatch: pytest.MonkeyPatch, agent: type[Agent]
) -> None:
    """A store that forgets calls lets their effects be repeated."""
    scan = MemoryStore.scan

    async def forgetful(self: MemoryStore, *args: Any) -> Any:
        return [record for record in await scan(self, *args) if record.kind.name != "CALL"]

    monkeypatch.setattr(MemoryStore, "scan", forgetful)
    with OperatorHarness(agent, crash="everywhere") as harness:
        with pytest.raises(RecoveryMismatchError, match="fetch_async was called again") as caught:
            harness.push("a")
    assert caught.value.difference == "effects"
    assert "after append 0" in caught.value.crash_point


class Racing(Agent):
    """Makes another call where the first one takes too long."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        call = asyncio.ensure_future(ctx.durable_execute_async(fetch_async, event.input, 0.2))
        done, _ = await asyncio.wait({call}, timeout=0.02)
        other_result = None if done else await ctx.durable_execute_async(fetch_async, "b")
        return OutputEvent(output=(other_result, await call))


def test_answers_take_their_time_where_a_timer_decides() -> None:
    with OperatorHarness(Racing, crash="everywhere") as harness:
        assert harness.push("a") == [("b 1", "a 2")]


def test_answers_take_no_time_where_only_their_order_counts() -> None:
    outside = AnswerLog(ValueCodec())
    assert list(outside.pauses_before(RecordedAnswer("", 0, 3600.0), None)) == []
    assert list(outside.pauses_before(RecordedAnswer("", 0, 3600.0), 3601.0)) == []
    assert next(outside.pauses_before(RecordedAnswer("", 0, 3600.0), 3600.0)) > 0
    outside.end_recording(timed=True)
    waiting = outside.pauses_before(RecordedAnswer("", 0, 3600.0), None)
    assert next(waiting) > 0
    outside.release_answers()
    assert list(waiting) == []


# -- inputs that come again in another order ------------------------------------------------------


@pytest.mark.parametrize("reorder", [1, 2, lambda inputs: inputs[::-1]])
def test_inputs_come_again_in_another_order(reorder: Any) -> None:
    with OperatorHarness(Each, lambda word: word[0], crash="everywhere", reorder=reorder) as harness:
        assert sorted(harness.push_all(["ab", "ba", "ac", "ad"])) == ["ab ok", "ac ok", "ad ok", "ba ok"]


async def ok(word: str) -> str:
    DONE.append(word)
    return f"{word} ok"


class Each(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(ok, event.input))


def test_recover_brings_inputs_again_in_their_order_or_another() -> None:
    with OperatorHarness(NoCalls, crash=None) as harness:
        harness.push("a")
        snapshot = harness.snapshot()
        harness.push_all(["b", "c"])
        assert harness.recover(snapshot) == [("b", 2), ("c", 3)]
        harness.reorder = lambda inputs: inputs[::-1]
        assert harness.recover(snapshot) == [("c", 2), ("b", 3)]
        assert harness.outputs == [("a", 1), ("c", 2), ("b", 3)]
        harness.reorder = lambda inputs: inputs[:1]
        with pytest.raises(AgentConfigurationError, match="other inputs"):
            harness.recover(snapshot)


# -- how it is asked for ------------------------------------------------------------------------


def test_the_word_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, "crash")
    with OperatorHarness(GlobalState, forced_serialization=False) as harness:
        with pytest.raises(RecoveryMismatchError):
            harness.push("a")
    with OperatorHarness(GlobalState, crash=None, forced_serialization=False) as harness:
        assert len(harness.push("a")) == 1
    with OperatorHarness(GlobalState, store=MemoryStore, forced_serialization=False) as harness:
        assert len(harness.push("a")) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"crash": "sometimes"},
        {"crash": "everywhere", "store": MemoryStore},
        {"crash": "everywhere", "config": {"action-state.store": "memory"}},
    ],
)
def test_what_cannot_be_asked_for(options: dict[str, Any]) -> None:
    with pytest.raises(AgentConfigurationError, match="cannot crash everywhere"):
        OperatorHarness(Each, **options)


def test_an_agent_that_fails_without_a_crash_fails_as_ever() -> None:
    class Fails(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None:
            raise ZeroDivisionError

    with OperatorHarness(Fails(), crash="everywhere") as harness:
        with pytest.raises(ActionFailedError):
            harness.push("a")


def repeat_a(count: int) -> str:
    return "a" * count


async def refused_alone(ctx: Any) -> None:
    await ctx.durable_execute_async(repeat_a, 3000)


async def refused_after_a_step(ctx: Any) -> None:
    await ctx.durable_execute_async(repeat_a, 1)
    await ctx.durable_execute_async(repeat_a, 3000)


async def refused_beside_a_step(ctx: Any) -> None:
    await ctx.gather(ctx.durable_execute_async(repeat_a, 3000), ctx.durable_execute_async(repeat_a, 1))


async def refused_after_a_wait(ctx: Any) -> None:
    await ctx.sleep(0)
    await ctx.durable_execute_async(repeat_a, 1)
    await ctx.durable_execute_async(repeat_a, 3000)


async def refused_twice(ctx: Any) -> None:
    for count in (3000, 3001):
        with contextlib.suppress(DurableResultError):
            await ctx.durable_execute_async(repeat_a, count)
    await ctx.durable_execute_async(repeat_a, 3002)


@each_case(
    "work",
    [refused_alone, refused_after_a_step, refused_beside_a_step, refused_after_a_wait, refused_twice],
)
def test_a_record_that_the_store_refuses_is_not_stored(
    work: Callable[[Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            try:
                await work(ctx)
            except DurableResultError as error:
                return OutputEvent(output=type(error).__name__)
            return OutputEvent(output="no error")

    for module in (crash_points, everywhere):
        monkeypatch.setattr(module, "MemoryStore", functools.partial(MemoryStore, max_record_bytes=2000))
    with OperatorHarness(Large(), crash="everywhere") as harness:
        assert harness.push(1) == ["DurableResultError"]


async def pause(ctx: Any) -> None:
    await asyncio.sleep(2)


async def pause_before_a_retry(ctx: Any) -> None:
    raise ValueError("busy")


async def pause_for_a_limit(ctx: Any) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.get_running_loop().create_future(), 2)


async def sleep_longer(ctx: Any) -> None:
    await ctx.sleep(3)


async def wait_until_its_limit(ctx: Any) -> None:
    with contextlib.suppress(SignalTimeoutError):
        await ctx.wait_for_signal("go", timeout=3)


@each_case(
    ("pausing", "waiting"),
    itertools.product([pause, pause_before_a_retry, pause_for_a_limit], [sleep_longer, wait_until_its_limit]),
)
def test_a_recorded_run_that_a_pause_of_another_one_had_let_become_due(
    pausing: Callable[[Any], Awaitable[None]], waiting: Callable[[Any], Awaitable[None]]
) -> None:
    class Pausing(Agent):
        on_suspend = "interleave"
        retry = RetryPolicy(max_attempts=2, initial_interval=2, jitter=0)

        @action(InputEvent, on_error="ignore")
        async def act(self, event: InputEvent, ctx: Any) -> Event | None:
            await ctx.durable_execute_async(ok, event.input)
            if event.input == "pauses":
                await ctx.sleep(2)
                await pausing(ctx)
                return None
            await waiting(ctx)
            return OutputEvent(output=event.input)

    with OperatorHarness(Pausing(), crash="everywhere") as harness:
        harness.push_all(["waits", "pauses"])
        assert [harness.advance_time(1000) for _ in range(4)] == [[], ["waits"], [], []]


def test_metrics_count_once() -> None:
    class Counted(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            ctx.agent_metric_group.get_counter("counted").inc()
            await ctx.durable_execute_async(ok, event.input)

    with OperatorHarness(Counted(), crash="everywhere") as harness:
        harness.push_all(["a", "b"])
        assert harness.metrics["counted"] == 2


def test_no_thread_is_left() -> None:
    previous_threads = set(threading.enumerate())
    with OperatorHarness(Straight, crash="everywhere") as harness:
        harness.push("a")
    assert not [
        thread for thread in set(threading.enumerate()) - previous_threads if thread.name == "agent-loop"
    ]
