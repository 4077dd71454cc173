"""Threads of ``def`` actions, and of ``asyncio.to_thread`` and ``run_in_executor``.

There are at most ``run.pool-size`` of each. A thread whose call is no longer awaited, because the
action has timed out, does not count: another one replaces it, so that hanging calls do not slow other
keys. The time that a call waits for a thread does not count towards the timeout of its action.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.concurrency.bridge import (
    Outcome,
    StoppedIteration,
    hand_to,
)
from flink_agents.runtime.concurrency.timeouts import Deadline, ThreadWait, thread_wait, timed_out

_FUNCTIONS = (FunctionType, MethodType, type)

_log = bounded_logger("flink_agents.loop")

T = TypeVar("T")


class _Call(Future[Any]):
    """A call that waits for a thread or is executed in one; a future of its result.

    Args:
        executor: The threads.
        function: The function, with its arguments.
        wait: Measures how long the call waits for a thread; None if its work has no deadline.
    """

    def __init__(self, executor: LoopThreads, function: partial[Any], wait: ThreadWait | None) -> None:
        super().__init__()
        self.function: partial[Any] | None = function
        self.name = _name_of(function)
        self._executor = executor
        self._wait = wait
        # The numbers by which this call counts as waiting and as executed.
        self._counted = (0, 0)
        self.count(1, 0)

    def count(self, waiting: int, executed: int) -> None:
        """Record that the call waits (1, 0), is executed (0, 1), or has ended (0, 0)."""
        previously_counted = self._counted
        self._counted = (waiting, executed)
        if self._wait is not None:
            self._wait.count(waiting - previously_counted[0], executed - previously_counted[1])

    @override
    def cancel(self) -> bool:
        """Cancel the call if it has not started; else let another thread replace the one that executes it."""
        cancelled = super().cancel()
        self._executor.abandon(self, cancelled)
        return cancelled


class LoopThreads(ThreadPoolExecutor):
    """Executes the calls of ``asyncio.to_thread``.

    A ``StopIteration``, which no future accepts, becomes a RuntimeError. Later releases of Python do so
    themselves; without that, the caller would wait for ever. So does a ``GeneratorExit``.

    Args:
        size: The most threads, without those whose calls are no longer awaited.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, thread_name_prefix="asyncio")
        self._size = size
        self._changed = threading.Condition()
        self._queue = deque[_Call]()
        self._running = set[_Call]()
        self._abandoned = set[_Call]()
        self._idle = self._starting = self._count = 0
        self._closed = False

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn`` in a thread as soon as one is free, and return a future of its result."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the agent loop is closed, so nothing can start")
            call = _Call(self, partial(fn, *args, **kwargs), thread_wait.get())
            self._queue.append(call)
            self._changed.notify()
            self._add_threads()
        return cast("Future[T]", call)

    def abandon(self, call: _Call, cancelled: bool) -> None:
        """Record that a call is no longer awaited.

        Args:
            call: The call.
            cancelled: True if it has not started, and never will.
        """
        with self._changed:
            if cancelled:
                call.count(0, 0)
                return
            if call not in self._running or call in self._abandoned:
                return
            # Its thread does not count from now on, so another one may start.
            self._abandoned.add(call)
            count = len(self._abandoned)
            self._add_threads()
        _log.warning(
            "%s keeps running in a thread of asyncio.to_thread, and is no longer awaited; so do %d in all",
            call.name,
            count,
        )

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no more calls, and cancel those that wait for a thread. Does not wait for others."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._changed.notify_all()
        for call in waiting:
            # Outside of the lock: `cancel` runs callbacks of the caller.
            call.cancel()
        super().shutdown(wait=False)

    def join(self, seconds: float) -> None:
        """Block until all executed calls have ended, at most ``seconds``; log how many have not."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._running, seconds):
                _log.warning(
                    "%d calls of asyncio.to_thread keep running after the end of their attempt",
                    len(self._running),
                )

    def _add_threads(self) -> None:
        """Start threads for waiting calls, up to the size of the pool; with the lock held."""
        # An idle thread that was notified of a call counts as idle until it has woken.
        for _ in range(len(self._queue) - self._idle - self._starting):
            if self._count - len(self._abandoned) >= self._size:
                return
            self._count += 1
            self._starting += 1
            threading.Thread(target=self._work, name=f"asyncio-{self._count}", daemon=True).start()

    def _work(self) -> None:
        """Execute calls, until the pool is closed or this thread was replaced. The body of each thread."""
        with self._changed:
            self._starting -= 1
        while (call := self._next_call()) is not None:
            _execute(call)
            with self._changed:
                self._running.discard(call)
                call.count(0, 0)
                replaced = call in self._abandoned
                self._abandoned.discard(call)
                self._changed.notify_all()
                if replaced and self._count - len(self._abandoned) > self._size:
                    self._count -= 1
                    return
            # An idle thread must not keep the arguments of the last call alive.
            del call

    def _next_call(self) -> _Call | None:
        """Block until a call is there to execute, and return it; None if the thread has to end."""
        with self._changed:
            while True:
                self._idle += 1
                self._changed.wait_for(lambda: self._queue or self._closed)
                self._idle -= 1
                if not self._queue:
                    self._count -= 1
                    return None
                call = self._queue.popleft()
                if call.set_running_or_notify_cancel():
                    call.count(0, 1)
                    self._running.add(call)
                    return call
                # It was cancelled in the queue.
                call.count(0, 0)


def _execute(call: _Call) -> None:
    """Call the function of a call, and set its result or exception."""
    function = call.function
    call.function = None
    assert function is not None
    try:
        call.set_result(function())
    except (StopIteration, GeneratorExit) as stop:
        call.set_exception(StoppedIteration(stop))
    except BaseException as error:
        call.set_exception(error)


def _name_of(function: partial[Any]) -> str:
    """Return the displayed name of a call; ``asyncio.to_thread`` wraps the function in a context's method."""
    called = next(
        (candidate for candidate in (*function.args, function.func) if isinstance(candidate, _FUNCTIONS)),
        None,
    )
    return getattr(called, "__qualname__", None) or type(function.func).__qualname__


class WorkerPool:
    """Threads for ``def`` actions.

    Args:
        size: Number of threads. A thread of an action that has timed out does not count.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lost = 0
        self._active = 0
        self._changed = threading.Condition()
        self._closed = False
        self._threads = self._make_threads()

    async def run(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a thread, and await its end; raise what it raised, if a coroutine can."""
        loop = asyncio.get_running_loop()
        error = await loop.run_in_executor(self._threads, self._call, function)
        if error is not None:
            error.result()

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """Call ``function`` in a thread, and wait for it until ``deadline``.

        The time counts from its start there. A thread cannot be stopped: a function that
        runs longer is abandoned, and another thread replaces it.

        Raises:
            ActionTimeoutError: It took longer.
        """
        loop = asyncio.get_running_loop()
        started = loop.create_future()

        def call() -> Outcome | None:
            if not hand_to(loop, started.set_result, None):
                raise RuntimeError("the agent loop is closed, so nothing can start")
            return self._call(function)

        future = loop.run_in_executor(self._threads, call)
        try:
            await asyncio.wait({started, future}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({future}, timeout=deadline.seconds)
            if future.done():
                if (error := future.result()) is not None:
                    error.result()
                return
        finally:
            # An ended call is not affected; the result of another one is ignored.
            future.cancel()
        self._lose_one()
        _log.warning("%s: %s keeps running after its timeout", deadline.where, deadline.what)
        raise timed_out(deadline)

    def close(self) -> None:
        """Start no more calls, and cancel those that wait for a thread. Does not wait for others."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self, seconds: float) -> None:
        """Block until all executed calls have ended, at most ``seconds``; log how many have not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._active == 0, seconds):
                _log.warning(
                    "%d calls of def actions keep running after the end of their attempt", self._active
                )

    def _call(self, function: Callable[[], None]) -> Outcome | None:
        """Call ``function`` in this thread of the pool; return what it raised, or None."""
        with self._changed:
            self._active += 1
        try:
            function()
        except BaseException as error:
            # A future cannot carry every exception.
            return Outcome(error=error)
        else:
            return None
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _lose_one(self) -> None:
        """Count an abandoned thread; replace the pool when it may have no other threads left."""
        self._lost += 1
        if self._lost >= self._size and not self._closed:
            # All of its threads may be taken: waiting calls have to wait, others need not.
            self._lost = 0
            self._threads.shutdown(wait=False)
            self._threads = self._make_threads()

    def _make_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._size, "agent-pool")
