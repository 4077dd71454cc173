"""The base class of durable waits: waits that outlast the execution of their action.

A wait is an outcome like the end of a durable call. It opens when the action awaits it, unless a record says
how it ended. The end is recorded when the action learns of it: in the state of the run, and in the store with
the next record that may depend on it. All of this happens on the event loop.

Each kind of wait is a subclass. It defines the object of the wait, the ways to end it, and the result.

If the actions of a run have come to rest, and wait only for timers and signals, :func:`suspend` suspends it.
``loop.suspender`` then makes its stored form.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar

from typing_extensions import override

from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ContextMisuseError, MissingAwaitError, RunDeadlineError
from flink_agents.api.events.signals import SignalWait
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import Delivery, outside
from flink_agents.runtime.execution.calls.pending import FutureOutcome
from flink_agents.runtime.execution.waits.run_waits import RunWaits
from flink_agents.runtime.journal.calls import Mismatch, Outcome, as_shown
from flink_agents.runtime.journal.records import DEADLINE, TIMEOUT, WaitRecord
from flink_agents.runtime.serde.raised_texts import awaitable_text
from flink_agents.runtime.state.suspended import StoredWait, wait_id

LOOK_SECONDS = 0.05, 1.0
"""The first and the longest interval after which a wait in memory reads the clock, which may be set."""

_LEAST_SECONDS = 0.001
"""The shortest interval: the clock counts milliseconds."""

_MOST_DOUBLINGS = 10
"""The most times that the interval doubles: by then, it has long been at its bound."""


class DurableWait(FutureOutcome, SignalWait[Any]):
    """A durable wait that the action awaits.

    Args:
        step: The execution of the action.
        delivery: Delivers outcomes to the action, in order.
        seconds: The duration or the timeout of the wait; None for no limit.

    Attributes:
        called: The method of the context that creates such waits.
    """

    called: ClassVar[str]
    outlasts = True

    __slots__ = ("_delivery", "_seconds", "_step", "_timed", "_timer")

    def __init__(self, step: ActionRun, delivery: Delivery, seconds: float | None) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, delivery.task_path()))
        self._step = step
        self._delivery = delivery
        self._seconds = seconds
        self._timed: StoredWait | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- the kind of the wait ---------------------------------------------------------

    @property
    @abstractmethod
    def what(self) -> str:
        """The object of the wait, as text. Records have it, so it must not change between versions."""

    @property
    @abstractmethod
    def awaited_as(self) -> str:
        """The user's call, for the error about a forgotten ``await``."""

    @abstractmethod
    def open_wait(self) -> StoredWait:
        """Return the form in which state stores the wait, without times: it identifies the wait."""

    @abstractmethod
    def at_end_of_input(self, skips: bool) -> str | None:
        """Return the way in which the wait ends with the input; None if it continues.

        Args:
            skips: True if pauses are skipped then.
        """

    @abstractmethod
    def value_of(self, record: WaitRecord) -> Any:
        """Return the result of the wait, or raise. The deadline of the run is handled elsewhere."""

    def is_for(self, name: str) -> bool:
        """Return True if a signal of that name can end the wait. Only waits for signals override it."""
        return False

    def take_signal(self) -> bool:
        """End by a signal that is there for the wait; returns True if it has ended.

        It is called when the wait opens, and when a signal comes. A wait that something else ends does that
        in :meth:`end_if_due`.
        """
        return False

    def _mismatch(self, recorded: Outcome) -> str | None:
        """Return the object of the wait, as text, if it differs from the recorded one; None if they agree."""
        return None if as_shown(recorded) == self.what else self.what

    def _learned(self) -> None:
        """Note that the action learns of the end. The signal that ended the wait is used up."""

    def _give_back(self) -> None:
        """Release the signal that would have ended the wait: the action never learns of it."""

    # -- for the action ---------------------------------------------------------------

    @property
    def id(self) -> str:
        """The text that names the wait, and that you pass to the outside."""
        self._used()
        self._step.run.identify()
        return self.wait_id

    @property
    def deadline(self) -> int | None:
        """The time at which the wait ends by itself, in milliseconds since the epoch; None for never."""
        waits = self._step.run.waits
        ends = [self.timed().deadline, None if waits is None else waits.last_deadline]
        return min((at for at in ends if at is not None), default=None)

    @override
    def _result(self) -> Coroutine[Any, Any, Any]:
        self._used()
        return self._value()

    def _used(self) -> None:
        """Remove the wait from the unawaited ones: it is awaited, or its id was read."""
        if self._step.run.waits is not None:
            self._step.run.waits.unawaited.pop(self, None)

    async def _value(self) -> Any:
        """Wait, and return the result of the wait.

        Raises:
            RunDeadlineError: The time of the run is over.
            ContextMisuseError: The code may not use the context.
        """
        self._step.guard()
        record = await self._outcome()
        if record.end == DEADLINE:
            raise RunDeadlineError(
                f"action {self._step.action.name!r} waits for {self.what}, "
                "and its run has taken for too long",
                expected=f"a run that ends within {AgentOptions.RUN_DEADLINE.key}",
                found="a wait that the end of that time has met",
                fix="catch this and end without further waits, or raise the option",
            )
        return self.value_of(record)

    async def _outcome(self) -> WaitRecord:
        """Wait until the end of the wait is delivered."""
        delivery = self._delivery
        if not delivery.counted:
            # The wait needs to know when the action is at rest, so its handles are counted from here on.
            delivery.count(asyncio.get_running_loop())
        self._compare()
        delivery.expect(self)
        try:
            return await self.future
        except asyncio.CancelledError:
            # Close first, then release: else this wait would take the signal again that it gives back.
            delivery.detach_wait(self)
            self._close()
            self._give_back()
            raise

    def _compare(self) -> None:
        """End the execution if a replay waits for something else than was recorded."""
        delivery = self._delivery
        recorded = delivery.recorded(self.number)
        if recorded is not None and (now := self._mismatch(recorded)) is not None:
            delivery.note_mismatch(Mismatch(self.number, as_shown(recorded), now))
            self._step.calls = delivery
            delivery.interrupt()

    # -- while it is open -------------------------------------------------------------

    @property
    def wait_id(self) -> str:
        """The text that names the wait. Reading it here has no effect."""
        run = self._step.run
        number = self.number
        return wait_id(run.key_text, run.sequence_number, self._step.path, number.task, number.nth)

    @property
    def run(self) -> int:
        """Sequence number, within its key, of the run that waits."""
        return self._step.run.sequence_number

    @property
    def stored(self) -> StoredWait:
        """The form in which state stores the wait."""
        return self.timed()

    def leave_open(self) -> StoredWait:
        """Close the wait in memory because its run is suspended. Return the form in which state stores it.

        A signal that comes while the action is torn down waits for the run to resume.
        """
        self._close()
        self.gone = True
        return self.stored

    def timed(self) -> StoredWait:
        """Return the form in which state stores the wait, with its times. They are computed once.

        The deadline is the start of the wait plus ``seconds``. A kind with another deadline overrides this,
        and derives it from the start alone: a resumed wait keeps its start.
        """
        if self._timed is None:
            self._timed = self._waits.timed(self.open_wait(), self._seconds)
        return self._timed

    def begin(self) -> None:
        """Open the wait, or end it at once if its signal is there or its time has passed."""
        self.timed()
        mailbox = self._waits.mailbox
        # Before `take`: a signal that comes now must find the wait.
        mailbox.open[self] = None
        if mailbox.resuming:
            # All waits that were open when the run was suspended begin together.
            outside().run(asyncio.get_running_loop().call_soon, mailbox.resumed)
        if not self.take_signal():
            self.end_if_due()

    @property
    def _is_closed(self) -> bool:
        """True if nothing may end the wait any longer, or not in this part of the run."""
        return self.ended or self.gone or self._delivery.closed or self._waits.ends_part

    def end_if_due(self, number: int = 0) -> None:
        """End if the time has come, or if nothing else can end the wait; else schedule the next look.

        Args:
            number: The number of looks before this one.
        """
        if self._is_closed:
            return
        mailbox = self._waits.mailbox
        # No signal follows, so the wait would never end.
        if mailbox.ended and (end := self.at_end_of_input(mailbox.skips)) is not None:
            return self._end_by(end)
        now = mailbox.clock()
        deadline = self.timed().deadline
        last = self._waits.last_deadline
        if deadline is not None and now >= deadline:
            return self._end_by(TIMEOUT)
        if last is not None and now >= last:
            return self._end_by(DEADLINE)
        ends = [at for at in (deadline, last) if at is not None]
        if ends:
            self._stop()
            first, most = LOOK_SECONDS
            loop = asyncio.get_running_loop()
            delay_seconds = (min(ends) - now) / 1000
            if not getattr(loop, "moves_wall_clock", False):
                delay_seconds = min(delay_seconds, most, first * 2 ** min(number, _MOST_DOUBLINGS))
            self._timer = outside().run(
                loop.call_later, max(delay_seconds, _LEAST_SECONDS), self.end_if_due, number + 1
            )

    # -- its end ----------------------------------------------------------------------

    def deliver(self, outcome: Outcome) -> None:
        """Resume the code that waits, and record the end of the wait unless a record has it."""
        # First: outputs up to here stay, even if the action raises when it resumes.
        self._waits.waited(self._step)
        if self.future.done():
            return self._give_back()
        # A wait that ends by a record takes no signal, and its end is already recorded.
        if self.ended:
            self._learned()
            self._record_end(outcome)
        self.future.set_result(outcome)

    def abandon_wait(self) -> None:
        """End the wait without an outcome: the execution is over."""
        self._close()
        self._give_back()
        self.future.cancel()

    def _end_by(self, end: str, **of_signal: Any) -> None:
        """End the wait. The outcome is delivered in order.

        Args:
            end: The way in which it ends.
            of_signal: Fields of the record that describe a signal.
        """
        # Closed before the delivery, which may resume the action at once.
        self._close()
        self.ended = True
        delivery = self._delivery
        now = self._waits.mailbox.clock()
        order = delivery.next_place()
        record = WaitRecord(self.what, now, order, delivery.elapsed(), end, **of_signal)
        delivery.resolve(delivery.end(self), record)

    def _record_end(self, outcome: Outcome) -> None:
        """Record the end of the wait, with failures of calls that the action saw before it."""
        delivery = self._delivery
        journal = self._step.run.journal
        assert journal is not None
        outcomes: dict[Any, Outcome] = {**delivery.seen_by(self.number.task), self.number: outcome}
        journal.keep_outcomes(self._step.path, outcomes)
        delivery.mark_recorded(outcomes)

    def _close(self) -> None:
        """Let nothing end the wait any longer: its timer is cancelled, and no signal finds it."""
        self._stop()
        self._waits.mailbox.open.pop(self, None)

    def _stop(self) -> None:
        """Cancel the timer of the wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _waits(self) -> RunWaits:
        """The waits of the run, which exist from its first wait on."""
        waits = self._step.run.waits
        assert waits is not None
        return waits


def delivery_for(step: ActionRun, delivery: Delivery | None, called: str) -> Delivery:
    """Return the delivery of code that is about to wait, or raise if the code cannot wait.

    Args:
        step: The execution of the action.
        delivery: The delivery of the code that runs; None if the code belongs to no action.
        called: The method of the context that is called.

    Raises:
        ContextMisuseError: The action cannot wait.
    """
    run = step.run
    if delivery is None or delivery is not step.delivery or delivery.main is None or run.attach_waits is None:
        raise ContextMisuseError(
            f"action {step.action.name!r} calls {called}, but is no async def",
            expected="an async def action, whose own task or tasks wait",
            found="a def action, or code outside of the action",
            fix=f"write async def, and await {called}(...)",
        )
    if run.waits is None:
        run.attach_waits(step)
    return delivery


def check_waits_awaited(step: ActionRun) -> None:
    """Check that an execution that succeeded has awaited its waits: a wait does nothing before it is awaited.

    Raises:
        MissingAwaitError: It has not.
    """
    waits = step.run.waits
    if waits is None or not waits.unawaited:
        return
    forgotten = next((wait for wait, of in waits.unawaited.items() if of is step.delivery), None)
    waits.unawaited.clear()
    if forgotten is None or step.delivery is None:
        return
    if any(task.cancelled() or not task.done() for task in step.delivery.tasks):
        # The wait may belong to a task that was cancelled before it started.
        return
    called = awaitable_text(forgotten)
    raise MissingAwaitError(
        f"action {step.action.name!r} ended without awaiting {called}: it did not wait",
        expected="an await, or a task, for each pause and each wait for a signal",
        found="a wait without an await",
        fix=f"write await {called}, or remove the call",
    )


def suspend_at_rest(step: ActionRun, waits: RunWaits) -> None:
    """Schedule the suspension of a run, unless something else can still wake it."""
    if step.suspended is None and waits.may_be_suspended:
        outside().run(asyncio.get_running_loop().call_soon, suspend, step, waits)


def suspend(step: ActionRun, waits: RunWaits) -> None:
    """End an execution whose waits outlast it, and leave these waits in ``step.suspended``.

    Its code sees a cancellation. Whatever it does with that, it can change nothing of the run any longer.
    """
    delivery = step.delivery
    if delivery is None or step.suspended is not None or not (waits.may_be_suspended and delivery.outlasts):
        return
    step.suspended = [wait.leave_open() for wait in delivery.waits if isinstance(wait, DurableWait)]
    if delivery.deadlines and step.retry_state is not None:
        step.retry_state.ran = {timed.name: timed.before + timed.wait.ran for timed in delivery.deadlines}
    # Outputs from here on come from code that handles the cancellation, and are dropped.
    step.put = len(step.sent), len(step.side or ())
    journal = step.run.journal
    assert journal is not None
    if delivery.unrecorded:
        # The action has seen these outcomes. A replay needs them to come to the same place.
        outcomes = dict(delivery.unrecorded)
        journal.keep_outcomes(step.path, outcomes)
        delivery.mark_recorded(outcomes)
    step.end()
    delivery.interrupt()
