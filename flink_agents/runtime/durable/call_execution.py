"""One durable call of an action: made outside of the action and recorded, or taken from its record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import DurableResultError, RecordTooLargeError
from flink_agents.runtime.concurrency.outcomes import cancelled_from_outside, carried, is_close
from flink_agents.runtime.durable.call_attempts import CallAttempts, Threads, raised_by
from flink_agents.runtime.durable.call_values import Arguments, decoded, encoded, failure_kept, result_error
from flink_agents.runtime.durable.recording import Recording, journal_of
from flink_agents.runtime.execution.context import ActionRun
from flink_agents.runtime.execution.delivery import Delivery, OwnFuture, Pending, current_delivery, outside
from flink_agents.runtime.journal.calls import Call, Outcome, is_cancelled
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.retention.shared_values import SharedValues
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.codec import ValueCodec


class CallExecution:
    """Makes one durable call, or gives back what was recorded of it. Only the agent loop uses it.

    Args:
        recording: Stores what it records.
        codec: Encodes values.
        observers: Who is told of the call.
        step: The execution of the action.
        delivery: Gives the action what it waits for.
        what: What is called.
        call: The call.
        arguments: Its arguments.
        threads: Where functions are called that are not ``async def``.
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
        codec: ValueCodec,
        observers: Observers,
        step: ActionRun,
        delivery: Delivery,
        what: DurableCallable,
        call: Call,
        arguments: Arguments,
        threads: Threads,
    ) -> None:
        self._recording = recording
        self._codec = codec
        self._observers = observers
        self._step = step
        self._delivery = delivery
        self._what = what
        self._call = call
        self._arguments = arguments
        self._threads = threads

    @property
    def awaited_as(self) -> str:
        """The call for people, where somebody forgot to await it."""
        identity = self._call.identity
        return f"the durable call {identity.function}({(identity.request or '')[:300]})"

    async def value(self) -> Any:
        """What the call returned, as it was recorded, once it is its turn; from here on it counts as made.

        An action that does nothing else meanwhile makes it in its own task, and without a queue.

        Raises:
            BaseException: What it raised, as it was recorded.
        """
        delivery, call = self._delivery, self._call
        delivery.unawaited.pop(call.number, None)
        self._tell()
        if self._recording.bridge.over:
            # Whatever the action does at the end of the attempt: nothing begins any more.
            raise asyncio.CancelledError
        if delivery.counted or delivery.main is None:
            return await self._beside_others()
        if delivery.replaying:
            recorded = delivery.take(call.number)
            return await self._beside_others() if recorded is None else self._given(recorded, None)
        step, what = self._step, self._what
        in_flight = self._recording.in_flight.begin(step.run, what.identity, delivery.main)
        attempts = CallAttempts(step, what, call, self._threads, self._observers, in_flight)
        # What the function does belongs to nobody's order.
        current_delivery.set(None)
        try:
            if self._tells_outside:
                await self._announce()
            value = await attempts.value_of(self._arguments)
            in_flight.recording = True
            place = attempts.number, delivery.calls.end(), delivery.elapsed()
            outcome, raised = await self._recorded(value, place), None
        except BaseException as error:
            if is_close(error) or cancelled_from_outside(error):
                raise
            raised = self._raised(error)
            outcome = self._failed(raised, attempts.number)
            delivery.calls.seen(call.number, outcome)
        finally:
            current_delivery.set(delivery)
            self._recording.in_flight.end(in_flight)
        if self._recording.bridge.over:
            # The action does not go on.
            raise asyncio.CancelledError
        delivery.now = max(delivery.now, outcome.elapsed / 1e6)
        return self._given(outcome, raised)

    def _tell(self) -> None:
        """Tell who wants to know that the call is made, or taken from its record."""
        step, call, on_call = self._step, self._call, self._recording.on_call
        if on_call is not None:
            on_call(step, call)
        state, action, function = step.run.state, step.action.name, call.identity.function
        if call.recorded is not None:
            self._observers.call_replayed(state, action, function)
        else:
            assert step.run.journal is not None
            self._observers.call_begun(state, action, function, step.run.journal.replayed)
            if (tell := self._observers.call_content) is not None:
                tell(state, action, function, "request", self._call.identity.request)

    def _raised(self, error: BaseException) -> BaseException:
        """What the call raised that ended with ``error``, where the attempt goes on.

        Raises:
            asyncio.CancelledError: Nobody goes on with it, and it may be that it did not begin.
        """
        if self._recording.bridge.over:
            raise asyncio.CancelledError from error
        return raised_by(error)

    async def _beside_others(self) -> Any:
        """Wait for the outcome of the call until it is delivered."""
        # The watcher finds here what leads to the outcome, by the name of the variable.
        pending = PendingCall(self._call, self._perform)
        if self._call.recorded is None or not is_cancelled(self._call.recorded):
            self._delivery.expect(pending)
        try:
            outcome = await pending.future
        except asyncio.CancelledError:
            self._delivery.leave(pending)
            if not (self._delivery.failing or self._recording.bridge.over):
                pending.stop()
            raise
        raised, pending.raised = pending.raised, None
        return self._given(outcome, raised)

    def _given(self, outcome: Outcome, raised: BaseException | None) -> Any:
        """What the action gets.

        Args:
            outcome: How the call ended.
            raised: What it raised just now: its trace leads to the author's line.
        """
        assert isinstance(outcome, CallRecord)
        if outcome.error is None:
            return decoded(self._codec, self._what, outcome, self._values if self._what.shared else None)
        # No variable may keep it: it leads to this frame.
        if raised is None:
            raise carried(failures.rebuild(self._codec, outcome.error))
        raise carried(failures.first_time(failures.rebuild(self._codec, outcome.error), raised))

    # -- outside of the action --------------------------------------------------------

    async def _perform(self, pending: PendingCall) -> None:
        """Make the call, record how it ended, and let that be delivered."""
        self._delivery.performing.append(pending)
        in_flight = self._recording.in_flight.begin(self._step.run, self._what.identity)
        try:
            step, what, call = self._step, self._what, self._call
            await self._make(
                pending, CallAttempts(step, what, call, self._threads, self._observers, in_flight)
            )
        finally:
            self._recording.in_flight.end(in_flight)
            if self._recording.bridge.over:
                # It comes to no outcome any more: who waits for it, or for what came behind it, though
                # cancelled, would wait for ever.
                pending.drop()
                self._delivery.forget(pending)

    async def _make(self, pending: PendingCall, attempts: CallAttempts) -> None:
        delivery = self._delivery
        try:
            if self._tells_outside:
                await self._announce()
            value = await attempts.value_of(self._arguments)
        except BaseException as error:
            if pending.stopped and isinstance(error, asyncio.CancelledError):
                raise
            raised = self._raised(error)
            if delivery.over:
                return
            pending.ended, pending.raised = True, raised
            delivery.end(pending, self._failed(pending.raised, attempts.number))
            return
        if delivery.over:
            # Its time ended before the call: another attempt has taken its place, and its number.
            return
        pending.ended = attempts.in_flight.recording = True
        place = attempts.number, delivery.calls.end(), delivery.elapsed()
        ended = delivery.end(pending)
        try:
            record = await self._recorded(value, place)
        except Exception as error:
            # Nobody may wait for ever for what should have been recorded.
            self._recording.fail(error)
            raise
        delivery.settle(ended, record)

    @property
    def _tells_outside(self) -> bool:
        """Whether the outside may learn by the call which run makes it."""
        what = self._what
        return what.wants_key or what.reconciler is not None or self._step.run.lineage.known

    async def _announce(self) -> None:
        """Record what must be known before the call can take effect.

        What the outside may learn of the run's number (a key, an id, a UUID) belongs to this input and
        to this history from then on, whatever comes first after a crash.
        """
        journal, calls, path = journal_of(self._step), self._delivery.calls, self._step.path
        outcomes = calls.still_unrecorded(self._call.after)
        if self._what.reconciler is not None and not self._call.begun:
            await self._recording.kept(calls, outcomes, journal.add_intent(path, self._call, outcomes))
        elif outcomes:
            await self._recording.kept(calls, outcomes, journal.add_outcomes(path, outcomes))
        elif not journal.bound:
            await self._recording.stored(journal.bind())

    async def _recorded(self, value: Any, place: tuple[int, int, int]) -> CallRecord:
        """Record what the call returned; from here on it is not made again.

        Args:
            value: What it returned.
            place: Number of its attempts, place in the order of outcomes, time since the begin.
        """
        try:
            data = encoded(self._codec, self._what, value)
            if self._what.shared:
                data = await self._values.packed(data)
            record = _record(self._call, data, None, *place)
            stored = await self._keep(record)
        except (DurableResultError, RecordTooLargeError) as refused:
            # The call took effect and must not be repeated, so that this is how it ended.
            error = result_error(self._step, self._call, refused)
            record = _record(self._call, None, self._described(error), *place)
            stored = await self._keep(record)
        state, action = self._step.run.state, self._step.action.name
        if (tell := self._observers.recorded) is not None:
            tell(state, action, stored)
        if record.error is None:
            if (tell := self._observers.call_content) is not None:
                tell(state, action, self._call.identity.function, "result", value)
            self._observers.call_recorded(state, action, self._call.identity.function)
        return record

    @property
    def _values(self) -> SharedValues:
        journals = self._step.shared.journals
        assert journals is not None
        return journals.values

    def _keep(self, record: CallRecord) -> Coroutine[Any, Any, int]:
        """Store how the call ended, with what the action had seen before it and nobody has recorded."""
        calls, after = self._delivery.calls, self._call.after
        outcomes: dict[Any, Outcome] = calls.still_unrecorded(after) if after else {}
        outcomes[self._call.number] = record
        journal = self._step.run.journal
        assert journal is not None
        append = journal.add_outcomes(self._step.path, outcomes)
        return self._recording.kept(calls, outcomes, append, late=True)

    def _failed(self, raised: BaseException, attempts: int) -> CallRecord:
        """How a call ended that failed for good."""
        delivery, step = self._delivery, self._step
        self._observers.call_failed(step.run.state, step.action.name, self._call.identity.function, raised)
        told = self._described(raised)
        return _record(self._call, None, told, attempts, delivery.calls.end(), delivery.elapsed())

    def _described(self, error: BaseException) -> dict[str, Any]:
        return failure_kept(self._codec, journal_of(self._step).limit, self._call, error)


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


def _record(
    call: Call, value: bytes | None, error: dict[str, Any] | None, attempts: int, order: int, elapsed: int
) -> CallRecord:
    return CallRecord(call.identity, value, error, attempts, int(time.time() * 1000), order, elapsed)
