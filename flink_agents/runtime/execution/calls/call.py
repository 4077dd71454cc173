"""One durable call of an action: returns its recorded outcome, or makes the call.

:meth:`DurableCall.make_call` is the only place in which a call starts and ends. All of it runs on the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import DurableResultError, RecordTooLargeError
from flink_agents.runtime.concurrency.bridge import cancelled_from_outside, carried, is_close
from flink_agents.runtime.execution.action_run import ActionRun, journal_of
from flink_agents.runtime.execution.calls.arguments import are_former_arguments, encode_arguments
from flink_agents.runtime.execution.calls.attempts import AttemptedCall, raised_by
from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery, outside
from flink_agents.runtime.execution.calls.durable_code import Threads
from flink_agents.runtime.execution.calls.in_flight import CallsInFlight
from flink_agents.runtime.execution.calls.pending import FutureOutcome
from flink_agents.runtime.execution.calls.results import misfit_error, result_error
from flink_agents.runtime.journal.calls import Number, Outcome
from flink_agents.runtime.journal.records import RECORD_FRAME, CallIdentity, CallRecord
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.codec import UNCHANGING, is_unchanging

_NOTHING = object()

_NOTHING_SEEN: dict[Number, Outcome] = {}


class DurableCall(AttemptedCall):
    """One durable call. Used on the event loop only.

    Args:
        in_flight: Stores its records, and knows that it is in flight.
        step: The execution of the action that makes it.
        delivery: Delivers outcomes to the action.
        callable_: The function and its settings.
        args: Arguments by position.
        kwargs: Arguments by name.
        threads: Executes functions that are not ``async def``.

    Attributes:
        identity: The name of the function, with digest and text of the arguments.
        recorded: Its outcome if it was made before; else None.
        after: The outcomes that the action had seen before the call and that were not recorded then.

    Raises:
        UnserializableValueError: An argument cannot be encoded.
        Mismatch: Another call was recorded under its number.
    """

    recorded: CallRecord | None
    # The exception that the function just raised, until the action gets it.
    _raised: BaseException | None = None
    after: Mapping[Number, Outcome] = _NOTHING_SEEN
    # The result that the function just returned, if the action can get it as it is.
    _returned: Any = _NOTHING

    def __init__(
        self,
        in_flight: CallsInFlight,
        step: ActionRun,
        delivery: Delivery,
        callable_: DurableCallable,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        threads: Threads,
    ) -> None:
        # All attributes are set here: each call comes this way.
        self.step = step
        self._callable = callable_
        self._threads = threads
        self._bridge = in_flight.bridge
        self._in_flight = in_flight
        self._delivery = delivery
        self._data, self.identity = encode_arguments(in_flight.codec, callable_, args, kwargs)
        is_plain = UNCHANGING.issuperset(map(type, args)) and not kwargs
        if not is_plain:
            is_plain = all(map(is_unchanging, (*args, *kwargs.values())))
        self._plain = (args, kwargs) if is_plain else None
        task = delivery.task_path() if delivery.tasks or delivery.closed else ""
        matched = delivery.match_call(task, self.identity, self._is_former)
        self.number, self.recorded, self.may_have_run = matched
        if delivery.unrecorded:
            # A copy, because outcomes that come later do not belong to this call's history.
            self.after = delivery.seen_by(task)

    def _is_former(self, recorded: CallIdentity) -> bool:
        """Return True if a recorded call is this one, as code with former classes or parameters made it."""
        codec = self._in_flight.codec
        args, kwargs = self._plain or codec.decode(self._data)
        return are_former_arguments(codec, self._callable, list(args), kwargs, recorded)

    @property
    def awaited_as(self) -> str:
        """The text of the call in the error about a forgotten ``await``."""
        return f"the durable call {self.identity.function}({(self.identity.request or '')[:300]})"

    async def value(self) -> Any:
        """Return the recorded result, or make the call first. From here on, the call counts as made.

        An action that does nothing else meanwhile makes the call in its own task, without a queue.

        Raises:
            BaseException: The recorded error of the call.
        """
        delivery = self._delivery
        # The coroutine is awaited now, so the check for a forgotten `await` ignores it.
        delivery.unawaited.pop(self.number, None)
        journal = self.step.run.journal
        assert journal is not None
        if self.recorded is not None or journal.was_interrupted or self._in_flight.tells_of_calls:
            self._notify(journal.was_interrupted)
        if self._bridge.closed:
            # The attempt of the job ends. The clean-up of the action must not start further calls.
            raise asyncio.CancelledError
        # The action has several tasks or runs in a thread, so the outcome needs its place in their order.
        if delivery.counted or delivery.main is None:
            return await self._beside_others()
        # The short path: the record is the next one in order.
        if delivery.had_outcomes and delivery.replaying:
            recorded = delivery.take_recorded(self.number)
            return await self._beside_others() if recorded is None else self._result(recorded)
        # Tasks and timers of the function do not count as the action's own.
        current_delivery.set(None)
        try:
            outcome = await self.make_call(None)
        finally:
            current_delivery.set(delivery)
        if self._bridge.closed:
            # The outcome is recorded, but the action does not resume in this attempt.
            raise asyncio.CancelledError
        assert outcome is not None
        delivery.now = max(delivery.now, outcome.elapsed / 1e6)
        return self._result(outcome)

    def _notify(self, is_again: bool) -> None:
        """Notify observers that the call is made, or taken from its record.

        Args:
            is_again: True if an earlier attempt may have made it.
        """
        step = self.step
        observers = self._in_flight.observers
        on_call = self._in_flight.on_call
        if on_call is not None:
            on_call(step, self)
        if self.recorded is not None:
            observers.call_replayed(
                step.run.state, step.action.name, self.identity.function, self.number, self.recorded
            )
            return
        if (tell := observers.call_begun if is_again else observers.call_begun_anew) is not None:
            tell(step.run.state, step.action.name, self.identity.function, self.number, is_again)
        if (tell := observers.call_request) is not None:
            tell(
                step.run.state,
                step.action.name,
                self.identity.function,
                self.number,
                "request",
                self.identity.request,
            )

    async def _beside_others(self) -> Any:
        """Wait for the outcome, which is delivered in order with those of other calls and waits."""
        pending = PendingCall(self)
        self._delivery.expect(pending)
        try:
            outcome = await pending.future
        except asyncio.CancelledError:
            self._delivery.detach_wait(pending)
            if not (self._delivery.lets_finish(self.number) or self._bridge.closed):
                pending.stop()
            raise
        return self._result(outcome)

    def _result(self, outcome: Outcome) -> Any:
        """Return or raise the result in the action."""
        assert isinstance(outcome, CallRecord)
        if outcome.error is None:
            assert outcome.value is not None
            return self.unpack_result(outcome.value, outcome)
        raised = self._raised
        self._raised = None
        # No variable may hold the new error: its traceback refers to this frame, which would be a cycle.
        if raised is None:
            raise carried(failures.rebuild(self._in_flight.codec, outcome.error))
        # The traceback of the exception that was just raised leads to the user's line.
        raise carried(failures.first_time(failures.rebuild(self._in_flight.codec, outcome.error), raised))

    # -- start and end ----------------------------------------------------------------

    async def make_call(self, pending: PendingCall | None) -> CallRecord | None:
        """Make the call and record its outcome.

        Args:
            pending: Holds the call's place among outcomes; None if the action's own task makes the call.

        Returns:
            The outcome; None if ``pending`` delivers it.
        """
        delivery = self._delivery
        if pending is not None:
            delivery.add_call(pending)
        self._in_flight.begin(self, delivery.main if pending is None else None)
        try:
            try:
                # Before the function runs: ids that it gets must be bound to the input of this run.
                if self.announces or self.step.run.lineage.known:
                    await self._announce()
                value = await self.execute()
            except BaseException as error:
                if _is_given_up(error, pending):
                    raise
                return self._end_failed(pending, error)
            if pending is not None:
                if delivery.closed:
                    # The action timed out: another attempt has its place, and the numbers of its calls.
                    return None
                pending.ended = True
            self.recording = True
            # The place is taken when the function ends, not when its record is stored: stores acknowledge in
            # any order.
            place = delivery.next_place(), delivery.elapsed()
            # From here on, later outcomes wait until this one is recorded.
            queued = None if pending is None else delivery.end(pending)
            record = await self._recorded(value, place)
            if queued is None:
                return record
            delivery.resolve(queued, record)
            return None
        finally:
            self._in_flight.end(self)
            if pending is not None and self._bridge.closed:
                # No outcome comes any more, so nothing may wait for this one, or for one that came later.
                pending.abandon_wait()
                delivery.forget(pending)

    def _end_failed(self, pending: PendingCall | None, error: BaseException) -> CallRecord | None:
        """End a call that failed for good. Its failure is recorded with the action's next record.

        Raises:
            asyncio.CancelledError: The attempt of the job ends, and the call may not have started.
        """
        if self._bridge.closed:
            raise asyncio.CancelledError from error
        raised = raised_by(error)
        delivery = self._delivery
        if pending is not None and delivery.closed:
            return None
        outcome = self._failure(raised, (delivery.next_place(), delivery.elapsed()))
        self._notify_failed(raised, outcome)
        self._raised = raised
        if pending is None:
            # Not recorded yet: it is stored with the action's next call or its end.
            delivery.seen(self.number, outcome)
            return outcome
        pending.ended = True
        delivery.end(pending, outcome)
        return None

    async def _announce(self) -> None:
        """Record the facts that must be stored before the call can take effect.

        Keys, ids and UUIDs derive from the run's number, and the call passes them to the outside. So from
        then on, the number belongs to this input and this history, even if inputs return in another order
        after a crash.
        """
        journal = journal_of(self.step)
        path = self.step.path
        outcomes = self._delivery.still_unrecorded(self.after)
        if self._callable.reconciler is not None and not self.may_have_run:
            append = partial(journal.add_intent, path, self.number, self.identity, outcomes)
        elif outcomes:
            append = partial(journal.add_outcomes, path, outcomes)
        elif not journal.bound:
            append = journal.bind
        else:
            return
        await self._in_flight.store(append, self._delivery, outcomes)

    async def _recorded(self, value: Any, place: tuple[int, int]) -> CallRecord:
        """Record the result of the call. From here on the call is never made again.

        Args:
            value: The result that the function returned.
            place: Place in the order of outcomes, and microseconds since the start.
        """
        unusable: BaseException | None = None
        try:
            try:
                outcomes = await self.store_outcome(self.success(self._encode(value), place))
            except (DurableResultError, RecordTooLargeError) as refused:
                # The call took effect and must not be repeated. So this error is its outcome.
                unusable = result_error(self.step, self.identity, self.number.nth, refused)
                outcomes = await self.store_outcome(self._failure(unusable, place))
        except Exception as error:
            # The outcome has no record and will never be delivered. So the attempt must end.
            self._in_flight.fail(error)
            raise
        outcome = outcomes[self.number]
        assert isinstance(outcome, CallRecord)
        observers = self._in_flight.observers
        if (tell := observers.recorded) is not None:
            tell(self.step.run.state, self.step.action.name, len(outcomes))
        if unusable is not None:
            self._notify_failed(unusable, outcome)
            return outcome
        what = self.step.run.state, self.step.action.name, self.identity.function, self.number
        if (tell := observers.call_content) is not None:
            tell(*what, "result", value)
        observers.call_recorded(*what)
        return outcome

    def _notify_failed(self, error: BaseException, record: CallRecord) -> None:
        """Notify observers that the call failed for good, or that its result cannot be recorded."""
        step = self.step
        self._in_flight.observers.call_failed(
            step.run.state, step.action.name, self.identity.function, self.number, error, record.ended_at
        )

    def store_outcome(self, outcome: CallRecord) -> Coroutine[Any, Any, Mapping[Number, Outcome]]:
        """Store the outcome, with earlier ones that the action had seen and that were not stored yet.

        Returns:
            A coroutine that ends when they are durable, and returns all of them.
        """
        delivery = self._delivery
        outcomes = delivery.still_unrecorded(self.after) if self.after else {}
        outcomes[self.number] = outcome
        journal = self.step.run.journal
        assert journal is not None
        append = partial(journal.add_outcomes, delivery.path, outcomes)
        return self._in_flight.store(append, delivery, outcomes, late=True)

    def success(self, data: bytes, place: tuple[int, int]) -> CallRecord:
        """Return the record of a result, from its bytes and its place."""
        order, elapsed = place
        ended_at = int(time.time() * 1000)
        return CallRecord(self.identity, data, None, self.attempts, ended_at, order, elapsed)

    def _failure(self, error: BaseException, place: tuple[int, int]) -> CallRecord:
        """Return the record of a failure, with its place."""
        order, elapsed = place
        ended_at = int(time.time() * 1000)
        form = self._describe(error)
        return CallRecord(self.identity, None, form, self.attempts, ended_at, order, elapsed)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        """Return the recorded form of a failure, cut to the size that its record can hold."""
        codec = self._in_flight.codec
        used_bytes = len(self.identity.pack(codec)) + RECORD_FRAME
        return failures.describe(codec, error, failures.room(journal_of(self.step).limit, used_bytes))

    def _encode(self, value: Any) -> bytes:
        """Return the bytes of the result.

        Raises:
            DurableResultError: It does not have the declared type, or cannot be encoded.
        """
        try:
            return self.pack_result(value)
        except ValidationError as error:
            raise misfit_error(self._callable.result_type, value, error) from error
        except Exception as error:
            raise DurableResultError(f"{type(error).__name__}: {error}"[:1000]) from error

    def pack_result(self, result: Any) -> bytes:
        """Return the bytes of a result; raises if it has none."""
        if type(result) in UNCHANGING:
            # Reading its bytes would give an equal value.
            self._returned = result
        return self._in_flight.codec.encode(result)

    def unpack_result(self, data: bytes, outcome: CallRecord) -> Any:
        """Return the result whose bytes the record of an outcome has."""
        returned = self._returned
        return self._in_flight.codec.decode(data) if returned is _NOTHING else returned


class PendingCall(FutureOutcome):
    """A durable call whose outcome is delivered in order.

    Args:
        call: The call.

    Attributes:
        call: The call.
    """

    __slots__ = ("_context", "call")

    def __init__(self, call: DurableCall) -> None:
        super().__init__(call.number)
        self.call = call
        self._context = outside()

    def begin(self) -> None:
        """Make the call in a task that does not belong to the action."""
        self.perform(self.call.make_call(self), self._context)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the action, at the place where it waits for the call."""
        self.gone = True
        if not self.future.done():
            self.future.set_exception(error)


def _is_given_up(error: BaseException, pending: PendingCall | None) -> bool:
    """Return True if ``error`` is a cancellation of the task that makes the call: it has no outcome then."""
    if pending is None:
        return is_close(error) or cancelled_from_outside(error)
    return pending.stopped and isinstance(error, asyncio.CancelledError)
