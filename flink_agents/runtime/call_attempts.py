"""The attempts of one durable call: asks its reconciler, calls, waits, tries again.

Functions that are ``async def`` run on the agent loop; others in a thread: one of the pool for
actions on the loop, and for actions in a thread that thread itself, so that no thread of the pool
waits for another one.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import Any, Protocol

from flink_agents.api.durable import NOT_DONE, DurableCallable, RetryableError
from flink_agents.api.logs import bounded_logger
from flink_agents.api.policies import RetryPolicy
from flink_agents.runtime.context import Invocation
from flink_agents.runtime.journal.calls import Call
from flink_agents.runtime.journal.failures import CALL_FAILURES
from flink_agents.runtime.retry import Trial, next_trial
from flink_agents.runtime.run_metrics import RunMetrics
from flink_agents.runtime.timeouts import Deadline, timed_out, within

_log = bounded_logger("flink_agents.durable")

SLICE_SECONDS = 0.1
"""How often a thread that waits looks whether the attempt of the job has ended."""


class Threads(Protocol):
    """Calls functions in a thread that may block."""

    async def run(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a thread, and wait for it."""
        ...

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """The same, until ``deadline``."""
        ...


class CallAttempts:
    """See the module.

    Args:
        step: The execution of an action that calls.
        what: What it calls.
        call: The call.
        threads: Where functions are called that are not ``async def``.
        metrics: The runtime's metrics.

    Attributes:
        number: How many attempts were made.
    """

    def __init__(
        self, step: Invocation, what: DurableCallable, call: Call, threads: Threads, metrics: RunMetrics
    ) -> None:
        self._step = step
        self._what = what
        self._call = call
        self._threads = threads
        self._metrics = metrics
        self.number = 0

    async def value_of(self, function: partial[Any]) -> Any:
        """What the call returns; asks the reconciler first where the call may have been made before."""
        reconciler = self._what.reconciler
        if self._call.begun and reconciler is not None:
            asked = partial(reconciler, *function.args, **function.keywords)
            value = await self._invoke(asked, inspect.iscoroutinefunction(reconciler))
            if value is not NOT_DONE:
                return value
        trial: Trial | None = None
        while True:
            self.number += 1
            try:
                return await self._invoke(function, self._what.is_async)
            except CALL_FAILURES as error:
                trial = self._next(trial, error)
                if trial is None:
                    raise
            await self._pause(trial.delay)

    def _next(self, trial: Trial | None, error: BaseException) -> Trial | None:
        policy = self._what.retry
        if policy is None and isinstance(error, RetryableError):
            policy = _default_policy()
        if policy is None:
            return None
        following = next_trial(policy, trial, error, f"{self._step.path}\x00{self._call.index}")
        if following is not None:
            self._metrics.count("action_call_retries", self._step.action.name)
            _log.info(
                "%s: attempt %d of durable call %s, key %r, failed; next in %.3g s: %s: %s",
                self._step.action.where,
                self.number,
                self._what.identity,
                self._step.run.key,
                following.delay,
                type(error).__name__,
                error,
            )
        return following

    async def _pause(self, seconds: float) -> None:
        """Wait, and let others have the place among what is executed meanwhile."""
        place = self._step.trial.place if self._step.trial is not None else None
        if place is None:
            await asyncio.sleep(seconds)
            return
        with place.lent():
            await asyncio.sleep(seconds)

    async def _invoke(self, function: partial[Any], is_async: bool) -> Any:
        if is_async:
            return await self._in_time(function())
        results: list[Any] = []

        def call() -> None:
            results.append(function())

        if self._what.seconds is None:
            await self._threads.run(call)
        else:
            await self._threads.run_within(call, self._deadline)
        (result,) = results
        # A function that is not async def may still return something to be awaited.
        return await self._in_time(_awaited(result)) if inspect.isawaitable(result) else result

    def _in_time(self, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        return coroutine if self._what.seconds is None else within(self._deadline, coroutine)

    @property
    def _deadline(self) -> Deadline:
        what = self._what
        return Deadline(f"durable call {what.identity}", self._step.action.where, what.seconds)


class CallingThread:
    """The thread of an action that makes a durable call, and calls the function itself."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()

    def wait_for(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], Awaitable[Any]],
        closed: Callable[[], bool],
    ) -> Any:
        """Await on ``loop`` what ``make`` gives there, and do meanwhile what it hands to this thread.

        Args:
            loop: The agent loop.
            make: Called by the loop's thread.
            closed: Whether the attempt of the job has ended.

        Raises:
            asyncio.CancelledError: The attempt of the job has ended.
        """
        ended: list[asyncio.Task[Any]] = []

        def end(task: asyncio.Task[Any]) -> None:
            ended.append(task)
            self._work.put(lambda: True)

        def begin() -> None:
            loop.create_task(_awaited(make)).add_done_callback(end)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            # The loop is closed.
            raise asyncio.CancelledError from None
        while True:
            try:
                if self._work.get(timeout=SLICE_SECONDS)():
                    return ended[0].result()
            except queue.Empty:
                if closed():
                    raise asyncio.CancelledError from None

    async def run(self, function: Callable[[], None]) -> None:
        """See :class:`Threads`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._work.put(partial(_call, function, loop, done))
        await done

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """See :class:`Threads`; in a thread of its own, since that cannot be stopped."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=_call, args=(function, loop, done), name="agent-call", daemon=True).start()
        await asyncio.wait({done}, timeout=deadline.seconds)
        if not done.done():
            done.cancel()
            raise timed_out(deadline)
        done.result()


def _call(function: Callable[[], None], loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> bool:
    """Call ``function``, and tell ``done`` how it ended; returns False: there may be more to do."""
    error: BaseException | None = None
    try:
        function()
    except CALL_FAILURES as raised:
        error = raised

    def tell() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        pass
    return False


async def _awaited(awaitable: Awaitable[Any] | Callable[[], Awaitable[Any]]) -> Any:
    return await (awaitable() if callable(awaitable) else awaitable)


@lru_cache(maxsize=1)
def _default_policy() -> RetryPolicy:
    return RetryPolicy()
