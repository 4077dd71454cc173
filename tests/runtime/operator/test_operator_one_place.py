"""One place, one thread, short queues: whatever actions wait for, all of them come to their end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from core_agents import Other, Step

from flink_agents import (
    Agent,
    Event,
    EventTime,
    InputEvent,
    OutputEvent,
    RateLimit,
    RetryPolicy,
    action,
    client,
    tool,
)
from flink_agents.testing import OperatorHarness

TIGHT = {
    "run.max-in-flight": 1,
    "run.pool-size": 1,
    "queue.max-total": 1,
    "queue.max-per-key": 1,
}
KEYS = 12
ROUNDS = 3
DEADLINE_SECONDS = 120
BRIEF = RetryPolicy(initial_interval=0.002, max_attempts=3)


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """Turn what waits for ever into a failure: the end of an input has no time limit of its own."""

    def give_up(*_: Any) -> None:
        raise AssertionError("actions wait for each other")

    previous_handler = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(DEADLINE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def counted(ctx: Any, number: int) -> OutputEvent:
    """How many runs of the key have ended, this one included."""
    place = ctx.short_term_memory.get("place", 0) + 1
    ctx.short_term_memory.set("place", place)
    return OutputEvent(output=(number % KEYS, number, place))


class Chain(Agent):
    """Awaited actions, one behind the other."""

    @action(InputEvent)
    async def first(self, event: InputEvent, ctx: Any) -> Step:
        await turns()
        return Step(number=event.input)

    @action(Step)
    async def second(self, event: Step, ctx: Any) -> Other:
        await turns()
        return Other(value=event.number)

    @action(Other)
    async def third(self, event: Other, ctx: Any) -> AsyncIterator[Event]:
        await turns()
        yield counted(ctx, event.value)


class Gathering(Agent):
    """Calls and tasks of its own beside each other in one action."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        task = asyncio.create_task(turns())
        await asyncio.gather(turns(), asyncio.to_thread(sum, range(10)), turns(5))
        await task
        return counted(ctx, event.input)


class Limited(Agent):
    """Each action of the chain has limits."""

    @action(InputEvent, max_concurrency=1)
    async def first(self, event: InputEvent, ctx: Any) -> Step:
        await turns()
        return Step(number=event.input)

    @action(Step, max_concurrency=2, rate_limit=RateLimit(100, per=0.01))
    def second(self, event: Step, ctx: Any) -> Other:
        return Other(value=event.number)

    @action(Other, max_concurrency=1)
    async def third(self, event: Other, ctx: Any) -> OutputEvent:
        await turns()
        return counted(ctx, event.value)


class Retrying(Agent):
    """Attempts that fail, run out of time, and wait for the next one."""

    def __init__(self) -> None:
        self.failed: set[Any] = set()

    def fails_once(self, name: Any) -> None:
        if name not in self.failed:
            self.failed.add(name)
            raise OSError(name)

    @action(InputEvent, retry=BRIEF)
    async def first(self, event: InputEvent, ctx: Any) -> Step:
        await turns()
        self.fails_once(("first", event.input))
        return Step(number=event.input)

    @action(Step, retry=BRIEF)
    def second(self, event: Step, ctx: Any) -> Other:
        self.fails_once(("second", event.number))
        return Other(value=event.number)

    @action(Other, retry=BRIEF, timeout=0.01, on_error="ignore")
    async def third(self, event: Other, ctx: Any) -> None:
        await asyncio.Event().wait() if event.value == 5 else await turns()

    @action(Other)
    async def last(self, event: Other, ctx: Any) -> OutputEvent:
        return counted(ctx, event.value)


class Blocking(Agent):
    """Actions in threads, of which there is one, between awaited ones."""

    @action(InputEvent, blocking=True)
    def first(self, event: InputEvent, ctx: Any) -> Step:
        return Step(number=event.input)

    @action(Step)
    async def second(self, event: Step, ctx: Any) -> Other:
        await turns()
        return Other(value=event.number)

    @action(Other, blocking=True, timeout=60)
    def third(self, event: Other, ctx: Any) -> OutputEvent:
        return counted(ctx, event.value)


class Nested(Agent):
    """Tools with limits inside each other, a client, and a lock of the author's around them."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    @client
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncio.Lock]:
        await turns()
        yield asyncio.Lock()

    @tool(max_concurrency=1)
    @staticmethod
    async def inner(number: int) -> int:
        await turns()
        return number

    @tool(max_concurrency=1)
    @staticmethod
    def in_thread(number: int) -> int:
        return number

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> Step:
        connection = await ctx.client("connection")
        inner = ctx.get_resource("inner", "tool")
        async with connection:
            numbers = await asyncio.gather(*(inner(event.input) for _ in range(3)))
        async with self.lock:
            return Step(number=await inner(numbers[0]))

    @action(Step)
    def read(self, event: Step, ctx: Any) -> Other:
        return Other(value=ctx.get_resource("in_thread", "tool")(event.number))

    @action(Other, max_concurrency=1)
    async def end(self, event: Other, ctx: Any) -> OutputEvent:
        await ctx.get_resource("inner", "tool")(event.value)
        return counted(ctx, event.value)


AGENTS = [Chain, Gathering, Limited, Retrying, Blocking, Nested]
EXPECTED = {
    key: [(number, place) for place, number in enumerate(range(key, KEYS * ROUNDS, KEYS), 1)]
    for key in range(KEYS)
}


def make(agent: type[Agent], **options: Any) -> OperatorHarness:
    return OperatorHarness(agent, lambda number: number % KEYS, config=TIGHT, auto_run=False, **options)


def by_key(outputs: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    outputs_by_key: dict[int, list[tuple[int, int]]] = {key: [] for key in range(KEYS)}
    for key, number, place in outputs:
        outputs_by_key[key].append((number, place))
    return outputs_by_key


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("agent", AGENTS)
def test_all_come_to_their_end(agent: type[Agent], parallelism: int) -> None:
    with make(agent, parallelism=parallelism) as harness:
        harness.push_all(range(KEYS * ROUNDS))
        harness.run_until_idle()
        assert by_key(harness.outputs) == EXPECTED


@pytest.mark.parametrize("agent", AGENTS)
def test_all_come_to_their_end_after_a_restore_in_the_middle(agent: type[Agent]) -> None:
    with make(agent) as harness:
        harness.push_all(range(KEYS * ROUNDS // 2))
        snapshot = harness.snapshot()
        harness.push_all(range(KEYS * ROUNDS // 2, KEYS * ROUNDS))
        harness.restore(snapshot, parallelism=2)
        harness.push_all(range(KEYS * ROUNDS // 2, KEYS * ROUNDS))
        harness.restore(harness.snapshot(), parallelism=1)
        harness.run_until_idle()
        assert by_key(harness.outputs) == EXPECTED


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("agent", AGENTS)
def test_all_come_to_their_end_with_that_of_the_input(agent: type[Agent], restored: bool) -> None:
    with make(agent) as harness:
        harness.push_all(range(KEYS * ROUNDS))
        if restored:
            harness.restore(harness.snapshot())
        harness.end_input()
        assert by_key(harness.outputs) == EXPECTED


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("agent", AGENTS)
def test_all_come_to_their_end_where_watermarks_wait(agent: type[Agent], restored: bool) -> None:
    with make(agent, event_time=EventTime.hold_watermarks(max_hold="100 s")) as harness:
        for number in range(KEYS * ROUNDS):
            harness.push(number, timestamp=number)
            if number % KEYS == KEYS // 2:
                harness.watermark(number - 3)
        if restored:
            harness.restore(harness.snapshot())
        harness.watermark(KEYS * ROUNDS)
        harness.run_until_idle()
        assert by_key(harness.outputs) == EXPECTED
        assert sorted(filter(None, harness.timestamps)) == list(range(1, KEYS * ROUNDS))


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("agent", AGENTS)
def test_all_come_to_their_end_replayed(agent: type[Agent]) -> None:
    with make(agent, forced_replay=True, forced_restart=True) as harness:
        harness.push_all(range(KEYS * ROUNDS))
        harness.end_input()
        assert by_key(harness.outputs) == EXPECTED
