"""The attempts of one durable call: calls the function, waits, retries.

What not every call has, such as a thread or a reconciler, is a stage: see ``stages``.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from contextvars import Context
from functools import lru_cache, partial
from types import CoroutineType
from typing import Any

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.current import in_context, isolated
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.durable import (
    IDEMPOTENCY_KEY,
    DurableCallable,
    RetryableError,
)
from flink_agents.runtime.concurrency.bridge import (
    Bridge,
    cancelled_from_outside,
    end_own_cancellations,
    is_close,
    own_cancellations,
    thrown,
)
from flink_agents.runtime.concurrency.timeouts import Deadline, ThreadWait, seconds_of, thread_wait, within
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.arguments import with_clients
from flink_agents.runtime.execution.calls.durable_code import Threads, durable_function, running
from flink_agents.runtime.execution.phases import WaitPhase
from flink_agents.runtime.execution.retry import RetryState, next_attempt
from flink_agents.runtime.journal.calls import Number, step_name
from flink_agents.runtime.serde.error_parts import read_response
from flink_agents.runtime.serde.raised_texts import shown_text
from flink_agents.runtime.serde.redacted import redacted

_log = bounded_logger("flink_agents.durable")

NO_CLIENTS: dict[str, Any] = {}
"""The clients of most calls."""


class CallFailed(Exception):
    """A call has failed for good. A coroutine cannot raise each exception, so this wraps it.

    Args:
        error: The exception that the call raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def raised_by(error: BaseException) -> BaseException:
    """Return the exception of the call that ended with ``error``."""
    return error.error if isinstance(error, CallFailed) else error


class AttemptEnded(Exception):
    """The attempt of the job ends, so no function may start. It does not leave the runtime."""


class AttemptedCall(WaitPhase):
    """The function of a durable call and its attempts, for which the run of the call waits.

    This class calls an ``async def`` function on the loop. What other calls need besides is a stage, which
    ``stages`` adds: a thread, a timeout, clients, a key, a reconciler.

    Args:
        step: The execution of an action that makes the call.
        callable_: The function and its settings.
        threads: Executes functions that are not ``async def``.
        bridge: Knows if the attempt of the job is over.

    Attributes:
        step: The execution of an action that makes the call.
        number: Its number among the calls of its task; see ``journal.calls``.
        may_have_run: True if an intent is recorded, so that the call may have taken effect.
        announces: True if the run must be bound to its input before the function is called.
        attempts: The number of attempts so far.
        task: The task that makes the call.
        in_own_task: True if that is the action's own task.
        variables: The context in which the function of the present attempt is executed, or None.
        inside: True from the start of the function, or the reconciler, until its result is taken.
        recording: True while the result is being recorded.
        ended: Ends with the call; None until something waits for that.
        clients: The open clients that the function gets, by name.
    """

    # Attributes of the class, because most calls never change these.
    announces = False
    phase = Phase.CALL
    awaited: Any = None
    thread: int | None = None
    attempts = 0
    task: asyncio.Task[Any] | None = None
    variables: Context | None = None
    in_own_task = inside = recording = False
    clients: Mapping[str, Any] = NO_CLIENTS
    ended: asyncio.Future[None] | None = None

    number: Number
    may_have_run: bool
    _data: bytes
    _plain: tuple[Sequence[Any], Mapping[str, Any]] | None

    def __init__(self, step: ActionRun, callable_: DurableCallable, threads: Threads, bridge: Bridge) -> None:
        # Not the constructor of the base class: each event comes here.
        self.step = step
        self._callable = callable_
        self._threads = threads
        self._bridge = bridge

    @property
    def key(self) -> str | None:
        """The idempotency key: 32 hex digits, equal for all attempts. None if the function uses none."""
        callable_ = self._callable
        return idempotency_key(self) if callable_.wants_key or callable_.reconciler is not None else None

    @property
    def what(self) -> str:
        """The call as text, with a note if its result is being recorded."""
        text = f"durable call {self._callable.identity}"
        return f"{text}, whose result is being recorded" if self.recording else text

    @property
    def effective(self) -> bool:
        """True if the call may have had an effect that is not recorded."""
        return self.inside or self.recording

    def enter_function(self) -> None:
        """Note that the function starts, in the thread that executes it.

        Raises:
            AttemptEnded: It may not start.
        """
        # Set the flag, then check. The code that ends the attempt sets `closed`, then reads the flag. So at
        # least one of the two sees the other.
        self.inside = True
        self.thread = threading.get_ident()
        if self._bridge.closed:
            self.inside = False
            raise AttemptEnded

    def leave_function(self) -> None:
        """Note that the result was taken, or that nothing waits for it any longer."""
        self.inside = False
        self.awaited = self.thread = None

    async def execute(self) -> Any:
        """Return the result of the function, attempt by attempt.

        Raises:
            CallFailed: It failed for good.
        """
        retry_state: RetryState | None = None
        while True:
            self.attempts += 1
            try:
                return await self.attempt()
            except BaseException as error:
                if (count := self._take_own_cancellations()) and not is_close(error):
                    # They are the failure of the function, and would meet the action's code.
                    await end_own_cancellations(count)
                if is_close(error) or cancelled_from_outside(error):
                    self.note_cut_off()
                    raise
                retry_state = self._next_attempt(retry_state, redacted(thrown(error)))
                if retry_state is None:
                    return self.end_without_result(error)
            finally:
                # As `leave_function` does: each call comes here.
                self.inside = False
                self.awaited = self.thread = None
            await self._pause(retry_state.delay)

    def attempt(self) -> Awaitable[Any]:
        """Call the function; returns an awaitable of its result."""
        return self.call_async(self.bind())

    async def call_async(self, function: partial[Any]) -> Any:
        """Call an ``async def`` function, and return its result."""
        self.variables = context = isolated()
        # The thread that ends the attempt sets `closed`, and then the loop's thread looks for calls.
        if self._bridge.closed:
            raise AttemptEnded
        self.inside = True
        inner, awaited = context.run(_begin_inside, function, self.task)
        if inner is not None:
            self.awaited = inner
            awaited = await in_context(
                context, inner, _resume_inside, function.func, self.task, awaited=awaited
            )
        if own_cancellations in context:
            await self.settle_cancellations()
        return awaited

    # -- what stages replace ------------------------------------------------------------

    def bind(self) -> partial[Any]:
        """Return the function bound to the arguments of an attempt."""
        callable_ = self._callable
        if self._plain is not None:
            args, kwargs = self._plain
            return partial(callable_.function, *args, **kwargs)
        return self.bind_copies(callable_, False, NO_CLIENTS)

    def note_cut_off(self) -> None:
        """Note that the action was cancelled during the call. Its next attempt repeats most calls."""

    def end_without_result(self, error: BaseException) -> Any:
        """Return a result in place of the one that no attempt has returned; else raise.

        A variable of the frame that called the function would be in a cycle with the traceback of the error.

        Raises:
            CallFailed: The call failed for good.
        """
        raise CallFailed(redacted(thrown(error))) from None

    # -- parts of attempts --------------------------------------------------------------

    def bind_copies(
        self, callable_: DurableCallable, wants_key: bool, clients: Mapping[str, Any]
    ) -> partial[Any]:
        """Return a function bound to a copy of the arguments, and to the key and clients that it takes."""
        args, kwargs = self._plain or self.step.shared.codec.decode(self._data)
        if wants_key and IDEMPOTENCY_KEY not in kwargs:
            kwargs = {**kwargs, IDEMPOTENCY_KEY: self.key}
        if clients:
            args, kwargs = with_clients(callable_.positional, args, kwargs, clients)
        return partial(callable_.function, *args, **kwargs)

    def _next_attempt(self, retry_state: RetryState | None, error: BaseException) -> RetryState | None:
        """Return the state of the next attempt, and report that there is one; None if there is none."""
        delivery = self.step.delivery
        if self._bridge.closed or (delivery is not None and delivery.failing):
            # No further attempt may start.
            return None
        policy = self._callable.retry
        if policy is None and isinstance(error, RetryableError):
            policy = _default_policy()
        if policy is None:
            return None
        seed = f"{self.step.path}\x00{self.number.nth}"
        following = next_attempt(policy, retry_state, error, seed, self.step.shared.seconds())
        if following is not None:
            state = self.step.run.state
            action = self.step.action.name
            name = self._callable.identity
            observers = self.step.shared.telemetry.observers
            observers.call_attempt_failed(state, action, name, self.number, self.attempts, error)
            observers.call_retried(state, action, name, self.number, self.attempts + 1)
            _log.info(
                "%s: attempt %d of durable call %s, key %r, failed; next in %.3g s: %s: %s",
                self.step.action.where,
                self.attempts,
                self._callable.identity,
                self.step.run.key,
                following.delay,
                type(error).__name__,
                shown_text(error),
            )
        return following

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt. Other actions may use the slot meanwhile."""
        slot = self.step.slot
        reason = f"a pause before attempt {self.attempts + 1} of durable call {self._callable.identity}"
        with self.step.run.state.waiting(Phase.RETRY, reason), slot.lent() if slot else nullcontext():
            await self.step.shared.pause(seconds)

    async def call_in_thread(self, function: partial[Any]) -> Any:
        """Call a function in a thread; return its result, which is awaited on the loop if it can be."""
        self.variables = context = isolated()
        results: list[Any] = []

        def call() -> None:
            self.enter_function()
            durable_function.set(function.func)
            previous_function = running.function
            running.function = function.func
            try:
                results.append(function())
            except OSError as error:
                read_response(error)
                raise
            finally:
                running.function = previous_function

        if self._callable.seconds is None:
            await self._threads.run(partial(context.run, call))
        else:
            await self._threads.run_within(partial(context.run, call), self.deadline)
        (result,) = results
        # A function that is not async def may still return something to be awaited.
        if inspect.isawaitable(result):
            self.awaited = result
            inside = in_context(context, as_coroutine(result), resume_by_any_task, function.func)
            context.run(durable_function.set, function.func)
            result = await (inside if self._callable.seconds is None else self.in_time(inside, context))
        if own_cancellations in context:
            await self.settle_cancellations()
        return result

    async def in_time(self, inside: Awaitable[Any], context: Context) -> Any:
        """Await code of the function, which runs in a context, until the timeout of the call."""
        wait = ThreadWait(thread_wait.get(), seconds_of(asyncio.get_running_loop()))
        context.run(thread_wait.set, wait)
        return await within(self.deadline, self._settled(inside), wait=wait)

    async def _settled(self, inside: Awaitable[Any]) -> Any:
        """Await code of the function in the task that its deadline cancels."""
        try:
            return await inside
        finally:
            await self.settle_cancellations()

    async def settle_cancellations(self) -> None:
        """Let the cancellations of the running task by code of the function take effect, if there are any."""
        if count := self._take_own_cancellations():
            await end_own_cancellations(count)

    def _take_own_cancellations(self) -> int:
        """Take the number of cancellations of the running task that code of the function has requested."""
        variables = self.variables
        self.variables = None
        return 0 if variables is None else variables.get(own_cancellations, 0)

    @property
    def deadline(self) -> Deadline:
        """The timeout of the call, with the text and place that its error shows."""
        callable_ = self._callable
        return Deadline(f"durable call {callable_.identity}", self.step.action.where, callable_.seconds)


def idempotency_key(call: AttemptedCall) -> str:
    """Return the idempotency key of a call: the 16 bytes BLAKE2b (RFC 7693) of its run and number, in hex."""
    run = call.step.run
    name = step_name(call.step.path, call.number.task)
    parts = (
        run.identity,
        call.step.shared.agent.name,
        run.key_text,
        run.sequence_number,
        name,
        call.number.nth,
    )
    path = "\x00".join(map(str, parts))
    return hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _default_policy() -> RetryPolicy:
    """Return the policy for functions that raise ``RetryableError`` but have no policy."""
    return RetryPolicy()


# -- code of durable functions ----------------------------------------------------------


def _begin_inside(function: partial[Any], task: asyncio.Task[Any] | None) -> tuple[Any, Any]:
    """Call a function in its context, and execute its coroutine until it waits.

    Context variables that it sets do not reach its caller. A replay would not set them either.

    Returns:
        The coroutine and the object that it awaits; None and the result of a function that did not wait.
    """
    inner = function()
    if type(inner) is not CoroutineType:
        inner = _await_any(inner)
    durable_function.set(function.func)
    try:
        return inner, _resume_inside(function.func, task, inner.send, None)
    except StopIteration as stop:
        return None, stop.value


def as_coroutine(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Return a coroutine that awaits an object: itself, if it is one."""
    return awaitable if isinstance(awaitable, CoroutineType) else _await_any(awaitable)


async def _await_any(awaitable: Awaitable[Any]) -> Any:
    """Await an object that is no coroutine, so that a coroutine does it."""
    return await awaitable


def _resume_inside(
    function: Callable[..., Any],
    task: asyncio.Task[Any] | None,
    resume: Callable[[Any], Any],
    value: Any,
) -> Any:
    """Resume a coroutine with ``value`` as code of ``function``; returns the object that it awaits next.

    Counts the cancellations of the task that the code requests itself.
    """
    previous_function = running.function
    running.function = function
    requests = 0 if task is None else task.cancelling()
    try:
        return resume(value)
    finally:
        running.function = previous_function
        if task is not None and (count := task.cancelling() - requests):
            own_cancellations.set(max(0, own_cancellations.get() + count))


def resume_by_any_task(function: Callable[..., Any], resume: Callable[[Any], Any], value: Any) -> Any:
    """Resume a coroutine as :func:`_resume_inside` does, in the running task."""
    return _resume_inside(function, asyncio.current_task(), resume, value)
