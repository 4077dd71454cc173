"""Durable calls of actions, and the records of executions that made them.

Everything runs on the event loop, except :meth:`DurableCalls.call_from_thread`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.durable import DurableCallable, OnMismatch
from flink_agents.api.errors import (
    ContextMisuseError,
    MissingAwaitError,
    RecordTooLargeError,
    StateError,
)
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, Bridge
from flink_agents.runtime.concurrency.threads import WorkerPool
from flink_agents.runtime.durable.attempts import CallingThread, Threads
from flink_agents.runtime.durable.call import DurableCall, PendingCall
from flink_agents.runtime.durable.recording import Recording, journal_of
from flink_agents.runtime.durable.values import (
    Arguments,
    check_result_type,
    idempotency_key,
    mismatch_error,
)
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.delivery import Delivery, current_delivery
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.pending_outcomes import PendingOutcome
from flink_agents.runtime.execution.stacks import waits_of
from flink_agents.runtime.execution.steps import StepExecutor
from flink_agents.runtime.execution.waits.durable_wait import check_waits_awaited
from flink_agents.runtime.execution.waits.suspend import suspend_at_rest
from flink_agents.runtime.journal.calls import (
    CallReplay,
    Mismatch,
    Number,
    Outcome,
    as_shown,
    is_inside,
)
from flink_agents.runtime.journal.records import ActionRecord, CallIdentity
from flink_agents.runtime.serde.raised_texts import awaitable_text

_log = bounded_logger("flink_agents.durable")


class DurableCalls:
    """Makes the durable calls of actions, and records the ends of their executions.

    Args:
        shared: The agent's shared objects.
        bridge: Leads to the event loop, and knows if the task attempt is over.
        pool: Threads for functions that are not ``async def``.
        fail: Ends the attempt of the job because of an error.

    Attributes:
        on_mismatch: The policy if a replay makes another call than was recorded.
        recording: Stores records, and knows which calls are in flight.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        bridge: Bridge,
        pool: WorkerPool,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._shared = shared
        self._codec = shared.codec
        self._observers = shared.telemetry.observers
        self._bridge = bridge
        self._loop_thread = 0
        self._pool = pool
        on_call = shared.journals.on_call if shared.journals is not None else None
        self.recording = Recording(shared, bridge, fail, on_call)
        self.on_mismatch = OnMismatch(shared.config.get(AgentOptions.ON_MISMATCH))
        self._grace = shared.config.get(AgentOptions.SHUTDOWN_GRACE).total_seconds()

    def open(self) -> None:
        """Store the id of the loop's thread. The loop calls this when it starts."""
        self._loop_thread = threading.get_ident()

    async def drain(self) -> None:
        """Let calls in flight finish at the end of the attempt, and record them, for a bounded time."""
        await self.recording.drain(self._grace)

    # -- calls ------------------------------------------------------------------------

    def call(
        self, step: ActionRun, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Make a call of an action on the loop. Its number is assigned here, before anything is awaited."""
        # A `def` action must not get a coroutine that it cannot await.
        if threading.get_ident() != self._loop_thread:
            raise ContextMisuseError(
                f"action {step.action.name!r} makes an asynchronous durable call, but is no async def",
                expected="an async def action",
                found="a def action",
                fix="write ctx.durable_execute(...), or make the action async def",
            )
        return self._call(step, what, args, kwargs, self._pool)

    def call_from_thread(
        self, step: ActionRun, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
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
        step.slot()
        thread = CallingThread()
        return self._bridge.wait_for(lambda: self._call(step, what, args, kwargs, thread), thread.errands)

    def _call(
        self,
        step: ActionRun,
        what: DurableCallable,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        threads: Threads,
    ) -> Coroutine[Any, Any, Any]:
        if self._bridge.closed:
            raise asyncio.CancelledError
        if what.result_type is not None:
            check_result_type(self._codec, what)
        arguments = Arguments(self._codec, what, args, kwargs)
        delivery = step.delivery or self._delivery_of(step)
        step.calls = delivery.calls
        try:
            call = step.calls.make(delivery.task_path(), arguments.identity, arguments.may_be)
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        if what.wants_key or what.reconciler is not None:
            arguments.key = idempotency_key(step, call)
        durable_call = DurableCall(self.recording, step, delivery, what, call, arguments, threads)
        value = delivery.unawaited[call.number] = durable_call.value()
        return value

    # -- executions -------------------------------------------------------------------

    def _delivery_of(self, step: ActionRun) -> Delivery:
        if step.delivery is None:
            run = step.run
            path = step.path
            seed = (run.identity, run.key_text, run.sequence_number, path)
            assert run.journal is not None
            records = run.journal.step(path)
            arguments = CallReplay(records), seed, partial(_stuck, step), waits_of, self._bridge
            if run.waits is None:
                step.delivery = Delivery(*arguments)
            else:
                parts = run.waits.parts
                step.delivery = Delivery(*arguments) if parts is None else parts.delivery(path, *arguments)
                step.delivery.at_rest = partial(suspend_at_rest, step, run.waits)
        return step.delivery

    def enter(self, step: ActionRun) -> None:
        """Make the running task the main task of ``step``. Tasks that it starts belong to it as well."""
        delivery = step.delivery or self._delivery_of(step)
        delivery.main = step.task
        delivery.ready = 0
        current_delivery.set(delivery)

    def check_awaited(self, step: ActionRun) -> None:
        """Check that an execution that succeeded has awaited, or cancelled, its calls and waits.

        Raises:
            MissingAwaitError: It has not.
        """
        delivery = step.delivery
        if delivery is None:
            return
        if step.run.waits is not None:
            check_waits_awaited(step)
        if not delivery.unawaited:
            return
        created_state = inspect.CORO_CREATED  # a coroutine that was cancelled before it started is closed
        called = delivery.unawaited.values()
        forgotten = next(
            (coroutine for coroutine in called if inspect.getcoroutinestate(coroutine) == created_state), None
        )
        if forgotten is None:
            return
        # Calls in flight may finish and be recorded, but no retry may start.
        delivery.failing = True
        raise MissingAwaitError(
            f"action {step.action.name!r} ended without awaiting {awaitable_text(forgotten)}: "
            "it was not made",
            expected="an await, or a task, for each durable call",
            found="a durable call without an await",
            fix="write await ctx.durable_execute_async(...), or await ctx.gather(...) for several; "
            "close() a call that you do not want",
        )

    def finish(self, step: ActionRun) -> Coroutine[Any, Any, None] | None:
        """End an execution; returns a coroutine to await if some of its calls still run."""
        delivery = step.delivery
        if delivery is None or delivery.closed:
            return None
        if delivery.failing and delivery.performing:
            return self._finish_failed(step, delivery)
        delivery.close()
        if delivery.performing or delivery.others or delivery.calls.unsure:
            return self._finish(step, delivery)
        return None

    async def _finish_failed(self, step: ActionRun, delivery: Delivery) -> None:
        """Let calls of an action that raised finish and be recorded, in bounded time: it may be retried."""
        going_on = [
            pending_call.performing
            for pending_call in delivery.performing
            if pending_call.performing is not None
        ]
        going_on = [task for task in going_on if not task.done()]
        if going_on and not self._bridge.closed:
            await asyncio.wait(going_on, timeout=self._grace)
        delivery.close()
        await self._finish(step, delivery)

    async def _finish(self, step: ActionRun, delivery: Delivery) -> None:
        """Stop calls that still run. A result that is being recorded is completed."""
        performing = delivery.performing
        delivery.performing = []
        # First stop all, then wait for all: they end concurrently.
        for pending in performing:
            pending.stop()
        going_on = {
            pending_call.performing: pending_call
            for pending_call in performing
            if pending_call.performing is not None
        }
        await self._end_calls(
            step, {task: pending_call for task, pending_call in going_on.items() if not task.done()}
        )
        other_tasks = [task for task in delivery.others if not task.done()]
        for task in other_tasks:
            task.cancel()
        if other_tasks and not self._bridge.closed:
            await asyncio.wait(other_tasks, timeout=CANCEL_SECONDS)
        if delivery.calls.unsure and not self._bridge.closed:
            # These appends were cancelled, so they may be stored already. Stored twice, they count once.
            unsure = delivery.calls.take_unsure()
            append = journal_of(step).add_outcomes(step.path, unsure)
            await self.recording.stored(append, delivery.calls, unsure)

    async def end_attempt(self, step: ActionRun, delivery: Delivery, path: str, failed: bool) -> None:
        """End the calls that an attempt of a sub-agent's action has left.

        Args:
            step: The action of the job's agent.
            delivery: Delivers outcomes to it.
            path: The path of the sub-agent's action.
            failed: True if it has raised: then calls may finish and be recorded, in bounded time.
        """
        going_on = {
            pending.performing: pending
            for pending in delivery.performing
            if pending.performing is not None
            and not pending.performing.done()
            and is_inside(pending.number.task, path)
        }
        if failed and going_on and not self._bridge.closed:
            await asyncio.wait(going_on, timeout=self._grace)
        for pending in going_on.values():
            pending.stop()
        await self._end_calls(step, {task: attempt for task, attempt in going_on.items() if not task.done()})

    async def _end_calls(self, step: ActionRun, going_on: dict[asyncio.Task[Any], PendingOutcome]) -> None:
        if not going_on or self._bridge.closed:
            return
        _, late = await asyncio.wait(going_on, timeout=CANCEL_SECONDS)
        for task in late:
            if going_on[task].ended:
                # Its result exists and is being recorded.
                await asyncio.wait({task})
            else:
                _log.warning("%s: a durable call still runs although it was cancelled", step.action.where)

    # -- begins and ends of executions ------------------------------------------------

    def begin(self, step: ActionRun) -> None:
        """Prepare an execution with recorded outcomes, so that they are checked at its end."""
        journal = step.run.journal
        if journal is not None and (
            journal.has_waits or (journal.has_records and journal.step(step.path).outcomes)
        ):
            step.calls = self._delivery_of(step).calls

    async def end(self, step: ActionRun) -> None:
        """Record the end of an execution that made durable calls.

        Raises:
            NonDeterminismError: It did not make all calls that were recorded.
            UnserializableValueError: An event that it sent cannot be recorded.
        """
        calls = step.calls
        assert calls is not None
        try:
            # First: an execution that skipped recorded calls must not be recorded as ended.
            calls.check_end()
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        events = self._shared.events.record_sent(step)
        short_term, sensory = step.run.written_since(step.mark)
        record = ActionRecord(short_term, sensory, events, list(map(list, step.side or ())), calls.calls)
        outcomes = calls.unrecorded
        journal = step.run.journal
        assert journal is not None
        append = journal.add_action(step.path, record, outcomes)
        if journal.replayed:
            _note_new_end(step)
        if not outcomes:
            await self.recording.stored(append)
            if (tell := self._observers.recorded) is not None:
                tell(step.run.state, step.action.name, 1)
        else:
            await self._store_end(step, calls, dict(outcomes), append)

    async def end_failed(self, step: ActionRun, side: list[tuple[str, Any]]) -> None:
        """Record the end of an execution that failed, if the run continues without it.

        Args:
            step: The execution.
            side: The side outputs that replace those of the execution: the dead letter, if that is the
                policy.
        """
        calls = step.calls
        if calls is None:
            return
        events: list[list[Any]] = []
        if step.run.waits is not None:
            outputs, final = step.run.waits.final(step)
            events = [self._shared.events.packed(event) for event in outputs]
            side = [*final, *(side_output for side_output in side if side_output[0] == DEAD_LETTER_TAG)]
        record = ActionRecord({}, {}, events, [list(side_output) for side_output in side], calls.calls)
        try:
            outcomes = dict(calls.unrecorded)
            append = journal_of(step).add_action(step.path, record, outcomes)
            _note_new_end(step)
            await self._store_end(step, calls, outcomes, append)
        except (StateError, RecordTooLargeError):
            # The event cannot be recorded. Record the outcomes, so that a replay fails in the same way.
            outcomes = dict(calls.unrecorded)
            if outcomes:
                await self.recording.stored(journal_of(step).add_outcomes(step.path, outcomes))
                calls.keep(outcomes)

    async def _store_end(
        self,
        step: ActionRun,
        calls: CallReplay,
        outcomes: Mapping[Number, Outcome],
        append: Coroutine[Any, Any, None],
    ) -> None:
        await self.recording.stored(append)
        if (tell := self._observers.recorded) is not None:
            tell(step.run.state, step.action.name, 1 + len(outcomes))
        calls.keep(outcomes)

    async def void(self, step: ActionRun) -> None:
        """Make the records of an execution void."""
        self._observers.action_mismatched(step.run.state, step.action.name)
        journal = journal_of(step)
        waits = step.run.waits
        outcomes = dict(journal.step(step.path).outcomes)
        await self.recording.stored(journal.void(step.path))
        if waits is not None:
            waits.give_back(outcomes.values())
            if waits.parts is not None:
                waits.parts.void(step.path)

    def replay(self, step: ActionRun, record: ActionRecord, steps: StepExecutor) -> None:
        """Apply the recorded effects of an execution."""
        letter = next((value for tag, value in record.side if tag == DEAD_LETTER_TAG), None)
        calls = journal_of(step).step(step.path).calls_made()
        self._observers.action_replayed(step.run.state, step.action.name, calls, letter)
        waits = step.run.waits
        if waits is not None and waits.parts is not None:
            waits.parts.replay(step.path)
        step.run.write(MemoryScope.SHORT_TERM, record.short_term)
        step.run.write(MemoryScope.SENSORY, record.sensory)
        for packed in record.events:
            step.emit(self._shared.events.unpacked(*packed), recorded=True)
        if record.side:
            step.side = [(tag, value) for tag, value in record.side]
        steps.succeed(step)


def _note_new_end(step: ActionRun) -> None:
    """Note for the trace that an action of a replayed run ends for the first time, and so does the run."""
    notes = step.run.state.notes
    journal = journal_of(step)
    # The end of one that neither called nor waited may be missing in the store, and is repeated.
    if notes is not None and journal.replayed and journal.step(step.path).outcomes:
        notes.partial = True


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
            requested = f"the same call as call {call.index} of its task {call.task}"
    mismatch = delivery.calls.note_mismatch(Mismatch(number, recorded, requested))
    step.calls = delivery.calls
    if deferred_call is not None:
        deferred_call.fail(mismatch_error(step, mismatch))
    else:
        delivery.interrupt()
