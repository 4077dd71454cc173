"""An action that does several things at a time does on replay what it did the first time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from concurrent_actions import CONSTRUCTS
from durable_tools import (
    EFFECTS,
    SEEN,
    counted,
    crash,
    crash_and_replay,
    effect,
    effect_async,
    forget,
    one_action,
)

from flink_agents import Agent, InputEvent, RetryPolicy, client, tool
from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import ActionFailedError, StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults, FaultyStore

pytestmark = pytest.mark.executes_once

CHANCE = random.Random(0)


class Failed(Exception):
    pass


@pytest.fixture(autouse=True)
def _forget() -> None:
    forget()


async def _some_time() -> None:
    for _ in range(CHANCE.randint(0, 4)):
        await asyncio.sleep(0)
    if CHANCE.random() < 0.4:
        await asyncio.sleep(CHANCE.choice([0.0005, 0.001, 0.002]))


async def work(name: str) -> str:
    await _some_time()
    EFFECTS.append(name)
    if hash_of(name) % 5 == 0:
        raise Failed(name)
    return name


def hash_of(name: str) -> int:
    """Which calls fail: the same in each execution."""
    return sum(map(ord, name))


def last(name: str) -> str:
    return name


class Concurrent(Agent):
    """Does what its input names."""

    @tool(max_concurrency=1)
    async def narrow(self, name: str) -> str:
        """Has one place."""
        await asyncio.sleep(0)
        return name

    @client
    async def http(self) -> AsyncIterator[str]:
        """Takes its time to open."""
        await _some_time()
        yield "!"


async def act(event: InputEvent, ctx: Any) -> None:
    async def try_work(name: str) -> str:
        try:
            return await ctx.durable_execute_async(work, name)
        except Failed:
            return f"{name} failed"

    saw = await CONSTRUCTS[event.input](try_work, ctx)
    # With this call all that the action has seen is on record.
    await ctx.durable_execute_async(last, "end")
    SEEN.append(saw)


class Slow(FaultyStore):
    """Takes its time, so that several outcomes become durable in one turn."""

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await _some_time()
        await super().append(journal, records)


def _harness(faults: list[Faults]) -> OperatorHarness:
    agent = Concurrent(name="concurrent").add_action("act", [InputEvent], act)
    return OperatorHarness(agent, store=lambda: Slow(faults[-1].store(), faults[-1]), auto_run=False)


def _end_refused(asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
    """Let no action come to its end, so that it is executed in the next attempt."""
    return Fault.REFUSED if any(record.kind is RecordKind.ACTION for record in records) else None


def _fails_at(append: int, fault: Fault) -> Choose:
    def choose(asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        return fault if asked == append else _end_refused(asked, journal, records)

    return choose


def _attempt(harness: OperatorHarness, faults: Faults, name: str, choose: Choose | None) -> Any:
    """Run the action once; returns what it saw, if it came to its end."""
    faults.choose, seen_count = choose, len(SEEN)
    try:
        harness.push(name)
        harness.run_until_idle()
    except StoreError:
        pass
    return SEEN[seen_count] if len(SEEN) > seen_count else None


@pytest.mark.parametrize("name", [*CONSTRUCTS])
def test_a_replay_sees_what_the_first_execution_saw(name: str, is_night: bool) -> None:
    faults = [Faults()]
    with _harness(faults) as harness:
        empty = harness.snapshot()
        for seed in range(12 if is_night else 6):
            CHANCE.seed(f"{name}{seed}")
            faults.append(Faults())
            fault = CHANCE.choice([Fault.REFUSED, Fault.LOST, Fault.UNACKNOWLEDGED])
            seen = []
            done = 0
            for choice in (_fails_at(CHANCE.randint(0, 9), fault), _end_refused, _end_refused, None):
                harness.restore(empty)
                seen.append(_attempt(harness, faults[-1], name, choice))
                done = len(EFFECTS) if len(seen) == 2 else done
            # The second attempt goes on behind what the first one recorded; the others are replays.
            assert seen[1] is not None and seen[1] == seen[2] == seen[3], f"seed {seed}: {seen}"
            assert len(EFFECTS) == done


@pytest.mark.parametrize("name", [*CONSTRUCTS])
def test_an_attempt_of_the_action_repeats_nothing(name: str) -> None:
    """The action fails once at its end, and is tried again in the same process."""
    CHANCE.seed(name)
    failed = iter([True, False])

    async def fail_once(event: InputEvent, ctx: Any) -> None:
        await act(event, ctx)
        if next(failed):
            raise ConnectionError("once")

    agent = Concurrent(name="concurrent").add_action(
        "act", [InputEvent], fail_once, retry=RetryPolicy(initial_interval=0)
    )
    with OperatorHarness(agent) as harness:
        harness.push(name)
    assert SEEN[0] == SEEN[1]
    assert max(counted().values()) == 1


async def fails_at_once(name: str) -> None:
    raise ConnectionError(name)


async def takes_longer(name: str) -> str:
    await asyncio.sleep(0.02)
    return effect(name)


def blocks_longer(name: str) -> str:
    time.sleep(0.02)
    return effect(name)


@pytest.mark.parametrize("sibling", [takes_longer, blocks_longer])
@pytest.mark.parametrize("branches", [False, True])
def test_a_call_whose_sibling_fails_is_not_made_again(sibling: Any, branches: bool) -> None:
    """It had its effect, or was about to: it may end before the action is tried again."""
    failed = iter([True, True, False])

    async def siblings(event: InputEvent, ctx: Any) -> None:
        async def branch(function: Any) -> Any:
            return await ctx.durable_execute_async(function, "x")

        first = fails_at_once if next(failed) else effect_async
        calls = [
            branch(function) if branches else ctx.durable_execute_async(function, "x")
            for function in (first, sibling)
        ]
        await asyncio.gather(*calls)

    with OperatorHarness(one_action(siblings, retry=RetryPolicy(initial_interval=0))) as harness:
        harness.push(1)
    assert EFFECTS == ["x", "x"]  # the sibling, and the one that took the place of what failed


TRACE: ContextVar[int] = ContextVar("trace", default=0)


async def sets_a_variable(name: str) -> int:
    TRACE.set(TRACE.get() + 1)
    await asyncio.sleep(0)
    return TRACE.get()


async def reads_a_variable(event: InputEvent, ctx: Any) -> None:
    inside = await ctx.durable_execute_async(sets_a_variable, "x")
    SEEN.append((inside, TRACE.get()))
    await ctx.durable_execute_async(effect, TRACE.get())


def test_a_function_sets_no_context_variable_of_the_action() -> None:
    crash_and_replay(one_action(reads_a_variable), 1).close()
    assert SEEN == [(1, 0), (1, 0)] and EFFECTS == [0]


# -- what cannot be replayed ------------------------------------------------------------


class World:
    """What differs from one execution to the next."""

    executions = 0


async def other_call(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    await ctx.durable_execute_async(effect, 1)
    await ctx.durable_execute_async(effect if World.executions == 1 else effect_async, 2)


async def other_order_of_branches(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    names = "ab" if World.executions == 1 else "ba"

    async def branch(name: str) -> None:
        for number in range(2):
            await ctx.durable_execute_async(effect, f"{name}{number}")

    await asyncio.gather(*(branch(name) for name in names))


async def no_second_branch(event: InputEvent, ctx: Any) -> None:
    World.executions += 1

    async def branch(name: str) -> None:
        for number in range(2):
            await ctx.durable_execute_async(effect, f"{name}{number}")

    await asyncio.gather(*(branch(name) for name in ("ab" if World.executions == 1 else "a")))


async def waits_for_nothing(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    await ctx.durable_execute_async(effect, 1)
    if World.executions == 1:
        await ctx.durable_execute_async(effect, 2)
    await asyncio.gather(asyncio.create_task(_endless(ctx)))


async def _endless(ctx: Any) -> None:
    for number in range(100):
        await asyncio.sleep(0.001)
        if number == 50:
            await ctx.durable_execute_async(effect, "late")


async def without_timer(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    if World.executions == 1:
        await asyncio.sleep(0.001)
    await ctx.durable_execute_async(effect, 1)


async def catches_everything(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    for number in range(3):
        try:
            await ctx.durable_execute_async(effect, number + World.executions)
        except BaseException:
            continue


UNSTABLE = (
    other_call,
    other_order_of_branches,
    no_second_branch,
    waits_for_nothing,
    without_timer,
    catches_everything,
)


@pytest.mark.parametrize("unstable", UNSTABLE)
def test_an_action_that_differs_is_a_mismatch_and_never_hangs(unstable: Any) -> None:
    World.executions = 0
    with pytest.raises(ActionFailedError, match="NonDeterminismError"):
        crash_and_replay(one_action(unstable), 1)


async def raw_request() -> str:
    """Is no durable call: a thread answers it."""
    return await asyncio.to_thread(str, World.executions)


async def depends_on_raw_request(event: InputEvent, ctx: Any) -> None:
    World.executions += 1
    await ctx.durable_execute_async(effect, 1)
    answer = await raw_request()
    await ctx.durable_execute_async(effect, answer)


def test_a_mismatch_names_what_the_action_awaits_besides() -> None:
    World.executions = 0
    with pytest.raises(ActionFailedError) as failed:
        crash_and_replay(one_action(depends_on_raw_request), 1)
    assert "raw_request, which awaits" in str(failed.value.fix)
    assert "to_thread" in str(failed.value.fix)


async def raw_requests_that_matter_not(event: InputEvent, ctx: Any) -> None:
    for number in range(3):
        await raw_request()
        SEEN.append(await ctx.durable_execute_async(effect, number))


def test_a_replay_waits_for_what_is_no_outcome() -> None:
    crash_and_replay(one_action(raw_requests_that_matter_not), 1).close()
    assert EFFECTS == [0, 1, 2] and SEEN == [0, 1, 2, 0, 1, 2]


SHARED = asyncio.Semaphore(1)
"""Of the author's module, for all keys."""


async def share_a_semaphore(event: InputEvent, ctx: Any) -> None:
    async with SHARED:
        await ctx.durable_execute_async(effect, event.input)
        await ctx.durable_execute_async(effect, -event.input)


def test_a_replay_waits_for_what_other_keys_hold() -> None:
    global SHARED
    faults = Faults(_end_refused)
    keys = [1, 2, 3]
    with OperatorHarness(one_action(share_a_semaphore), lambda record: record, store=faults.store) as harness:
        snapshot = harness.snapshot()
        for key in keys:
            SHARED = asyncio.Semaphore(1)
            with crash():
                harness.push(key)
            harness.restore(snapshot)
        faults.choose = None
        SHARED = asyncio.Semaphore(1)
        harness.push_all(keys)
    assert counted() == dict.fromkeys([1, -1, 2, -2, 3, -3], 1)


LIVING: list[set[asyncio.Task[int]]] = []
"""Keeps tasks where they are in memory, so that those of the next execution lie elsewhere."""


async def _iterate(event: InputEvent, ctx: Any) -> None:
    tasks = {asyncio.create_task(asyncio.sleep(0, nth)) for nth in range(12)}
    LIVING.append(tasks)
    order = [await task for task in tasks]
    await ctx.durable_execute_async(effect_async, event.input)
    SEEN.append(order)


def test_a_set_of_tasks_has_the_same_order_on_replay() -> None:
    for nth in range(5):
        crash_and_replay(one_action(_iterate), nth).close()
        first, again = SEEN[-2:]
        assert first == again, f"input {nth}"
    LIVING.clear()
