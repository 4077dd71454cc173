"""The kinds of durable waits: pauses, and waits for signals.

A wait for a signal picks one that is there, or stays open. The signal counts as taken once the action learns
of it. If the action cancels the wait before that, other waits can take the signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from flink_agents.api.common.current import isolated
from flink_agents.api.errors import ContextMisuseError, NoMoreSignalsError, SignalTimeoutError
from flink_agents.api.resources.provenance import as_data
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import Delivery
from flink_agents.runtime.execution.waits.durable_wait import DurableWait, delivery_for
from flink_agents.runtime.journal.calls import Outcome
from flink_agents.runtime.journal.records import END, SIGNAL, TIMEOUT, WaitRecord
from flink_agents.runtime.serde.declared_types import adapter_of
from flink_agents.runtime.serde.raised_texts import text_of
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredPause, StoredSignalWait, StoredWait

Fit = Callable[[Any], Any]
"""Converts a decoded value to the type that an action waits for; raises any exception if it does not fit."""

MAX_REASON = 1000
"""The most characters of the reason why a signal was rejected."""

W = TypeVar("W", bound=DurableWait)


class Pause(DurableWait):
    """A pause: ``ctx.sleep``. Its time ends it, or the end of the input if pauses are skipped then."""

    called = "ctx.sleep"

    __slots__ = ()

    @property
    def what(self) -> str:
        """The object of the wait, as text."""
        return "a pause"

    @property
    def awaited_as(self) -> str:
        """The user's call as text, for errors."""
        return f"ctx.sleep({self._seconds:g})"

    def open_wait(self) -> StoredWait:
        """Return the form in which state stores the pause."""
        return StoredPause(self._step.path, self.number.task, self.number.nth)

    def at_end_of_input(self, skips: bool) -> str | None:
        """Return the way in which the pause ends with the input."""
        return TIMEOUT if skips else None

    def value_of(self, record: WaitRecord) -> None:
        """Return None: the pause is over."""


class WaitForSignal(DurableWait):
    """A wait for a signal: ``ctx.wait_for_signal``. A signal ends it, its time, or the end of the input.

    Args:
        step: The execution of the action.
        delivery: Delivers outcomes to the action, in order.
        seconds: The timeout; None for no limit.
        name: Name of the signal.
        fit: Checks and converts its value; None if any value will do.

    Attributes:
        request: The approval request that the signal answers, as state stores it; or None.
    """

    called = "ctx.wait_for_signal"

    __slots__ = ("_fit", "_picked", "name", "request")

    def __init__(
        self, step: ActionRun, delivery: Delivery, seconds: float | None, name: str, fit: Fit | None
    ) -> None:
        super().__init__(step, delivery, seconds)
        self.name = name
        self._fit = fit
        self._picked: StoredSignal | None = None
        self.request: bytes | None = None

    @property
    def stored(self) -> StoredWait:
        """The form in which state stores the wait."""
        return replace(self.timed(), request=self.request)

    @property
    def what(self) -> str:
        """The object of the wait, as text."""
        return f"signal {self.name!r}"

    @property
    def awaited_as(self) -> str:
        """The user's call as text, for errors."""
        return f"ctx.wait_for_signal({self.name!r})"

    def open_wait(self) -> StoredWait:
        """Return the form in which state stores the wait."""
        return StoredSignalWait(self._step.path, self.number.task, self.number.nth, name=self.name)

    def at_end_of_input(self, skips: bool) -> str | None:
        """Return the way in which the wait ends with the input. No signal follows that."""
        return END

    def is_for(self, name: str) -> bool:
        """Return True if a signal of that name can end the wait."""
        return name == self.name

    def take_signal(self) -> bool:
        """End by a signal, if there is one for this wait. A signal that does not fit is rejected."""
        if self._is_closed:
            return False
        waits = self._waits
        wait_id = self.wait_id
        run = self.run
        while (signal := waits.mailbox.pick(self.name, wait_id, run)) is not None:
            if (wrong := self._wrong(signal)) is not None:
                waits.rejected.append((signal, wrong))
                waits.mailbox.remove_picked(signal)
                continue
            self._picked = signal
            self._end_by(
                SIGNAL, identity=signal.identity, value=signal.value, name=signal.name, wait=signal.wait
            )
            return True
        return False

    def value_of(self, record: WaitRecord) -> Any:
        """Return the value of the signal.

        Raises:
            NoMoreSignalsError: The input has ended.
            SignalTimeoutError: No signal came in time.
        """
        if record.end == SIGNAL:
            assert record.value is not None
            return self._typed(record.value)
        if record.end == END:
            raise NoMoreSignalsError(
                f"action {self._step.action.name!r} waits for {self.what}, and the input has ended",
                expected="a signal before the end of the input, or an action that catches this",
                found="the end of a bounded input, which no signal follows",
                fix="catch NoMoreSignalsError (flink_agents.api.errors) and continue without an answer; "
                "or let the stream of signals have no end",
            )
        # The wait may have ended before its timeout was removed from the code.
        limit = "its timeout" if self._seconds is None else f"{self._seconds:g} s"
        raise SignalTimeoutError(
            f"action {self._step.action.name!r} has waited for {self.what} for long enough",
            expected=f"a signal within {limit}",
            found="none",
            fix="catch this and continue without it, or raise timeout=",
        )

    def _mismatch(self, recorded: Outcome) -> str | None:
        """Return the object of the wait, as text, if it or its type was not recorded so; else None."""
        mismatch = super()._mismatch(recorded)
        if mismatch is None and isinstance(recorded, WaitRecord) and recorded.value is not None:
            wrong = self._misfit(recorded.value)
            return None if wrong is None else f"{self.what} of another type: {wrong}"
        return mismatch

    def _learned(self) -> None:
        """Use up the signal that ended the wait: the action learns of it."""
        signal = self._picked
        self._picked = None
        if signal is not None:
            self._waits.taken.append(signal.identity)
            self._waits.mailbox.remove_picked(signal)

    def _give_back(self) -> None:
        """Release the signal that would have ended the wait: the action never learns of it."""
        signal = self._picked
        self._picked = None
        if signal is not None:
            self._waits.mailbox.release_picked(signal)

    def _wrong(self, signal: StoredSignal) -> str | None:
        """Return the reason why a signal cannot end this wait; None if it can."""
        return self._misfit(signal.value) if signal.name == self.name else f"the wait is for {self.name!r}"

    def _misfit(self, value: bytes) -> str | None:
        """Return the reason why a value does not fit; None if it does."""
        try:
            self._typed(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what a user's validator raises, or a class that is gone
            return f"{type(error).__name__}: {text_of(error)}"[:MAX_REASON]
        return None

    def _typed(self, value: bytes) -> Any:
        """Return a value as the type that the action waits for; raises if it does not fit."""
        decoded = self._step.shared.codec.decode(value)
        return as_data(decoded if self._fit is None else isolated().run(self._fit, decoded))


def pause_of(step: ActionRun, delivery: Delivery | None, seconds: float) -> Pause:
    """Create a pause. It starts when it is awaited.

    Args:
        step: The execution of the action.
        delivery: The delivery of the code that runs; None if the code belongs to no action.
        seconds: Its duration.

    Raises:
        ContextMisuseError: The action cannot wait.
    """
    return _noted(Pause(step, delivery_for(step, delivery, Pause.called), seconds), step)


def signal_wait_of(
    step: ActionRun, delivery: Delivery | None, name: str, fit: Fit | None, seconds: float | None
) -> WaitForSignal:
    """Create a wait for a signal. It starts when it is awaited.

    Args:
        step: The execution of the action.
        delivery: The delivery of the code that runs; None if the code belongs to no action.
        name: Name of the signal.
        fit: Checks and converts its value; None if any value will do.
        seconds: The timeout; None for no limit.

    Raises:
        ContextMisuseError: The action cannot wait.
    """
    wait_delivery = delivery_for(step, delivery, WaitForSignal.called)
    return _noted(WaitForSignal(step, wait_delivery, seconds, name, fit), step)


def _noted(wait: W, step: ActionRun) -> W:
    """Note that a wait must be awaited, and return it."""
    assert step.run.waits is not None and step.delivery is not None
    step.run.waits.unawaited[wait] = step.delivery
    return wait


def fit_of(kind: Any) -> Fit | None:
    """Return a function that checks and converts the value of a signal; None if any value will do.

    Args:
        kind: The type that the action waits for, or None.

    Raises:
        ContextMisuseError: Pydantic does not know the type.
    """
    if kind is None:
        return None
    try:
        adapter = adapter_of(kind)
        if not adapter.pydantic_complete:
            adapter.rebuild()
    except Exception as error:  # a foreign type may raise anything where it is described
        raise ContextMisuseError(
            f"ctx.wait_for_signal is given a type that no value can be checked against: {kind!r}"[:500],
            expected="a type that pydantic knows, or None for any value",
            found=f"{type(error).__name__}: {error}"[:500],
            fix="wait for a pydantic model, a dataclass, or a type such as int or list[str]",
        ) from error
    return adapter.validate_python
