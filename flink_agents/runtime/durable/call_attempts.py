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
from flink_agents.runtime.concurrency.outcomes import (
    Outcome,
    StoppedIteration,
    awaited_outcome,
    cancelled_from_outside,
    is_close,
    outcome_of,
    thrown,
)
from flink_agents.runtime.concurrency.timeouts import Deadline, timed_out, within
from flink_agents.runtime.durable.call_values import Arguments
from flink_agents.runtime.durable.in_flight import CallInFlight
from flink_agents.runtime.execution.call_scope import await_inside, call_inside
from flink_agents.runtime.execution.context import Invocation
from flink_agents.runtime.execution.retry import Trial, next_trial
from flink_agents.runtime.journal.calls import Call
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.serde.tracebacks import text_of

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


class CallFailed(Exception):
    """A call has failed for good, by an exception that may be one which no coroutine can raise.

    Args:
        error: What the call raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def raised_by(error: BaseException) -> BaseException:
    """What the call raised that ended with ``error``."""
    return error.error if isinstance(error, CallFailed) else error


class CallAttempts:
    """See the module. One is made for each call.

    Args:
        step: The execution of an action that calls.
        what: What it calls.
        call: The call.
        threads: Where functions are called that are not ``async def``.
        metrics: The runtime's metrics.
        in_flight: Is told when the function is executed.

    Attributes:
        number: How many attempts were made.
    """

    __slots__ = ("_call", "_metrics", "_step", "_threads", "_what", "in_flight", "number")

    def __init__(
        self,
        step: Invocation,
        what: DurableCallable,
        call: Call,
        threads: Threads,
        metrics: RunMetrics,
        in_flight: CallInFlight,
    ) -> None:
        self._step = step
        self._what = what
        self._call = call
        self._threads = threads
        self._metrics = metrics
        self.in_flight = in_flight
        self.number = 0

    async def value_of(self, arguments: Arguments) -> Any:
        """What the call returns; asks the reconciler first where the call may have been made before.

        Args:
            arguments: Its arguments, of which each attempt gets a copy.

        Raises:
            CallFailed: It failed for good.
        """
        reconciler = self._what.reconciler if self._call.begun else None
        trial: Trial | None = None
        while True:
            self.number += 1
            try:
                if reconciler is not None:
                    asked = arguments.of_reconciler(reconciler)
                    value = await self._result_of(asked, inspect.iscoroutinefunction(reconciler))
                    if value is not NOT_DONE:
                        return value
                    reconciler = None
                    self.in_flight.leave()
                return await self._result_of(arguments.of(self._what), self._what.is_async)
            except BaseException as error:
                if is_close(error) or cancelled_from_outside(error):
                    raise
                trial = self._next(trial, thrown(error))
                if trial is None:
                    raise CallFailed(thrown(error)) from None
            finally:
                self.in_flight.leave()
            await self._pause(trial.delay)

    def _next(self, trial: Trial | None, error: BaseException) -> Trial | None:
        delivery = self._step.delivery
        if self.in_flight.closed() or (delivery is not None and delivery.failing):
            # Nothing begins any more.
            return None
        policy = self._what.retry
        if isinstance(error, GeneratorExit):
            # It may have come by closing this coroutine, which then must not wait for anything.
            return None
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
                text_of(error),
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

    def _result_of(self, function: partial[Any], is_async: bool) -> Coroutine[Any, Any, Any]:
        """Call ``function``; what this returns is to be awaited at once."""
        if not is_async:
            return self._result_in_thread(function)
        self.in_flight.enter()
        return self._in_time(await_inside(function.func, function()))

    async def _result_in_thread(self, function: partial[Any]) -> Any:
        results: list[Any] = []

        def call() -> None:
            self.in_flight.enter()
            results.append(call_inside(function.func, function))

        if self._what.seconds is None:
            await self._threads.run(call)
        else:
            await self._threads.run_within(call, self._deadline)
        (result,) = results
        # A function that is not async def may still return something to be awaited.
        if not inspect.isawaitable(result):
            return result
        return await self._in_time(await_inside(function.func, result))

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
        ended: list[asyncio.Task[Outcome]] = []

        def end(task: asyncio.Task[Outcome]) -> None:
            ended.append(task)
            self._work.put(lambda: True)

        def begin() -> None:
            loop.create_task(awaited_outcome(_awaited(make))).add_done_callback(end)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            # The loop is closed.
            raise asyncio.CancelledError from None
        while True:
            try:
                if self._work.get(timeout=SLICE_SECONDS)():
                    return _result_of(ended[0])
            except queue.Empty:
                if closed():
                    raise asyncio.CancelledError from None

    async def run(self, function: Callable[[], None]) -> None:
        """See :class:`Threads`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        self._work.put(partial(_call, function, loop, done))
        (await done).result()

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """See :class:`Threads`; in a thread of its own, since that cannot be stopped."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        threading.Thread(target=_call, args=(function, loop, done), name="agent-call", daemon=True).start()
        await asyncio.wait({done}, timeout=deadline.seconds)
        if not done.done():
            done.cancel()
            raise timed_out(deadline)
        done.result().result()


def _call(
    function: Callable[[], None], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Outcome]
) -> bool:
    """Call ``function``, and tell ``done`` how it ended; returns False: there may be more to do."""
    outcome = outcome_of(function)

    def tell() -> None:
        if not done.done():
            done.set_result(outcome)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        pass
    return False


def _result_of(task: asyncio.Task[Outcome]) -> Any:
    """The result of a task, for code that is no coroutine: that can raise ``StopIteration``."""
    try:
        return task.result().result()
    except StoppedIteration as stopped:
        raise stopped.stop from stopped.stop.__cause__


async def _awaited(awaitable: Awaitable[Any] | Callable[[], Awaitable[Any]]) -> Any:
    return await (awaitable() if callable(awaitable) else awaitable)


@lru_cache(maxsize=1)
def _default_policy() -> RetryPolicy:
    return RetryPolicy()
