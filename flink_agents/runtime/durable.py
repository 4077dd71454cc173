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
    StateError,
    StoreError,
)
from flink_agents.api.events import Event, OutputEvent
from flink_agents.api.logs import bounded_logger
from flink_agents.api.memory import MemoryScope
from flink_agents.runtime.awaiting import waits_of
from flink_agents.runtime.call_attempts import CallAttempts, CallingThread, Threads
from flink_agents.runtime.call_values import (
    decoded,
    encoded,
    failure_kept,
    idempotency_key,
    identity,
    mismatch_error,
    result_error,
)
from flink_agents.runtime.context import Invocation
from flink_agents.runtime.delivery import Delivery, OwnFuture, Pending, current_delivery, outside
from flink_agents.runtime.journal import failures
from flink_agents.runtime.journal.calls import (
    Call,
    Mismatch,
    Number,
    Outcome,
    StepCalls,
    is_cancelled,
    told,
)
from flink_agents.runtime.journal.records import ActionRecord, CallRecord
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.shared import RunEnvironment
from flink_agents.runtime.steps import StepExecutor
from flink_agents.runtime.timeouts import WorkerPool

CLOSE_SECONDS = 5.0
"""How long the end of an execution waits for calls that were cancelled."""

_log = bounded_logger("flink_agents.durable")


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
        delivery = self._delivery_of(step)
        step.calls = delivery.calls
        try:
            call = step.calls.make(delivery.task_path(), identity(self._codec, what, args, kwargs))
        except Mismatch as mismatch:
            raise mismatch_error(step, mismatch) from None
        if what.wants_key and IDEMPOTENCY_KEY not in kwargs:
            kwargs = {**kwargs, IDEMPOTENCY_KEY: idempotency_key(step, call)}
        return self._outcome(step, delivery, what, call, partial(what.function, *args, **kwargs), threads)

    async def _outcome(
        self,
        step: Invocation,
        delivery: Delivery,
        what: DurableCallable,
        call: Call,
        function: partial[Any],
        threads: Threads,
    ) -> Any:
        """Wait for the outcome of a call."""
        journals = self._shared.journals
        if journals is not None and journals.on_call is not None:
            journals.on_call(step, call)
        if call.recorded is not None:
            self._metrics.count("action_calls_replayed", step.action.name)
        elif step.run.journal is not None and step.run.journal.replayed:
            self._metrics.count("action_calls_reexecuted", step.action.name)
        if not (delivery.counted or delivery.main is None):
            return await self._alone(step, delivery, what, call, function, threads)
        return await self._beside_others(step, delivery, what, call, function, threads)

    async def _alone(
        self,
        step: Invocation,
        delivery: Delivery,
        what: DurableCallable,
        call: Call,
        function: partial[Any],
        threads: Threads,
    ) -> Any:
        """Make a call of an action that does nothing else meanwhile: in its own task, and without a queue."""
        if delivery.replaying:
            outcome = delivery.take(call.number)
            if outcome is None:
                return await self._beside_others(step, delivery, what, call, function, threads)
            assert isinstance(outcome, CallRecord)
            return self._value(what, outcome, None)
        calls = delivery.calls
        attempts = CallAttempts(step, what, call, threads, self._metrics)
        # What the function does belongs to nobody's order.
        current_delivery.set(None)
        try:
            if what.wants_key or what.reconciler is not None or step.run.identified:
                await self._announce(step, calls, what, call)
            value = await attempts.value_of(function)
            place = attempts.number, calls.end(), delivery.elapsed()
            outcome = await self._recorded(step, calls, what, call, value, place)
            raised = None
        except BaseException as error:
            if _is_cancelled(error):
                raise
            told = failure_kept(self._codec, _journal(step).limit, call, error)
            outcome = _record(call, None, told, attempts.number, calls.end(), delivery.elapsed())
            calls.seen(call.number, outcome)
            raised = error
        finally:
            current_delivery.set(delivery)
        delivery.now = max(delivery.now, outcome.elapsed / 1e6)
        return self._value(what, outcome, raised)

    async def _beside_others(
        self,
        step: Invocation,
        delivery: Delivery,
        what: DurableCallable,
        call: Call,
        function: partial[Any],
        threads: Threads,
    ) -> Any:
        """Wait for the outcome of a call until it is delivered."""
        # The watcher finds here what leads to the outcome, by the name of the variable.
        pending = PendingCall(call, lambda made: self._perform(step, delivery, what, made, function, threads))
        if call.recorded is None or not is_cancelled(call.recorded):
            delivery.expect(pending)
        try:
            outcome = await pending.future
        except asyncio.CancelledError:
            delivery.leave(pending)
            pending.stop()
            raise
        raised, pending.raised = pending.raised, None
        return self._value(what, outcome, raised)

    def _value(self, what: DurableCallable, outcome: CallRecord, raised: BaseException | None) -> Any:
        """What a call returned, or raises, as it was recorded.

        Args:
            what: What was called.
            outcome: How it ended.
            raised: What it raised just now: its trace leads to the author's line.
        """
        if outcome.error is None:
            return decoded(self._codec, what, outcome)
        error = failures.rebuild(self._codec, outcome.error)
        if raised is not None:
            if type(error) is not type(raised):
                error.__cause__ = raised
            error = error.with_traceback(raised.__traceback__)
        raise error

    async def _perform(
        self,
        step: Invocation,
        delivery: Delivery,
        what: DurableCallable,
        pending: PendingCall,
        function: partial[Any],
        threads: Threads,
    ) -> None:
        """Make a call, record how it ended, and let that be delivered."""
        call, calls = pending.call, delivery.calls
        delivery.performing.append(pending)
        attempts = CallAttempts(step, what, call, threads, self._metrics)
        try:
            if what.wants_key or what.reconciler is not None or step.run.identified:
                await self._announce(step, calls, what, call)
            value = await attempts.value_of(function)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (pending.stopped or self._closed()):
                raise
            if delivery.over:
                return
            told = failure_kept(self._codec, _journal(step).limit, call, error)
            pending.ended, pending.raised = True, error
            delivery.end(pending, _record(call, None, told, attempts.number, calls.end(), delivery.elapsed()))
            return
        if delivery.over:
            # Its time ended before the call: another attempt has taken its place, and its number.
            return
        pending.ended = True
        place = attempts.number, calls.end(), delivery.elapsed()
        ended = delivery.end(pending)
        try:
            record = await self._recorded(step, calls, what, call, value, place)
        except Exception as error:
            # Nobody may wait for ever for what should have been recorded.
            self._fail(error)
            raise
        delivery.settle(ended, record)

    async def _announce(self, step: Invocation, calls: StepCalls, what: DurableCallable, call: Call) -> None:
        """Record what must be known before a call can take effect.

        What the outside may learn of the run's number (a key, an id, a UUID) belongs to this input and
        to this history from then on, whatever comes first after a crash.
        """
        journal = _journal(step)
        outcomes = calls.still_unrecorded(call.after)
        if what.reconciler is not None and not call.begun:
            await self._stored(journal.add_intent(step.path, call, outcomes))
        elif outcomes:
            await self._stored(journal.add_outcomes(step.path, outcomes))
        elif not journal.bound:
            await self._stored(journal.bind())
        calls.keep(outcomes)

    async def _recorded(
        self,
        step: Invocation,
        calls: StepCalls,
        what: DurableCallable,
        call: Call,
        value: Any,
        place: tuple[int, int, int],
    ) -> CallRecord:
        """Record what a call returned; from here on it is not made again."""
        outcomes = calls.still_unrecorded(call.after) if call.after else {}
        try:
            record = _record(call, encoded(self._codec, what, value), None, *place)
            await self._kept(step, calls, {**outcomes, call.number: record})
        except (DurableResultError, RecordTooLargeError) as refused:
            # The call took effect and must not be repeated, so that this is how it ended.
            told = failure_kept(self._codec, _journal(step).limit, call, result_error(step, call, refused))
            record = _record(call, None, told, *place)
            await self._kept(step, calls, {**outcomes, call.number: record})
        if record.error is None:
            self._metrics.count("action_calls_recorded", step.action.name)
        return record

    async def _kept(self, step: Invocation, calls: StepCalls, outcomes: dict[Number, Outcome]) -> None:
        """Record outcomes, and let further attempts of the execution find them."""
        try:
            await self._stored(_journal(step).add_outcomes(step.path, outcomes))
        except asyncio.CancelledError:
            # They may be stored or not. The next attempt must know.
            calls.unsure.update(outcomes)
            raise
        calls.keep(outcomes)

    # -- executions -------------------------------------------------------------------

    def _delivery_of(self, step: Invocation) -> Delivery:
        if step.delivery is None:
            run = step.run
            seed = (run.journal_id, run.key_text, run.sequence_number, step.path)
            records = _journal(step).step(step.path)
            step.delivery = Delivery(StepCalls(records), seed, partial(_stuck, step), waits_of)
        return step.delivery

    def enter(self, step: Invocation) -> None:
        """Let what runs in this task from here on belong to an execution."""
        delivery = self._delivery_of(step)
        delivery.main, delivery.ready = asyncio.current_task(), 0
        current_delivery.set(delivery)

    def finish(self, step: Invocation) -> Coroutine[Any, Any, None] | None:
        """End an execution; returns what is to be awaited where calls of it go on behind its end."""
        delivery = step.delivery
        if delivery is None or delivery.over:
            return None
        delivery.close()
        if delivery.performing or delivery.others or delivery.calls.unsure:
            return self._finish(step, delivery)
        return None

    async def _finish(self, step: Invocation, delivery: Delivery) -> None:
        """End calls that go on. What is being recorded comes to its end."""
        if delivery.calls.unsure and not self._closed():
            # Stored twice, they count once.
            await self._kept(step, delivery.calls, delivery.calls.take_unsure())
        performing, delivery.performing = delivery.performing, []
        for pending in performing:
            pending.stop()
        going_on = {one.performing: one for one in performing if one.performing is not None}
        await self._end_calls(step, {task: one for task, one in going_on.items() if not task.done()})
        others = [task for task in delivery.others if not task.done()]
        for task in others:
            task.cancel()
        if others and not self._closed():
            await asyncio.wait(others, timeout=CLOSE_SECONDS)

    async def _end_calls(self, step: Invocation, going_on: dict[asyncio.Task[Any], Pending]) -> None:
        if not going_on or self._closed():
            return
        _, late = await asyncio.wait(going_on, timeout=CLOSE_SECONDS)
        for task in late:
            if going_on[task].ended:
                # It is being recorded.
                await asyncio.wait({task})
            else:
                _log.warning("%s: a durable call goes on though it was cancelled", step.action.where)

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

    # -- begins and ends of executions ------------------------------------------------

    def begin(self, step: Invocation) -> None:
        """See that an execution with recorded outcomes is checked at its end, even if it makes no call."""
        journal = step.run.journal
        if journal is not None and journal.begun and journal.step(step.path).outcomes:
            step.calls = self._delivery_of(step).calls

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
        await self._add_end(step, calls, record)

    async def end_failed(self, step: Invocation, side: list[tuple[str, Any]]) -> None:
        """Record the end of an execution that failed, and that the run goes on without.

        Args:
            step: The execution.
            side: What the run put out in its place: the dead letter, if that is the policy.
        """
        calls = step.calls
        if calls is None:
            return
        record = ActionRecord({}, {}, [], [list(each) for each in side], calls.made)
        try:
            await self._add_end(step, calls, record)
        except (StateError, RecordTooLargeError):
            # The event cannot be recorded: a replay fails in the same way, since its outcomes are.
            outcomes = dict(calls.unrecorded)
            await self._stored(_journal(step).add_outcomes(step.path, outcomes))
            calls.keep(outcomes)

    async def _add_end(self, step: Invocation, calls: StepCalls, record: ActionRecord) -> None:
        outcomes = dict(calls.unrecorded)
        await self._stored(_journal(step).add_action(step.path, record, outcomes))
        calls.keep(outcomes)

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


class PendingCall(Pending):
    """A durable call that an action waits for.

    Args:
        call: The call.
        make: Makes it.

    Attributes:
        call: See above.
        future: Ends when the outcome is delivered.
        raised: What it raised, as long as nobody has taken it.
    """

    __slots__ = ("_context", "_make", "call", "future", "raised")

    def __init__(self, call: Call, make: Callable[[PendingCall], Coroutine[Any, Any, None]]) -> None:
        super().__init__(call.number)
        self.call = call
        self._make = make
        self._context = outside()
        self.future: asyncio.Future[CallRecord] = OwnFuture(loop=asyncio.get_running_loop())
        self.raised: BaseException | None = None

    def begin(self) -> None:
        """Make the call, outside of the action."""
        self.perform(self._make(self), self._context)

    def deliver(self, outcome: Outcome) -> None:
        """End the wait for the call."""
        assert isinstance(outcome, CallRecord)
        if not self.future.done():
            self.future.set_result(outcome)

    def drop(self) -> None:
        """Let nobody wait any more."""
        self.future.cancel()

    def refuse(self, error: BaseException) -> None:
        """Raise ``error`` where the action waits."""
        self.gone = True
        if not self.future.done():
            self.future.set_exception(error)


def _is_cancelled(error: BaseException) -> bool:
    """Whether ``error`` cancels the task that runs, and was not raised by what was called."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _stuck(step: Invocation, number: Number, outcome: Outcome) -> None:
    """End an execution that can never ask for what was recorded."""
    delivery = step.delivery
    assert delivery is not None
    asked = next((one for one in delivery.deferred if isinstance(one, PendingCall)), None)
    identity = asked.call.identity if asked is not None else "a wait that no outcome ends"
    mismatch = delivery.calls.refuse(Mismatch(number, told(outcome), identity))
    step.calls = delivery.calls
    if asked is not None:
        asked.refuse(mismatch_error(step, mismatch))
    else:
        delivery.interrupt()


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
    call: Call, value: bytes | None, error: dict[str, Any] | None, attempts: int, order: int, elapsed: int
) -> CallRecord:
    return CallRecord(call.identity, value, error, attempts, int(time.time() * 1000), order, elapsed)
