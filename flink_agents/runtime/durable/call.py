"""One durable call of an action: returns its recorded outcome, or makes the call.

:meth:`DurableCall.make` is the only place in which a call starts and ends. All of it runs on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import DurableResultError, RecordTooLargeError
from flink_agents.runtime.concurrency.bridge import cancelled_from_outside, carried, is_close
from flink_agents.runtime.durable.attempts import CallAttempts, Threads, raised_by
from flink_agents.runtime.durable.recording import Recording, journal_of
from flink_agents.runtime.durable.typed_results import result_type_of
from flink_agents.runtime.durable.values import Arguments, decoded, encoded, failure_kept, result_error
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.action_tasks import OwnFuture
from flink_agents.runtime.execution.delivery import Delivery, current_delivery, outside
from flink_agents.runtime.execution.pending_outcomes import PendingOutcome
from flink_agents.runtime.journal.calls import Call, Outcome, is_cancelled
from flink_agents.runtime.journal.plans import SharedValues
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde import exceptions as failures


class DurableCall:
    """One durable call. Used on the event loop only.

    Args:
        recording: Stores its records.
        step: The execution of the action that makes it.
        delivery: Delivers outcomes to the action.
        what: The callable.
        call: Its number, and its record if it was made before.
        arguments: Its arguments.
        threads: Executes functions that are not ``async def``.
    """

    __slots__ = (
        "_arguments",
        "_call",
        "_codec",
        "_delivery",
        "_observers",
        "_recording",
        "_step",
        "_threads",
        "_what",
    )

    def __init__(
        self,
        recording: Recording,
        step: ActionRun,
        delivery: Delivery,
        what: DurableCallable,
        call: Call,
        arguments: Arguments,
        threads: Threads,
    ) -> None:
        self._recording = recording
        self._codec = recording.codec
        self._observers = recording.observers
        self._step = step
        self._delivery = delivery
        self._what = what
        self._call = call
        self._arguments = arguments
        self._threads = threads

    @property
    def awaited_as(self) -> str:
        """The text of the call in the error about a forgotten ``await``."""
        identity = self._call.identity
        return f"the durable call {identity.function}({(identity.request or '')[:300]})"

    async def value(self) -> Any:
        """Return the recorded result, or make the call first. From here on, the call counts as made.

        An action that does nothing else meanwhile makes the call in its own task, without a queue.

        Raises:
            BaseException: The recorded error of the call.
        """
        delivery = self._delivery
        # The coroutine is awaited now, so the check for a forgotten `await` ignores it.
        delivery.unawaited.pop(self._call.number, None)
        self._notify()
        if self._recording.bridge.closed:
            # The attempt of the job ends. The clean-up of the action must not start further calls.
            raise asyncio.CancelledError
        # The action has several tasks or runs in a thread, so the outcome needs its place in their order.
        if delivery.counted or delivery.main is None:
            return await self._beside_others()
        # The short path: the record is the next one in order.
        if delivery.replaying:
            recorded = delivery.take(self._call.number)
            return await self._beside_others() if recorded is None else self._result(recorded, None)
        # Tasks and timers of the function do not count as the action's own.
        current_delivery.set(None)
        try:
            result = await self.make(None)
        finally:
            current_delivery.set(delivery)
        if self._recording.bridge.closed:
            # The outcome is recorded, but the action does not resume in this attempt.
            raise asyncio.CancelledError
        assert result is not None
        outcome, raised = result
        del result
        delivery.now = max(delivery.now, outcome.elapsed / 1e6)
        return self._result(outcome, raised)

    def _notify(self) -> None:
        """Notify observers that the call is made, or taken from its record."""
        step = self._step
        call = self._call
        on_call = self._recording.on_call
        if on_call is not None:
            on_call(step, call)
        what = step.run.state, step.action.name, call.identity.function, call.number
        if call.recorded is not None:
            self._observers.call_replayed(*what, call.recorded)
        else:
            assert step.run.journal is not None
            self._observers.call_begun(*what, step.run.journal.was_interrupted)
            if (tell := self._observers.call_request) is not None:
                tell(*what, "request", call.identity.request)

    async def _beside_others(self) -> Any:
        """Wait for the outcome, which is delivered in order with those of other calls and waits."""
        # The watchdog finds the task that produces the outcome by the name of this variable.
        pending = PendingCall(self, self._call)
        if self._call.recorded is None or not is_cancelled(self._call.recorded):
            self._delivery.expect(pending)
        try:
            outcome = await pending.future
        except asyncio.CancelledError:
            self._delivery.leave(pending)
            if not (self._delivery.lets_finish(self._call.number) or self._recording.bridge.closed):
                pending.stop()
            raise
        raised = pending.raised
        pending.raised = None
        return self._result(outcome, raised)

    def _result(self, outcome: Outcome, raised: BaseException | None) -> Any:
        """Return or raise the result in the action.

        Args:
            outcome: The outcome of the call.
            raised: The exception that it just raised, if any. Its traceback leads to the user's line.
        """
        assert isinstance(outcome, CallRecord)
        if outcome.error is None:
            return decoded(self._codec, self._what, outcome, self._values if self._what.shared else None)
        # No variable may hold the new error: its traceback refers to this frame, which would be a cycle.
        if raised is None:
            raise carried(failures.rebuild(self._codec, outcome.error))
        raise carried(failures.first_time(failures.rebuild(self._codec, outcome.error), raised))

    # -- start and end ----------------------------------------------------------------

    async def make(self, pending: PendingCall | None) -> tuple[CallRecord, BaseException | None] | None:
        """Make the call and record its outcome.

        Args:
            pending: Holds the call's place among outcomes; None if the action's own task makes the call.

        Returns:
            The outcome, and the exception that the call just raised; None if ``pending`` delivers them.
        """
        delivery = self._delivery
        recording = self._recording
        what = self._what
        if pending is not None:
            delivery.performing.append(pending)
        attempts = CallAttempts(
            self._step, what, self._call, self._threads, self._observers, recording.bridge
        )
        recording.begin(attempts, delivery.main if pending is None else None)
        try:
            try:
                # Before the function runs: ids that it gets must be bound to the input of this run.
                if what.wants_key or what.reconciler is not None or self._step.run.lineage.known:
                    await self._announce()
                value = await attempts.value_of(self._arguments)
            except BaseException as error:
                if _is_given_up(error, pending):
                    raise
                return self._end_failed(pending, error, attempts.number)
            if pending is not None:
                if delivery.closed:
                    # The action timed out: another attempt has its place, and the numbers of its calls.
                    return None
                pending.ended = True
            attempts.recording = True
            # The place is taken when the function ends, not when its record is stored: stores acknowledge in
            # any order.
            place = attempts.number, delivery.calls.end(), delivery.elapsed()
            # From here on, later outcomes wait until this one is recorded.
            slot = None if pending is None else delivery.end(pending)
            record = await self._recorded(value, place)
            if slot is None:
                return record, None
            delivery.resolve(slot, record)
            return None
        finally:
            recording.end(attempts)
            if pending is not None and recording.bridge.closed:
                # No outcome comes any more, so nothing may wait for this one, or for one that came later.
                pending.drop()
                delivery.forget(pending)

    def _end_failed(
        self, pending: PendingCall | None, error: BaseException, attempts: int
    ) -> tuple[CallRecord, BaseException | None] | None:
        """End a call that failed for good. Its failure is recorded with the action's next record.

        Raises:
            asyncio.CancelledError: The attempt of the job ends, and the call may not have started.
        """
        if self._recording.bridge.closed:
            raise asyncio.CancelledError from error
        raised = raised_by(error)
        delivery = self._delivery
        if pending is not None and delivery.closed:
            return None
        place = attempts, delivery.calls.end(), delivery.elapsed()
        outcome = self._record(None, self._described(raised), place)
        self._notify_failed(raised, outcome)
        if pending is None:
            # Not recorded yet: it is stored with the action's next call or its end.
            delivery.calls.seen(self._call.number, outcome)
            return outcome, raised
        pending.ended = True
        pending.raised = raised
        delivery.end(pending, outcome)
        return None

    async def _announce(self) -> None:
        """Record the facts that must be stored before the call can take effect.

        Keys, ids and UUIDs derive from the run's number, and the call passes them to the outside. So from
        then on, the number belongs to this input and this history, even if inputs return in another order
        after a crash.
        """
        journal = journal_of(self._step)
        calls = self._delivery.calls
        path = self._step.path
        outcomes = calls.still_unrecorded(self._call.after)
        if self._what.reconciler is not None and not self._call.may_have_run:
            append = journal.add_intent(path, self._call, outcomes)
            await self._recording.stored(append, calls, outcomes)
        elif outcomes:
            await self._recording.stored(journal.add_outcomes(path, outcomes), calls, outcomes)
        elif not journal.bound:
            await self._recording.stored(journal.bind())

    async def _recorded(self, value: Any, place: tuple[int, int, int]) -> CallRecord:
        """Record the result of the call. From here on the call is never made again.

        Args:
            value: The result.
            place: Number of attempts, place in the order of outcomes, and microseconds since the start.
        """
        unusable: BaseException | None = None
        try:
            try:
                data = encoded(self._codec, self._what, value)
                if self._what.shared:
                    data = await self._values.packed(data)
                record = self._record(data, None, place)
                stored = await self._store(record)
            except (DurableResultError, RecordTooLargeError) as refused:
                # The call took effect and must not be repeated. So this error is its outcome.
                unusable = result_error(self._step, self._call, refused)
                record = self._record(None, self._described(unusable), place)
                stored = await self._store(record)
        except Exception as error:
            # The outcome has no record and will never be delivered. So the attempt must end.
            self._recording.fail(error)
            raise
        state = self._step.run.state
        action = self._step.action.name
        if (tell := self._observers.recorded) is not None:
            tell(state, action, stored)
        if unusable is not None:
            self._notify_failed(unusable, record)
            return record
        what = state, action, self._call.identity.function, self._call.number
        if (tell := self._observers.call_content) is not None:
            tell(*what, "result", value)
        self._observers.call_recorded(*what)
        return record

    def _notify_failed(self, error: BaseException, record: CallRecord) -> None:
        step = self._step
        call = self._call
        self._observers.call_failed(
            step.run.state, step.action.name, call.identity.function, call.number, error, record.ended_at
        )

    @property
    def _values(self) -> SharedValues:
        journals = self._step.shared.journals
        assert journals is not None
        return journals.values

    def _store(self, record: CallRecord) -> Coroutine[Any, Any, int]:
        """Store the record, with earlier outcomes that the action had seen and that were not stored yet."""
        calls = self._delivery.calls
        after = self._call.after
        outcomes: dict[Any, Outcome] = calls.still_unrecorded(after) if after else {}
        outcomes[self._call.number] = record
        append = journal_of(self._step).add_outcomes(self._step.path, outcomes)
        return self._recording.stored(append, calls, outcomes, late=True)

    def _record(
        self, value: bytes | None, error: dict[str, Any] | None, place: tuple[int, int, int]
    ) -> CallRecord:
        attempts, order, elapsed = place
        record = CallRecord(
            self._call.identity, value, error, attempts, int(time.time() * 1000), order, elapsed
        )
        if value is None or self._what.result_type is None:
            return record
        return record._replace(result_type=result_type_of(self._what.result_type).text)

    def _described(self, error: BaseException) -> dict[str, Any]:
        return failure_kept(self._codec, journal_of(self._step).limit, self._call, error)


class PendingCall(PendingOutcome):
    """A durable call whose outcome is delivered in order.

    Args:
        durable_call: The call.
        call: Its number and identity.

    Attributes:
        call: Its number and identity.
        future: Ends when the outcome is delivered.
        raised: What the call raised, until the action has taken it.
    """

    __slots__ = ("_context", "_made", "call", "future", "raised")

    def __init__(self, durable_call: DurableCall, call: Call) -> None:
        super().__init__(call.number)
        self.call = call
        self._made = durable_call
        self._context = outside()
        self.future: asyncio.Future[CallRecord] = OwnFuture(loop=asyncio.get_running_loop())
        self.raised: BaseException | None = None

    def begin(self) -> None:
        """Make the call in a task that does not belong to the action."""
        self.perform(self._made.make(self), self._context)

    def deliver(self, outcome: Outcome) -> None:
        """End the wait for the call."""
        assert isinstance(outcome, CallRecord)
        if not self.future.done():
            self.future.set_result(outcome)

    def drop(self) -> None:
        """End the wait without an outcome."""
        self.future.cancel()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the action, at the place where it waits for the call."""
        self.gone = True
        if not self.future.done():
            self.future.set_exception(error)


def _is_given_up(error: BaseException, pending: PendingCall | None) -> bool:
    """Return True if ``error`` ends the task that makes the call, so the call has no outcome."""
    if pending is None:
        return is_close(error) or cancelled_from_outside(error)
    return pending.stopped and isinstance(error, asyncio.CancelledError)
