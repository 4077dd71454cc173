"""What actions await of their pauses and waits for signals: how these begin, and by what errors they end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import (
    ContextMisuseError,
    NoMoreSignalsError,
    RunDeadlineError,
    SignalTimeoutError,
)
from flink_agents.api.options import AgentOptions
from flink_agents.api.signals import SignalWait
from flink_agents.runtime.execution.delivery import Delivery
from flink_agents.runtime.execution.waits.run_waits import DEADLINE, END, SIGNAL, OutlastingWait, typed

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun


class AwaitedWait(SignalWait[Any]):
    """What an action awaits of a wait.

    Args:
        wait: The wait.
        step: The execution of the action.
        kind: Type of the signal's value; None for any.
        seconds: How long it may take, for people.
    """

    def __init__(self, wait: OutlastingWait, step: ActionRun, kind: Any, seconds: float | None) -> None:
        self._wait = wait
        self._step = step
        self._kind = kind
        self._seconds = seconds

    @property
    def id(self) -> str:
        """The text that names the wait."""
        self._step.run.identify()
        return self._wait.id

    @property
    def deadline(self) -> int | None:
        """When the wait ends by itself, in milliseconds since the epoch; None for never."""
        waits = self._step.run.waits
        ends = [self._wait.plan(), None if waits is None else waits.over]
        return min((at for at in ends if at is not None), default=None)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._value().__await__()

    async def _value(self) -> Any:
        self._step.guard()
        record = await self._wait.outcome()
        if record.end == DEADLINE:
            raise RunDeadlineError(
                f"action {self._step.action.name!r} waits for {self._wait.what}, "
                "and its run has taken for too long",
                expected=f"a run that ends within {AgentOptions.RUN_DEADLINE.key}",
                found="a wait that the end of that time has met",
                fix="catch this and end without further waits, or raise the option",
            )
        if self._wait.name is None:
            return None
        if record.end == SIGNAL:
            assert record.value is not None
            return typed(self._step.shared.codec, self._kind, record.value)
        if record.end == END:
            raise NoMoreSignalsError(
                f"action {self._step.action.name!r} waits for {self._wait.what}, and the input has ended",
                expected="a signal before the end of the input, or an action that catches this",
                found="the end of a bounded input, which no signal follows",
                fix="let the stream of signals end last, or go on without one",
            )
        raise SignalTimeoutError(
            f"action {self._step.action.name!r} has waited for {self._wait.what} for long enough",
            expected=f"a signal within {self._seconds:g} s",
            found="none",
            fix="catch this and go on without it, or raise timeout=",
        )


def wait_of(
    step: ActionRun, delivery: Delivery | None, name: str | None, kind: Any, seconds: float | None
) -> AwaitedWait:
    """Make a wait of an action, which begins when it is awaited.

    Args:
        step: The execution of the action.
        delivery: That of the code that runs; None where it belongs to none.
        name: Name of the signal; None for a pause.
        kind: Type of the signal's value; None for any.
        seconds: How long it takes, or may take; None for ever.

    Raises:
        ContextMisuseError: The action cannot wait so.
    """
    called = "ctx.sleep" if name is None else "ctx.wait_for"
    if step.run.waits is None and not step.shared.may_wait:
        raise ContextMisuseError(
            f"action {step.action.name!r} calls {called}, and nothing told that its code does",
            expected=f"an action that calls {called} itself, or in code of its own modules",
            found="code that no action of the agent was seen to lead to",
            fix="set the option run.waits to true",
        )
    if delivery is None or delivery is not step.delivery or delivery.main is None or step.run.waits is None:
        raise ContextMisuseError(
            f"action {step.action.name!r} calls {called}, but is no async def",
            expected="an async def action, whose own task or tasks wait",
            found="a def action, or code outside of the action",
            fix=f"write async def, and await {called}(...)",
        )
    return AwaitedWait(OutlastingWait(step, delivery, name, kind, seconds), step, kind, seconds)
