"""Threads of ``asyncio.to_thread`` and ``run_in_executor``, counted like those of ``def`` actions.

There are at most ``run.pool-size`` of them. A thread whose call is no longer awaited, because the
action has timed out, does not count: another one replaces it, so that hanging calls do not slow other
keys. The time that a call waits for a thread does not count towards the timeout of its action.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.concurrency.outcomes import StoppedIteration

_FUNCTIONS = (FunctionType, MethodType, type)

_log = bounded_logger("flink_agents.loop")

T = TypeVar("T")


class ThreadWait:
    """Time of work with a deadline that does not count, since it did not run. Thread-safe.

    This is time in which it waited for a thread only, or for durable waits only. While any of its calls is
    executed, its time runs, even if others wait: that call may be the one that hangs.

    Args:
        outer: The counter of the enclosing work, which waits as well; None if there is none.
        seconds_now: Returns the time of the loop whose timers end the work.

    Attributes:
        at_rest: True if it waits for durable waits only.
        expired: True if its time is over.
    """

    def __init__(self, outer: ThreadWait | None, seconds_now: Callable[[], float] = time.monotonic) -> None:
        self._outer = outer
        self._seconds_now = seconds_now
        self._lock = threading.Lock()
        self._waiting = self._executed = 0
        self._began = self._seconds_now()
        self.at_rest = self.expired = False
        self._continued: asyncio.Event | None = None
        self._since: float | None = None
        self._seconds = 0.0

    def count(self, waiting: int, executed: int) -> None:
        """Record a change in the numbers of waiting and executed calls."""
        with self._lock:
            self._waiting += waiting
            self._executed += executed
            self._update()
        if self._outer is not None:
            self._outer.count(waiting, executed)

    def rest(self, at_rest: bool) -> None:
        """Record that it waits for durable waits only, or no longer. The enclosing work may run meanwhile."""
        if at_rest is not self.at_rest:
            with self._lock:
                self.at_rest = at_rest
                self._update()
            if not at_rest and self._continued is not None:
                self._continued.set()

    async def end_of_rest(self) -> None:
        """Wait until it no longer waits for durable waits only."""
        while self.at_rest:
            self._continued = asyncio.Event()
            await self._continued.wait()

    def _update(self) -> None:
        only_waits = self.at_rest or (self._waiting > 0 and self._executed == 0)
        if only_waits and self._since is None:
            self._since = self._seconds_now()
        elif not only_waits and self._since is not None:
            self._seconds += self._seconds_now() - self._since
            self._since = None

    @property
    def ran(self) -> float:
        """The time that counts, in seconds."""
        return self._seconds_now() - self._began - self.seconds

    @property
    def seconds(self) -> float:
        """The time for which it has only waited, in seconds."""
        with self._lock:
            return self._seconds + (0.0 if self._since is None else self._seconds_now() - self._since)


def seconds_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock of a loop, as it is outside of any action."""
    return getattr(loop, "own_time", loop.time)


thread_wait: ContextVar[ThreadWait | None] = ContextVar("thread_wait", default=None)
"""The counter of the running code's waits for threads; None if it has no deadline."""


class _Call(Future[Any]):
    """A call in a thread.

    Args:
        executor: The threads.
        function: The function, with its arguments.
        wait: Measures the wait of the call; None if nothing needs it.
    """

    def __init__(self, executor: LoopThreads, function: partial[Any], wait: ThreadWait | None) -> None:
        super().__init__()
        self.function: partial[Any] | None = function
        self.name = _name_of(function)
        self._executor = executor
        self._wait = wait
        self._place = (0, 0)
        self.count(1, 0)

    def count(self, waiting: int, executed: int) -> None:
        """Record that it waits, or is executed."""
        previous_place = self._place
        self._place = (waiting, executed)
        if self._wait is not None:
            self._wait.count(waiting - previous_place[0], executed - previous_place[1])

    @override
    def cancel(self) -> bool:
        """Cancel it, or let another thread replace the one that executes it."""
        cancelled = super().cancel()
        self._executor.abandon(self, cancelled)
        return cancelled


class LoopThreads(ThreadPoolExecutor):
    """Executes the calls of ``asyncio.to_thread``.

    A ``StopIteration``, which no future accepts, becomes a RuntimeError. Later releases of Python do so
    themselves; without that, the caller would wait for ever. So does a ``GeneratorExit``.

    Args:
        size: Number of threads, without those whose calls are no longer awaited.
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
        """Call ``fn`` in a thread, when one is free."""
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
        """Start no more calls."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._changed.notify_all()
        for call in waiting:
            # Outside of the lock: `cancel` runs callbacks of the caller.
            call.cancel()
        super().shutdown(wait=False)

    def join(self, seconds: float) -> None:
        """Wait until all calls have ended, at most ``seconds``."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._running, seconds):
                _log.warning(
                    "%d calls of asyncio.to_thread keep running after the end of their attempt",
                    len(self._running),
                )

    def _add_threads(self) -> None:
        """Start threads for waiting calls, as long as there are not enough."""
        # An idle thread that was notified of a call counts as idle until it has woken.
        for _ in range(len(self._queue) - self._idle - self._starting):
            if self._count - len(self._abandoned) >= self._size:
                return
            self._count += 1
            self._starting += 1
            threading.Thread(target=self._work, name=f"asyncio-{self._count}", daemon=True).start()

    def _work(self) -> None:
        with self._changed:
            self._starting -= 1
        while (call := self._next()) is not None:
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

    def _next(self) -> _Call | None:
        """Wait for a call to execute; return None if the thread has to end."""
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
    function = call.function
    call.function = None
    assert function is not None
    try:
        call.set_result(function())
    except (StopIteration, GeneratorExit) as stop:
        call.set_exception(_carried(stop))
    except BaseException as error:
        call.set_exception(error)


def _name_of(function: partial[Any]) -> str:
    """Return the displayed name of a call; ``asyncio.to_thread`` wraps the function in a context's method."""
    called = next(
        (candidate for candidate in (*function.args, function.func) if isinstance(candidate, _FUNCTIONS)),
        None,
    )
    return getattr(called, "__qualname__", None) or type(function.func).__qualname__


def _carried(stop: BaseException) -> BaseException:
    error = StoppedIteration(stop)
    error.__cause__ = stop
    return error
