"""The attempts of one durable call: asks the reconciler, calls the function, waits, retries.

``async def`` functions run on the event loop. Other functions run in a thread: for actions on the loop, in a
thread of the pool; for actions in a thread, in that same thread. So no thread of the pool waits for another.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    NOT_DONE,
    DurableCallable,
    RetryableError,
    takes_argument,
)
from flink_agents.api.errors import ActionTimeoutError
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

_NO_CLIENTS: dict[str, Any] = {}
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

    Args:
        step: The execution of an action that makes the call.
        callable_: The function and its settings.
        threads: Executes functions that are not ``async def``.
        bridge: Knows if the attempt of the job is over.

    Attributes:
        step: The execution of an action that makes the call.
        number: Its number among the calls of its task; see ``journal.calls``.
        may_have_run: True if an intent is recorded, so that the call may have taken effect.
        attempts: The number of attempts so far.
        task: The task that makes the call.
        in_own_task: True if that is the action's own task.
        variables: The context in which the function of the present attempt is executed, or None.
        inside: True from the start of the function, or the reconciler, until its result is taken.
        recording: True while the result is being recorded.
        ended: Ends with the call; None until something waits for that.
    """

    number: Number
    may_have_run: bool
    _data: bytes
    _plain: tuple[Sequence[Any], Mapping[str, Any]] | None

    __slots__ = (
        "_bridge",
        "_callable",
        "_data",
        "_plain",
        "_threads",
        "attempts",
        "ended",
        "in_own_task",
        "inside",
        "may_have_run",
        "number",
        "recording",
        "step",
        "task",
        "variables",
    )

    def __init__(self, step: ActionRun, callable_: DurableCallable, threads: Threads, bridge: Bridge) -> None:
        super().__init__(Phase.CALL, callable_.identity)
        self.step = step
        self._callable = callable_
        self._threads = threads
        self._bridge = bridge
        self.attempts = 0
        self.variables: Context | None = None
        self.in_own_task = self.inside = self.recording = False
        self.task: asyncio.Task[Any] | None = None
        self.ended: asyncio.Future[None] | None = None

    @property
    def key(self) -> str | None:
        """The idempotency key: 32 hex digits, equal for all attempts. None if the function uses none."""
        callable_ = self._callable
        return idempotency_key(self) if callable_.wants_key or callable_.reconciler is not None else None

    @property
    def what(self) -> str:
        """The call as text, with a note if its result is being recorded."""
        text = f"durable call {self._what}"
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
        """Return the result of the function; each attempt gets a copy of the arguments.

        If the call may have been made before, its reconciler comes first.

        Raises:
            CallFailed: It failed for good.
        """
        # A tool that must not be repeated: its outcome stays unknown.
        if self.step.run.cut_off is not None and self._was_cut_off:
            return self._unknown_result("the action was cancelled during the call")
        reconciler = self._callable.reconciler if self.may_have_run else None
        retry_state: RetryState | None = None
        while True:
            self.attempts += 1
            try:
                clients = await self._open_clients() if self._callable.clients else _NO_CLIENTS
                if reconciler is not None:
                    # First: if the last attempt took effect, the function must not run.
                    question = self._bind_reconciler(reconciler, clients)
                    value = await self._result_of(question, inspect.iscoroutinefunction(reconciler))
                    if value is not NOT_DONE:
                        return value
                    reconciler = None
                    self.leave_function()
                value = await self._result_of(self._bind(clients), self._callable.is_async)
                if self.variables is not None and own_cancellations in self.variables:
                    await end_own_cancellations(self._take_own_cancellations())
                return value
            except BaseException as error:
                if (count := self._take_own_cancellations()) and not is_close(error):
                    # They are the failure of the function, and would meet the action's code.
                    await end_own_cancellations(count)
                if is_close(error) or cancelled_from_outside(error):
                    # Before the cancellation continues: the next attempt of the action has to know.
                    self._note_cut_off()
                    raise
                retry_state = self._next_attempt(retry_state, redacted(thrown(error)))
                if retry_state is None:
                    return self._fail_or_unknown(error)
            finally:
                self.leave_function()
            await self._pause(retry_state.delay)

    def _fail_or_unknown(self, error: BaseException) -> Any:
        """Return the result of a call whose outcome is unknown; else raise.

        A variable of the frame that called the function would be in a cycle with the traceback of the error.

        Raises:
            CallFailed: The call failed for good.
        """
        if self._callable.unknown is not None and isinstance(error, ActionTimeoutError):
            return self._unknown_result(f"it took longer than {self._callable.seconds:g} seconds")
        raise CallFailed(redacted(thrown(error))) from None

    @property
    def _was_cut_off(self) -> bool:
        """True if the action was cancelled during this call before, so that it must not be repeated."""
        cut_off = self.step.run.cut_off
        return cut_off is not None and (self.step.path, self.number) in cut_off

    def _note_cut_off(self) -> None:
        """Note for the next attempt of the action that the call may have taken effect."""
        unknown = self._callable.unknown
        if unknown is not None and not unknown.repeats and self.inside:
            run = self.step.run
            run.cut_off = {*(run.cut_off or ()), (self.step.path, self.number)}

    def _unknown_result(self, reason: str) -> Any:
        """Return the result that the caller of a request gets if its outcome is unknown, for ``reason``."""
        assert self._callable.unknown is not None
        return self._callable.unknown.result(reason, self.key)

    def _bind(self, clients: Mapping[str, Any]) -> partial[Any]:
        """Return the function bound to a copy of the arguments, and to open clients by name."""
        callable_ = self._callable
        if self._plain is not None and not (callable_.wants_key or clients):
            args, kwargs = self._plain
            return partial(callable_.function, *args, **kwargs)
        return self._bind_copies(callable_, callable_.wants_key, clients)

    def _bind_reconciler(self, reconciler: Callable[..., Any], clients: Mapping[str, Any]) -> partial[Any]:
        """Return ``reconciler`` bound to a copy of the arguments, and to the key and clients it takes."""
        taken_clients = {name: client for name, client in clients.items() if takes_argument(reconciler, name)}
        return self._bind_copies(
            DurableCallable(reconciler), takes_argument(reconciler, IDEMPOTENCY_KEY), taken_clients
        )

    def _bind_copies(
        self, callable_: DurableCallable, wants_key: bool, clients: Mapping[str, Any]
    ) -> partial[Any]:
        """Return a function bound to a copy of the arguments, and to the key and clients that it takes."""
        args, kwargs = self._plain or self.step.shared.codec.decode(self._data)
        if wants_key and IDEMPOTENCY_KEY not in kwargs:
            kwargs = {**kwargs, IDEMPOTENCY_KEY: self.key}
        if clients:
            args, kwargs = with_clients(callable_.positional, args, kwargs, clients)
        return partial(callable_.function, *args, **kwargs)

    async def _open_clients(self) -> dict[str, Any]:
        """Return the clients that the function needs, by name. Opens those that are not open yet."""
        clients = self.step.shared.services.clients
        opened_clients = dict[str, Any]()
        for name in self._callable.clients:
            with self.step.run.state.waiting(Phase.CLIENT, f"the client {name!r} to open") as wait:
                wait.awaited = partial(clients.opening_task, name)
                opened = clients.get(name)
                timely = opened if self._callable.seconds is None else within(self._deadline, opened)
                opened_clients[name] = (await timely).peek()
        return opened_clients

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

    def _result_of(self, function: partial[Any], is_async: bool) -> Awaitable[Any]:
        """Call ``function``. Await the returned object at once."""
        self.variables = context = isolated()
        if not is_async:
            return self._result_in_thread(function, context)
        self.enter_function()
        self.awaited = context.run(function)
        return self._in_time(function.func, self.awaited, context)

    async def _result_in_thread(self, function: partial[Any], context: Context) -> Any:
        """Call a function in a thread; return its result, which is awaited on the loop if it can be."""
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
            await self._threads.run_within(partial(context.run, call), self._deadline)
        (result,) = results
        # A function that is not async def may still return something to be awaited.
        if not inspect.isawaitable(result):
            return result
        self.awaited = result
        return await self._in_time(function.func, result, context)

    def _in_time(
        self, function: Callable[..., Any], result: Awaitable[Any], context: Context
    ) -> Awaitable[Any]:
        """Return an awaitable for what a function returned, with the timeout of the call if it has one."""
        inside = _await_inside(function, result, context)
        if self._callable.seconds is None:
            return inside
        wait = ThreadWait(thread_wait.get(), seconds_of(asyncio.get_running_loop()))
        context.run(thread_wait.set, wait)
        return within(self._deadline, self._settled(inside), wait=wait)

    async def _settled(self, inside: Awaitable[Any]) -> Any:
        """Await code of the function in the task that its deadline cancels."""
        try:
            return await inside
        finally:
            if count := self._take_own_cancellations():
                await end_own_cancellations(count)

    def _take_own_cancellations(self) -> int:
        """Take the number of cancellations of the running task that code of the function has requested."""
        variables = self.variables
        self.variables = None
        return 0 if variables is None else variables.get(own_cancellations, 0)

    @property
    def _deadline(self) -> Deadline:
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


def _await_inside(
    function: Callable[..., Any], awaitable: Awaitable[Any], context: Context
) -> Awaitable[Any]:
    """Return an awaitable that runs ``awaitable``, and the tasks that it starts, as code of ``function``.

    Context variables that it sets do not reach its caller. A replay would not set them either.
    """
    if not isinstance(awaitable, CoroutineType):
        awaitable = _await_any(awaitable)
    context.run(durable_function.set, function)
    return in_context(context, awaitable, _resume_inside, function)


async def _await_any(awaitable: Awaitable[Any]) -> Any:
    """Await an object that is no coroutine, so that a coroutine does it."""
    return await awaitable


def _resume_inside(function: Callable[..., Any], resume: Callable[[Any], Any], value: Any) -> Any:
    """Resume a coroutine with ``value`` as code of ``function``; returns the object that it awaits next.

    Counts the cancellations of the task that the code requests itself.
    """
    previous_function = running.function
    running.function = function
    task = asyncio.current_task()
    requests = 0 if task is None else task.cancelling()
    try:
        return resume(value)
    finally:
        running.function = previous_function
        if task is not None and (count := task.cancelling() - requests):
            own_cancellations.set(max(0, own_cancellations.get() + count))
