"""Durable calls of actions, and the records of executions that make them.

Everything runs on the event loop, except :meth:`DurableCalls.call_from_thread`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.durable import DurableCallable, OnMismatch
from flink_agents.api.errors import ContextMisuseError, MissingAwaitError, RecordTooLargeError, StateError
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS
from flink_agents.runtime.concurrency.threads import WorkerPool
from flink_agents.runtime.execution.action_run import ActionRun, current_step, journal_of
from flink_agents.runtime.execution.calls.call import PendingCall
from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery
from flink_agents.runtime.execution.calls.durable_code import CallingThread, Threads
from flink_agents.runtime.execution.calls.in_flight import CallsInFlight
from flink_agents.runtime.execution.calls.mismatches import mismatch_error
from flink_agents.runtime.execution.calls.pending import PendingOutcome
from flink_agents.runtime.execution.calls.results import check_result_type
from flink_agents.runtime.execution.calls.stages import call_type
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.stacks import waits_of
from flink_agents.runtime.execution.waits.durable_wait import check_waits_awaited, suspend_at_rest
from flink_agents.runtime.journal.calls import Mismatch, Number, Outcome, as_shown, is_inside
from flink_agents.runtime.journal.records import ActionRecord, CallIdentity
from flink_agents.runtime.serde.raised_texts import awaitable_text

_log = bounded_logger("flink_agents.durable")


class DurableCalls:
    """Makes the durable calls of executions, and records the ends of these.

    Args:
        shared: The agent's shared objects.
        in_flight: Stores records, and knows which calls are in flight.
        pool: Threads for functions that are not ``async def``.

    Attributes:
        in_flight: Stores records, and knows which calls are in flight.
        on_mismatch: The policy if a replay makes another call than was recorded.
    """

    def __init__(self, shared: RunEnvironment, in_flight: CallsInFlight, pool: WorkerPool) -> None:
        self._shared = shared
        self.in_flight = in_flight
        self._bridge = in_flight.bridge
        self._observers = shared.telemetry.observers
        self._pool = pool
        self._loop_thread = 0
        self.on_mismatch = OnMismatch(shared.config.get(AgentOptions.ON_MISMATCH))

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
        if self._bridge.closed:
            raise asyncio.CancelledError
        if callable_.result_type is not None:
            check_result_type(self._shared.codec, callable_)
        delivery = step.delivery or self.delivery_of(step)
        step.calls = delivery
        try:
            make = call_type(callable_.features)
            call = make(self.in_flight, step, delivery, callable_, args, kwargs, threads or self._pool)
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
        return self._bridge.wait_for(lambda: self.call(step, callable_, args, kwargs, thread), thread.errands)

    def delivery_of(self, step: ActionRun) -> Delivery:
        """Return the object that delivers outcomes to an execution. It is made when it is first needed."""
        if step.delivery is None:
            run = step.run
            path = step.path
            seed = (run.identity, run.key_text, run.sequence_number, path)
            assert run.journal is not None
            records = run.journal.step(path)
            step.delivery = Delivery(path, records, seed, partial(_stuck, step), waits_of, self._bridge)
            if run.waits is not None:
                step.delivery.at_rest = partial(suspend_at_rest, step, run.waits)
                if run.waits.parts is not None:
                    # Before each outcome, the execution sees the memory of the part that it belongs to.
                    step.delivery.show_part = partial(run.waits.parts.show, path)
        return step.delivery

    # -- ends of calls ----------------------------------------------------------------

    def enter(self, step: ActionRun) -> None:
        """Make the running task the main task of ``step``; run it in the context of its code.

        Tasks that the code starts inherit the context, and belong to the execution as well.
        """
        current_step.set(step)
        delivery = step.delivery or self.delivery_of(step)
        delivery.main = step.task
        delivery.ready = 0
        current_delivery.set(delivery)

    async def end_succeeded(self, step: ActionRun) -> None:
        """End an execution that succeeded, and record its end if it made durable calls.

        Raises:
            MissingAwaitError: It has not awaited all of its calls and waits.
            NonDeterminismError: It did not make all calls that were recorded.
            UnserializableValueError: An event that it sent cannot be recorded.
        """
        assert step.delivery is not None
        if step.delivery.unawaited or step.run.waits is not None:
            # First: a forgotten call must fail the action.
            self._check_awaited(step, step.delivery)
        if (ending := self.finish(step)) is not None:
            await ending
        delivery = step.calls
        if delivery is None or step.suspended is not None:
            return
        try:
            # An execution that skipped recorded calls must not be recorded as ended.
            delivery.check_end()
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        events = self._shared.events.record_sent(step)
        short_term, sensory = step.run.written_since(step.mark)
        side = list(map(list, step.side or ()))
        # An end that is not in the journal is none: after a crash, the action ends again.
        record = ActionRecord(short_term, sensory, events, side, delivery.call_count)
        outcomes = await self._record_end(step, record)
        if (tell := self._observers.recorded) is not None:
            tell(step.run.state, step.action.name, 1 + len(outcomes))

    def _check_awaited(self, step: ActionRun, delivery: Delivery) -> None:
        """Check that an execution that succeeded has awaited, or cancelled, its calls and waits.

        Raises:
            MissingAwaitError: It has not.
        """
        check_waits_awaited(step)
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
        if delivery.performing or delivery.others or delivery.unsure:
            return self._finish(step, delivery)
        return None

    async def _finish_failed(self, step: ActionRun, delivery: Delivery) -> None:
        """Let calls of an action that raised finish and be recorded, in bounded time: it may be retried."""
        await self._let_finish(delivery, "")
        delivery.close()
        await self._finish(step, delivery)

    async def _finish(self, step: ActionRun, delivery: Delivery) -> None:
        """Stop calls that still run. A result that is being recorded is completed."""
        running = _running_calls(delivery, "")
        delivery.performing = ()
        await self._stop_calls(step, running)
        other_tasks = [task for task in delivery.others if not task.done()]
        for task in other_tasks:
            task.cancel()
        if other_tasks and not self._bridge.closed:
            await asyncio.wait(other_tasks, timeout=CANCEL_SECONDS)
        if delivery.unsure and not self._bridge.closed:
            # These appends were cancelled, so they may be stored already. Stored twice, they count once.
            unsure = delivery.take_unsure()
            append = partial(journal_of(step).add_outcomes, step.path, unsure)
            await self.in_flight.store(append, delivery, unsure)

    async def end_attempt(self, step: ActionRun, delivery: Delivery, path: str, failed: bool) -> None:
        """End the calls that an attempt of a sub-agent's action has left.

        Args:
            step: The action of the job's agent.
            delivery: Delivers outcomes to that action, in order.
            path: The path of the sub-agent's action.
            failed: True if it has raised: then calls may finish and be recorded, in bounded time.
        """
        if failed:
            await self._let_finish(delivery, path)
        await self._stop_calls(step, _running_calls(delivery, path))

    async def _let_finish(self, delivery: Delivery, path: str) -> None:
        """Wait until the calls of the code at ``path`` have ended, for at most the grace period."""
        running = _running_calls(delivery, path)
        if running and not self._bridge.closed:
            await asyncio.wait(running, timeout=self.in_flight.grace)

    async def _stop_calls(self, step: ActionRun, running: dict[asyncio.Task[Any], PendingOutcome]) -> None:
        """Cancel calls, and wait for their end. A result that is being recorded is completed."""
        # First stop all, then wait for all: they end concurrently.
        for pending in running.values():
            pending.stop()
        if not running or self._bridge.closed:
            return
        _, late = await asyncio.wait(running, timeout=CANCEL_SECONDS)
        for task in late:
            if running[task].ended:
                # Its result exists and is being recorded.
                await asyncio.wait({task})
            else:
                _log.warning("%s: a durable call still runs although it was cancelled", step.action.where)

    # -- begins and ends of executions ------------------------------------------------

    def begin(self, step: ActionRun) -> None:
        """Prepare an execution with recorded outcomes, so that they are checked at its end."""
        waits = step.run.waits
        if waits is not None and waits.parts is not None:
            waits.parts.begin(step.path)
        journal = step.run.journal
        if journal is not None and (
            journal.has_waits or (journal.has_records and journal.step(step.path).outcomes)
        ):
            step.calls = self.delivery_of(step)

    def _record_end(
        self, step: ActionRun, record: ActionRecord
    ) -> Coroutine[Any, Any, Mapping[Number, Outcome]]:
        """Record the end of an execution, and the outcomes that are not stored yet.

        Returns:
            A coroutine that ends when they are durable, and returns the outcomes.
        """
        delivery = step.calls
        assert delivery is not None
        outcomes = dict(delivery.unrecorded) if delivery.unrecorded else {}
        journal = step.run.journal
        assert journal is not None
        notes = step.run.state.notes
        # An end of an execution that neither called nor waited may be missing in the store, and is repeated.
        if notes is not None and journal.replayed and journal.step(step.path).outcomes:
            # The trace has to know that the action, and so its run, ends for the first time.
            notes.partial = True
        append = partial(journal.add_action, delivery.path, record, outcomes)
        return self.in_flight.store(append, delivery, outcomes)

    async def end_failed(self, step: ActionRun, side: list[tuple[str, Any]]) -> None:
        """Record the end of an execution that failed, if the run continues without it.

        Args:
            step: The execution.
            side: The side outputs that replace those of the execution: the dead letter, if that is the
                policy.
        """
        delivery = step.calls
        if delivery is None:
            return
        events: list[list[Any]] = []
        if step.run.waits is not None:
            outputs, final = step.run.waits.final(step)
            events = [self._shared.events.packed(event) for event in outputs]
            side = [*final, *(side_output for side_output in side if side_output[0] == DEAD_LETTER_TAG)]
        record = ActionRecord(
            {}, {}, events, [list(side_output) for side_output in side], delivery.call_count
        )
        try:
            # Nothing has encoded these values before.
            self._shared.codec.encode([record.events, record.side])
            stored_outcomes = await self._record_end(step, record)
            if (tell := self._observers.recorded) is not None:
                tell(step.run.state, step.action.name, 1 + len(stored_outcomes))
        except (StateError, RecordTooLargeError):
            # The event cannot be recorded. Record the outcomes, so that a replay fails in the same way.
            outcomes = dict(delivery.unrecorded)
            if outcomes:
                append = partial(journal_of(step).add_outcomes, step.path, outcomes)
                await self.in_flight.store(append, delivery, outcomes)

    async def void(self, step: ActionRun) -> None:
        """Record that the records of an execution are void, because its code makes other calls.

        Other waits may take the signals that the execution took.
        """
        self._observers.action_mismatched(step.run.state, step.action.name)
        journal = journal_of(step)
        waits = step.run.waits
        outcomes = dict(journal.step(step.path).outcomes)
        await self.in_flight.store(partial(journal.void, step.path))
        if waits is not None:
            waits.give_back(outcomes.values())
            if waits.parts is not None:
                waits.parts.void(step.path)

    def replay(self, step: ActionRun, record: ActionRecord) -> None:
        """Apply the recorded effects of an execution: writes to memory, events and side outputs."""
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


def _running_calls(delivery: Delivery, path: str) -> dict[asyncio.Task[Any], PendingOutcome]:
    """Return the calls that still run, by their tasks.

    Args:
        delivery: The delivery of the action.
        path: The path of a sub-agent's action, whose calls these are; empty for all calls.
    """
    return {
        pending.performing: pending
        for pending in delivery.performing
        if pending.performing is not None
        and not pending.performing.done()
        and is_inside(pending.number.task, path)
    }


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
