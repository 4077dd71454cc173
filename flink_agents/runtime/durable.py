"""Durable calls and the ends of actions that made them: finds their records, or makes them.

All of it runs on the agent loop, but :meth:`DurableCalls.call_from_thread`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, OnMismatch
from flink_agents.api.errors import (
    ContextMisuseError,
    DurableResultError,
    PlanChangedError,
    RecordTooLargeError,
    StoreError,
)
from flink_agents.api.events import Event, OutputEvent
from flink_agents.api.memory import MemoryScope
from flink_agents.runtime.call_attempts import CALL_FAILURES, CallAttempts, CallingThread, Threads
from flink_agents.runtime.call_values import (
    decoded,
    encoded,
    idempotency_key,
    identity,
    mismatch_error,
    result_error,
)
from flink_agents.runtime.context import Invocation
from flink_agents.runtime.journal import failures
from flink_agents.runtime.journal.calls import Call, Mismatch, StepCalls
from flink_agents.runtime.journal.records import RECORD_FRAME, ActionRecord, CallRecord
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.shared import RunEnvironment
from flink_agents.runtime.steps import StepExecutor
from flink_agents.runtime.timeouts import WorkerPool

CANCELLED: dict[str, Any] = {"type": "", "message": "cancelled", "args": None}
"""Stands for the error of a call that the action itself cancelled."""


class DurableCalls:
    """See the module.

    Args:
        shared: What all runs share.
        loop: The agent loop.
        pool: Threads for functions that are not ``async def``.
        fail: Ends the attempt of the job because of an error.
        closed: Whether it has ended.
        on_mismatch: What happens where a replay asks for another call than was recorded.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        loop: asyncio.AbstractEventLoop,
        pool: WorkerPool,
        fail: Callable[[BaseException], None],
        closed: Callable[[], bool],
        on_mismatch: OnMismatch,
    ) -> None:
        self._shared = shared
        self._codec = shared.codec
        self._metrics = shared.run_metrics
        self._loop = loop
        self._loop_thread = 0
        self._pool = pool
        self._fail = fail
        self._closed = closed
        self._broken = False
        self.on_mismatch = on_mismatch

    def open(self) -> None:
        """Learn which thread is the loop's; called by it."""
        self._loop_thread = threading.get_ident()

    # -- calls ------------------------------------------------------------------------

    def call(
        self, step: Invocation, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """See :class:`Durable`. The call's number is given here, before anything is awaited."""
        if threading.get_ident() != self._loop_thread:
            raise ContextMisuseError(
                f"action {step.action.name!r} makes an asynchronous durable call, but is no async def",
                expected="an async def action",
                found="a def action",
                fix="write ctx.durable_execute(...), or make the action async def",
            )
        return self._call(step, what, args, kwargs, self._pool)

    def call_from_thread(
        self, step: Invocation, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """See :class:`Durable`; from Flink's thread, the action moves to another one first."""
        if threading.get_ident() == self._loop_thread:
            raise ContextMisuseError(
                f"action {step.action.name!r} is async def and makes a durable call that blocks",
                expected="a def action",
                found="an async def action",
                fix="write await ctx.durable_execute_async(...)",
            )
        step.place()
        thread = CallingThread()
        return thread.wait_for(self._loop, lambda: self._call(step, what, args, kwargs, thread), self._closed)

    def _call(
        self,
        step: Invocation,
        what: DurableCallable,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        threads: Threads,
    ) -> Awaitable[Any]:
        if step.calls is None:
            step.calls = StepCalls(_journal(step).step(step.path))
        try:
            call = step.calls.make(identity(self._codec, what, args, kwargs))
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        if what.wants_key and IDEMPOTENCY_KEY not in kwargs:
            kwargs = {**kwargs, IDEMPOTENCY_KEY: idempotency_key(step, call)}
        return self._outcome(step, step.calls, what, call, partial(what.function, *args, **kwargs), threads)

    async def _outcome(
        self,
        step: Invocation,
        calls: StepCalls,
        what: DurableCallable,
        call: Call,
        function: partial[Any],
        threads: Threads,
    ) -> Any:
        journals = self._shared.journals
        if journals is not None and journals.on_call is not None:
            journals.on_call(step, call)
        if call.recorded is not None:
            self._metrics.count("action_calls_replayed", step.action.name)
            return await self._replayed(calls, what, call.recorded)
        if step.run.journal is not None and step.run.journal.replayed:
            self._metrics.count("action_calls_reexecuted", step.action.name)
        if what.reconciler is not None and not call.begun:
            failed = calls.failed_among(call.after)
            await self._stored(_journal(step).add_intent(step.path, call, failed))
            calls.keep(failed)
        attempts = CallAttempts(step, what, call, threads, self._metrics)
        try:
            value = await attempts.value_of(function)
        except asyncio.CancelledError:
            calls.failed[call.index] = _record(call, None, CANCELLED, attempts.number, calls.end())
            raise
        except CALL_FAILURES as error:
            told = self._told(call, error)
            calls.failed[call.index] = _record(call, None, told, attempts.number, calls.end())
            raise
        return await self._recorded(step, calls, what, call, value, attempts.number)

    async def _recorded(
        self, step: Invocation, calls: StepCalls, what: DurableCallable, call: Call, value: Any, attempts: int
    ) -> Any:
        """Record what a call returned; from here on it is not made again."""
        if step.over:
            # Its time ended before the call: another attempt has taken its place, and its number.
            raise asyncio.CancelledError
        journal, failed, order = _journal(step), calls.failed_among(call.after), calls.end()
        error: DurableResultError | None = None
        try:
            try:
                record = _record(call, encoded(self._codec, what, value), None, attempts, order)
                await self._stored(journal.add_call(step.path, call.index, record, failed))
            except (DurableResultError, RecordTooLargeError) as refused:
                # The call took effect and must not be repeated, so that this is how it ended.
                error = result_error(step, call, refused)
                record = _record(call, None, self._told(call, error), attempts, order)
                await self._stored(journal.add_call(step.path, call.index, record, failed))
        except asyncio.CancelledError:
            # It may be recorded. What the action saw is recorded behind that, if the action goes on.
            calls.failed[call.index] = _record(call, None, CANCELLED, attempts, order)
            raise
        calls.keep({**failed, call.index: record})
        if error is not None:
            raise error
        self._metrics.count("action_calls_recorded", step.action.name)
        return decoded(self._codec, what, record)

    def _told(self, call: Call, error: BaseException) -> dict[str, Any]:
        """What is recorded of a failure, as large as fits beside the rest of its record."""
        journals = self._shared.journals
        assert journals is not None
        taken = len(call.identity.pack(self._codec)) + RECORD_FRAME
        return failures.describe(self._codec, error, failures.room(journals.store.max_record_bytes, taken))

    async def _replayed(self, calls: StepCalls, what: DurableCallable, record: CallRecord) -> Any:
        if record.error == CANCELLED:
            # Whoever cancelled it does so again.
            calls.skip(record)
            await self._loop.create_future()
        await calls.turn(record)
        if record.error is None:
            return decoded(self._codec, what, record)
        raise failures.rebuild(self._codec, record.error)

    async def _stored(self, append: Coroutine[Any, Any, None]) -> None:
        """Wait until records are stored. Where they cannot be, the attempt of the job ends.

        Nor is anything stored of what an action does when it is cancelled by the end of the attempt.
        """
        if self._closed():
            append.close()
            raise asyncio.CancelledError
        if self._broken:
            append.close()
        else:
            try:
                return await append
            except RecordTooLargeError:
                raise
            except StoreError as error:
                self._broken = True
                self._fail(error)
        # Nothing may follow, whatever the action catches or does besides: it waits for the end.
        await self._loop.create_future()

    # -- begins and ends of actions --------------------------------------------------------------

    def begin(self, step: Invocation) -> None:
        """See that an execution with recorded calls is checked at its end, even if it makes none."""
        journal = step.run.journal
        if journal is not None and journal.begun and step.calls is None:
            records = journal.step(step.path)
            if records.calls:
                step.calls = StepCalls(records)

    async def end(self, step: Invocation) -> None:
        """Record the end of an execution that made durable calls.

        Raises:
            DurableCallMismatchError: It did not make all that were recorded.
            UnserializableValueError: An event that it sent cannot be recorded.
        """
        calls = step.calls
        assert calls is not None
        try:
            calls.check_end()
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        written = step.run.written_since(step.mark)
        record = ActionRecord(
            written[MemoryScope.SHORT_TERM],
            written[MemoryScope.SENSORY],
            [self._packed(event) for event in step.sent],
            [list(each) for each in step.side or ()],
            calls.made,
        )
        failed = calls.failed_among()
        await self._stored(_journal(step).add_action(step.path, record, failed))
        calls.keep(failed)

    async def end_failed(self, step: Invocation) -> None:
        """Record the failures of an execution that the run goes on without."""
        if step.calls is not None:
            failed = step.calls.failed_among()
            await self._stored(_journal(step).add_failed(step.path, failed))
            step.calls.keep(failed)

    async def void(self, step: Invocation) -> None:
        """Make void what an execution recorded."""
        self._metrics.count("action_mismatches", step.action.name)
        await self._stored(_journal(step).void(step.path))

    def replay(self, step: Invocation, record: ActionRecord, steps: StepExecutor) -> None:
        """Take the end of an execution from its record."""
        self._metrics.count("action_replays", step.action.name)
        step.run.write(MemoryScope.SHORT_TERM, record.short_term)
        step.run.write(MemoryScope.SENSORY, record.sensory)
        for kind, content in record.events:
            step.emit(self._unpacked(kind, content))
        if record.side:
            step.side = [(tag, value) for tag, value in record.side]
        steps.succeed(step)

    def _packed(self, event: Event) -> list[Any]:
        """An event as its type and content; as a whole where its type does not say its class."""
        if type(event) is OutputEvent:
            return [OutputEvent.EVENT_TYPE, event.output]
        if self._shared.agent.event_types.get(event.event_type) is type(event):
            return [event.event_type, {name: getattr(event, name) for name in type(event).model_fields}]
        return [None, event]

    def _unpacked(self, kind: str | None, content: Any) -> Event:
        if kind is None:
            return content
        if kind == OutputEvent.EVENT_TYPE:
            return OutputEvent(output=content)
        known = self._shared.agent.event_types.get(kind)
        if known is None:
            raise _event_lost(kind, "is gone")
        for name, field in known.model_fields.items():
            if field.is_required() and name not in content:
                raise _event_lost(kind, f"has a new field {name!r} without a default")
        return known.model_construct(**content)


def _event_lost(kind: str, change: str) -> PlanChangedError:
    return PlanChangedError(
        f"an unfinished run has a recorded event {kind!r}, whose class {change}",
        expected="the class with the fields that it had, and others that have defaults",
        fix="finish these runs with the former code, or give the class back what it had",
    )


def _journal(step: Invocation) -> RunJournal:
    assert step.run.journal is not None
    return step.run.journal


def _record(
    call: Call, value: bytes | None, error: dict[str, Any] | None, attempts: int, order: int
) -> CallRecord:
    return CallRecord(call.identity, value, error, attempts, int(time.time() * 1000), order)
