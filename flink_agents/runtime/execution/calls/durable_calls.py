"""The durable calls of a subtask: makes them, stores their records, and knows which are in flight.

Everything runs on the event loop, except :meth:`DurableCalls.call_from_thread`.

A call in flight may have taken effect already. If the process is still running when the attempt of the job
ends, the call can finish and be recorded within a grace period, so that the next attempt does not repeat it.
Nothing starts in that period: no call, and no retry of a call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import ContextMisuseError, RecordTooLargeError, StoreError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.concurrency.timeouts import WorkerPool
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.attempts import AttemptedCall
from flink_agents.runtime.execution.calls.call import DurableCall, PendingCall
from flink_agents.runtime.execution.calls.mismatches import mismatch_error
from flink_agents.runtime.execution.calls.results import check_result_type
from flink_agents.runtime.execution.calls.threads import CallingThread, Threads
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.outcomes.delivery import Delivery
from flink_agents.runtime.execution.stacks import waits_of
from flink_agents.runtime.execution.waits.suspend import suspend_at_rest
from flink_agents.runtime.journal.calls import Mismatch, Number, Outcome, as_shown
from flink_agents.runtime.journal.records import CallIdentity

_log = bounded_logger("flink_agents.durable")

_NO_OUTCOMES: Mapping[Number, Outcome] = {}


class DurableCalls:
    """Makes the durable calls of a subtask, and stores their records.

    Args:
        shared: The agent's shared objects.
        bridge: Leads to the event loop, and knows if the attempt of the job is over.
        pool: Threads for functions that are not ``async def``.
        fail: Ends the attempt of the job because of an error.

    Attributes:
        bridge: Leads to the event loop, and knows if the attempt of the job is over.
        codec: Encodes values.
        observers: Notified of calls.
        fail: Ends the attempt of the job because of an error.
        on_call: Called with each durable call before anything else happens; for debugging, or None.
        grace: The seconds for which calls in flight may finish at the end of an attempt.
        broken: True if the store failed, so that nothing can be recorded any longer.
        closed: True if the grace period is over, so that nothing is recorded any longer.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        bridge: Bridge,
        pool: WorkerPool,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.bridge = bridge
        self.codec = shared.codec
        self.observers = shared.telemetry.observers
        self.fail = fail
        self.on_call = shared.journals.on_call if shared.journals is not None else None
        self.grace = shared.config.get(AgentOptions.SHUTDOWN_GRACE).total_seconds()
        self.broken = self.closed = False
        self._pool = pool
        self._loop_thread = 0
        self._in_flight: set[AttemptedCall] = set()

    def open(self) -> None:
        """Store the id of the loop's thread. The loop calls this when it starts."""
        self._loop_thread = threading.get_ident()

    # -- calls ------------------------------------------------------------------------

    def call(
        self,
        step: ActionRun,
        callable_: DurableCallable,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        threads: Threads | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Make a call of an action on the loop. Its number is assigned here, before anything is awaited.

        Args:
            step: The execution of the action.
            callable_: The function and its settings.
            args: Arguments by position.
            kwargs: Arguments by name.
            threads: Executes the function if it is not ``async def``. Default: the pool.
        """
        # A `def` action must not get a coroutine that it cannot await.
        if threading.get_ident() != self._loop_thread:
            raise ContextMisuseError(
                f"action {step.action.name!r} makes an asynchronous durable call, but is no async def",
                expected="an async def action",
                found="a def action",
                fix="write ctx.durable_execute(...), or make the action async def",
            )
        if self.bridge.closed:
            raise asyncio.CancelledError
        if callable_.result_type is not None:
            check_result_type(self.codec, callable_)
        delivery = step.delivery or self.delivery_of(step)
        step.calls = delivery
        try:
            call = DurableCall(self, step, delivery, callable_, args, kwargs, threads or self._pool)
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        value = delivery.unawaited[call.number] = call.value()
        return value

    def call_from_thread(
        self, step: ActionRun, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a call of an action in a thread.

        An action on Flink's task thread moves to another thread first.
        """
        if threading.get_ident() == self._loop_thread:
            raise ContextMisuseError(
                f"action {step.action.name!r} is async def and makes a durable call that blocks",
                expected="a def action",
                found="an async def action",
                fix="write await ctx.durable_execute_async(...)",
            )
        # Raises on Flink's task thread, where nothing may block: the step moves to the pool.
        step.require_slot()
        thread = CallingThread()
        return self.bridge.wait_for(lambda: self.call(step, callable_, args, kwargs, thread), thread.errands)

    def delivery_of(self, step: ActionRun) -> Delivery:
        """Return the object that delivers outcomes to an execution. It is made when it is first needed."""
        if step.delivery is None:
            run = step.run
            path = step.path
            seed = (run.identity, run.key_text, run.sequence_number, path)
            assert run.journal is not None
            records = run.journal.step(path)
            arguments = records, seed, partial(_stuck, step), waits_of, self.bridge
            if run.waits is None:
                step.delivery = Delivery(*arguments)
            else:
                parts = run.waits.parts
                step.delivery = Delivery(*arguments) if parts is None else parts.delivery(path, *arguments)
                step.delivery.at_rest = partial(suspend_at_rest, step, run.waits)
        return step.delivery

    # -- records ----------------------------------------------------------------------

    async def store(
        self,
        append: Callable[[], Coroutine[Any, Any, None]],
        delivery: Delivery | None = None,
        outcomes: Mapping[Number, Outcome] = _NO_OUTCOMES,
        late: bool = False,
    ) -> int:
        """Store records; when that is durable, return the number of outcomes among them.

        If they cannot be stored, the attempt of the job ends.

        If the attempt ends, actions are cancelled. What they do in their clean-up is not recorded.

        Args:
            append: Appends them to the journal.
            delivery: Remembers ``outcomes`` once they are stored, so that retries of the action find them.
            outcomes: The outcomes among the records.
            late: True if a call was made before the end of the attempt, so that its record may follow.

        Raises:
            RecordTooLargeError: A record is larger than the store accepts.
        """
        try:
            # A later record must not be stored if an earlier one may be missing.
            if self.broken or self.bridge.closed:
                await self._refuse(late)
            try:
                await append()
            except RecordTooLargeError:
                raise
            except StoreError as error:
                # First, so that no other call starts an append.
                self.broken = True
                self.fail(error)
            else:
                if delivery is not None and outcomes:
                    delivery.keep(outcomes)
                return len(outcomes)
            # Outside of the handler: a frame that waits inside would keep the error alive as its context.
            await self._wait_for_end()
        except asyncio.CancelledError:
            if delivery is not None:
                # The append may or may not have reached the store. The action's next attempt must know that.
                delivery.unsure.update(outcomes)
            raise

    async def _refuse(self, late: bool) -> None:
        """Return if a record may be stored although the attempt has ended; else wait, or raise."""
        if late and self.bridge.closed and not (self.broken or self.closed):
            return
        await self._wait_for_end()

    async def _wait_for_end(self) -> NoReturn:
        """Block until the cancellation comes, so that the action cannot resume, whatever it catches."""
        if self.bridge.closed:
            raise asyncio.CancelledError
        await self.bridge.loop.create_future()
        raise AssertionError("nothing but a cancellation ends this wait")

    # -- calls in flight --------------------------------------------------------------

    def begin(self, call: AttemptedCall, own_task: asyncio.Task[Any] | None) -> None:
        """Count a call as in flight. Its run waits for it.

        Args:
            call: The call.
            own_task: The action's own task if that makes the call; None if the running task does.
        """
        call.in_own_task = own_task is not None
        call.task = own_task or asyncio.current_task()
        self._in_flight.add(call)
        call.step.run.state.begin_wait(call)

    def end(self, call: AttemptedCall) -> None:
        """Note that a call has ended, recorded or not."""
        self._in_flight.discard(call)
        call.step.run.state.end_wait(call)
        call.task = None
        if call.ended is not None and not call.ended.done():
            call.ended.set_result(None)

    @property
    def busy_keys(self) -> set[str]:
        """Keys whose actions make calls in their own tasks that must not be cancelled yet."""
        return {call.step.run.key_text for call in self._in_flight if call.effective and call.in_own_task}

    async def drain(self) -> None:
        """Let calls in flight finish and be recorded, for a bounded time. After that, none is recorded."""
        # Without a store, results cannot be recorded, so waiting has no use.
        seconds = 0.0 if self.broken else self.grace
        loop = asyncio.get_running_loop()
        awaited = list[asyncio.Future[None]]()
        for call in list(self._in_flight):
            if call.effective:
                call.ended = loop.create_future()
                awaited.append(call.ended)
            elif call.task is not None:
                # It waits for a thread or for a retry, so cancelling it loses no effect.
                call.task.cancel()
        if awaited and seconds > 0:
            _, late = await asyncio.wait(awaited, timeout=seconds)
            if late:
                _log.warning(
                    "%d durable calls did not end within %g s of the end of the attempt: the next one makes "
                    "them again",
                    len(late),
                    seconds,
                )
        # From here on, late results are dropped: the next attempt repeats these calls.
        self.closed = True
        for call in list(self._in_flight):
            # A call in the action's own task is cancelled with that task.
            if call.task is not None and not call.in_own_task:
                call.task.cancel()


def _stuck(step: ActionRun, number: Number, outcome: Outcome) -> None:
    """End an execution whose code can never ask for the recorded outcome that is next."""
    delivery = step.delivery
    assert delivery is not None
    deferred_call = next((pending for pending in delivery.deferred if isinstance(pending, PendingCall)), None)
    recorded = as_shown(outcome)
    requested: CallIdentity | str = "a wait that no outcome ends"
    if deferred_call is not None:
        call = deferred_call.call
        requested = call.identity
        if isinstance(recorded, CallIdentity) and recorded.same(requested):
            requested = f"the same call as call {call.number.nth} of its task {call.number.task}"
    mismatch = delivery.note_mismatch(Mismatch(number, recorded, requested))
    step.calls = delivery
    if deferred_call is not None:
        deferred_call.fail(mismatch_error(step, mismatch))
    else:
        delivery.interrupt()
