"""Threads of ``asyncio.to_thread``: a few calls that hang starve nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anyio import to_thread

from flink_agents import Agent, DurableCallable, InputEvent, OutputEvent
from flink_agents.runtime.concurrency.threads import LoopThreads
from flink_agents.testing import OperatorHarness

SIZE = 1
HUNG = 2
RELEASE = threading.Event()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the calls that hang."""
    RELEASE.clear()
    yield RELEASE
    RELEASE.set()


def maybe_hang(what: str) -> str:
    if what.startswith("hangs"):
        RELEASE.wait()
    return what


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> Any:
        return OutputEvent(output=await asyncio.to_thread(function, event.input))

    return act


def by_executor(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> Any:
        loop = asyncio.get_running_loop()
        return OutputEvent(output=await loop.run_in_executor(None, function, event.input))

    return act


def side_by_side(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> Any:
        results = await asyncio.gather(*(asyncio.to_thread(function, event.input) for _ in range(2)))
        return OutputEvent(output=results[0])

    return act


def in_durable_call(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(what: Any) -> Any:
        return await asyncio.to_thread(function, what)

    called = DurableCallable(call, name="call", timeout=1)

    async def act(event: Any, ctx: Any) -> Any:
        return OutputEvent(output=await ctx.durable_execute_async(called, event.input))

    return act


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("make", [in_thread, by_executor, side_by_side, in_durable_call])
def test_calls_that_hang_starve_no_key(make: Callable[..., Any], release: threading.Event) -> None:
    timeout = None if make is in_durable_call else 1
    agent = Agent(name="threads").add_action(
        "act", [InputEvent], make(maybe_hang), timeout=timeout, on_error="dead-letter"
    )
    conditions = {"forced_replay": False, "forced_restart": False, "crash": None}
    config = {"run.pool-size": SIZE}
    with OperatorHarness(agent, key_selector=str, config=config, auto_run=False, **conditions) as job:
        for number in range(HUNG):
            job.push(f"hangs {number}")
        for number in range(HUNG):
            job.push(f"healthy {number}")
        job.run_until_idle()
        assert sorted(job.outputs) == [f"healthy {number}" for number in range(HUNG)]
        assert {letter.key for letter in job.dead_letters} == {f"hangs {number}" for number in range(HUNG)}
        release.set()


def by_anyio(abandon: bool) -> Callable[..., Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        async def act(event: Any, ctx: Any) -> Any:
            call = to_thread.run_sync(function, event.input, abandon_on_cancel=abandon)
            return OutputEvent(output=await call)

        return act

    return make


@pytest.mark.parametrize("abandon", [False, True])
def test_threads_of_anyio_that_hung_starve_no_key_that_comes_later(
    abandon: bool, release: threading.Event
) -> None:
    """Libraries use these, and have at most 40 of them."""
    agent = Agent(name="threads").add_action(
        "act", [InputEvent], by_anyio(abandon)(maybe_hang), timeout=0.2, on_error="dead-letter"
    )
    conditions = {"forced_replay": False, "forced_restart": False, "crash": None}
    with OperatorHarness(agent, key_selector=str, auto_run=False, **conditions) as job:
        for number in range(50):
            job.push(f"hangs {number}")
        job.run_until_idle()
        assert len(job.dead_letters) == 50
        for number in range(20):
            # On a loaded machine, a thread may take longer to start than the action may.
            job.push(f"healthy {number}")
            job.run_until_idle()
            if job.outputs:
                break
        assert job.outputs
        release.set()


def test_threads_are_bounded(release: threading.Event) -> None:
    threads = LoopThreads(SIZE)
    lock = threading.Lock()
    most = [0, 0]

    def work() -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
        release.wait()
        with lock:
            most[0] -= 1

    calls = [threads.submit(work) for _ in range(3 * SIZE)]
    while most[0] < SIZE:
        pass
    assert most[1] == SIZE
    # Those that nobody awaits do not count; those that have not begun never do.
    running = [call for call in calls if call.running()]
    assert [call.cancel() for call in running] == [False] * SIZE
    while most[0] < 2 * SIZE:
        pass
    assert calls[-1].cancel()
    release.set()
    for call in calls[:-1]:
        call.result()
    # The pool is as large as before.
    threads.join(60)
    assert threads._count == SIZE
    release.clear()
    most[:] = [0, 0]
    calls = [threads.submit(work) for _ in range(3 * SIZE)]
    while most[0] < SIZE:
        pass
    release.set()
    for call in calls:
        call.result()
    assert most[1] == SIZE
    threads.shutdown()
    with pytest.raises(RuntimeError):
        threads.submit(work)


def test_what_a_thread_raises_is_raised() -> None:
    def stop() -> None:
        raise StopIteration("here")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(LoopThreads(1))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.to_thread(stop)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    asyncio.run(main())
