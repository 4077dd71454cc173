"""Threads and the loop hand each other functions, coroutines and what comes of them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError as NeverAsked
from typing import Any

import pytest

from flink_agents.runtime.concurrency.bridge import Bridge, Errands
from flink_agents.runtime.concurrency.timeouts import Deadline, within


class World:
    """A loop in a thread, and whether the task attempt is over."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bridge = Bridge(self.loop)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        if not self.loop.is_closed():
            self.bridge.call_on_loop(self._end_tasks()).result(30)
            self.bridge.hand(self.loop.stop)
            self.thread.join(30)
            self.loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def world() -> Iterator[World]:
    new_world = World()
    yield new_world
    new_world.close()


async def here() -> int:
    return threading.get_ident()


async def never() -> None:
    await asyncio.Event().wait()


def test_a_thread_gets_what_the_loop_finds(world: World) -> None:
    assert world.bridge.wait_for(here) == world.thread.ident
    assert world.bridge.answer(here(), lambda: None) == world.thread.ident
    assert world.bridge.call_on_loop(here()).result(30) == world.thread.ident


@pytest.mark.parametrize(
    "error", [ValueError("no"), StopIteration(3), SystemExit(4), asyncio.CancelledError()]
)
def test_a_thread_gets_what_the_loop_raises(error: BaseException, world: World) -> None:
    class Raises:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        world.bridge.wait_for(Raises)
    # The loop goes on.
    assert world.bridge.wait_for(here) == world.thread.ident


def test_a_waiting_thread_does_errands(world: World) -> None:
    errands, done = Errands(), list[int]()

    async def send() -> str:
        ended = asyncio.get_running_loop().create_future()

        def errand() -> bool:
            done.append(threading.get_ident())
            world.bridge.hand(ended.set_result, "sent")
            return False

        errands.put(errand)
        return await ended

    assert world.bridge.wait_for(send, errands) == "sent"
    assert done == [threading.get_ident()]


def test_a_thread_waits_no_longer_than_the_task_attempt(world: World) -> None:
    world.bridge.hand(setattr, world.bridge, "closed", True)
    with pytest.raises(asyncio.CancelledError):
        world.bridge.wait_for(never)


def test_flinks_thread_waits_no_longer_than_its_check_allows(world: World) -> None:
    class Cancelled(Exception):
        pass

    def check() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        world.bridge.answer(never(), check)


def test_flinks_thread_sees_progress(world: World) -> None:
    done: list[bool] = []
    assert not world.bridge.wait_for_progress(lambda: bool(done), 0.0)
    world.bridge.hand(lambda: done.append(True) or world.bridge.notify())
    assert world.bridge.wait_for_progress(lambda: bool(done), 30)


def test_flinks_thread_is_woken_by_progress_that_comes_while_it_waits(world: World) -> None:
    done, looked = threading.Event(), threading.Event()

    def is_there() -> bool:
        looked.set()
        return done.is_set()

    waiting = threading.Thread(target=world.bridge.wait_for_progress, args=(is_there, 3600), daemon=True)
    waiting.start()
    # It holds the lock from its look to its wait, so that the news comes behind both.
    assert looked.wait(30)
    world.bridge.hand(lambda: done.set() or world.bridge.notify())
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_closed_loop_answers_nobody_and_keeps_nobody_waiting(world: World) -> None:
    world.close()
    assert not world.bridge.hand(print)
    with pytest.raises(NeverAsked):
        world.bridge.call_on_loop(here()).result(30)
    with pytest.raises(asyncio.CancelledError):
        world.bridge.wait_for(here)


async def cancel_before_first_step(*known: asyncio.Task[None]) -> None:
    """Wait until the loop has another task, and cancel all of them before it begins."""
    while not (new := asyncio.all_tasks() - {*known, asyncio.current_task()}):
        await asyncio.sleep(0)
    for task in (*new, *known):
        task.cancel()
    await asyncio.gather(*new, *known, return_exceptions=True)


def test_a_wait_that_ends_before_its_first_step_leaves_nothing_unawaited() -> None:
    """The end of a task attempt cancels all tasks of the loop, also one that was made a moment ago."""
    loop = asyncio.new_event_loop()
    ended = threading.Event()

    def wait() -> None:
        try:
            Bridge(loop).wait_for(never)
        except asyncio.CancelledError:
            ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    loop.run_until_complete(cancel_before_first_step())
    thread.join(30)
    loop.close()
    gc.collect()
    assert ended.is_set()


def test_a_deadline_that_ends_before_its_first_step_leaves_nothing_unawaited() -> None:
    async def run() -> None:
        call = asyncio.create_task(within(Deadline("a call", "agent.py:1 in act", 60), never()))
        await cancel_before_first_step(call)

    asyncio.run(run())
    gc.collect()
