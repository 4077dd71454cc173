"""What actions await of their pauses and waits for signals: how these begin, and by what errors they end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import (
    ContextMisuseError,
    MissingAwaitError,
    NoMoreSignalsError,
    RunDeadlineError,
    SignalTimeoutError,
)
from flink_agents.api.events.signals import SignalWait
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.delivery import Delivery
from flink_agents.runtime.execution.waits.run_waits import DEADLINE, END, SIGNAL, Fit, OutlastingWait, typed
from flink_agents.runtime.serde.awaitables import told
from flink_agents.runtime.serde.declared_types import adapter_of

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun


class AwaitedWait(SignalWait[Any]):
    """What an action awaits of a wait.

    Args:
        wait: The wait.
        step: The execution of the action.
        fit: Makes of a signal's value what the action waits for; None where any value will do.
        seconds: How long it may take, for people.
    """

    def __init__(self, wait: OutlastingWait, step: ActionRun, fit: Fit | None, seconds: float | None) -> None:
        self._wait = wait
        self._step = step
        self._fit = fit
        self._seconds = seconds

    @property
    def awaited_as(self) -> str:
        """What the author wrote, for errors about a forgotten ``await``."""
        name = self._wait.name
        return f"ctx.sleep({self._seconds:g})" if name is None else f"ctx.wait_for_signal({name!r})"

    @property
    def id(self) -> str:
        """The text that names the wait."""
        self._used()
        self._step.run.identify()
        return self._wait.id

    @property
    def deadline(self) -> int | None:
        """When the wait ends by itself, in milliseconds since the epoch; None for never."""
        waits = self._step.run.waits
        ends = [self._wait.plan(), None if waits is None else waits.over]
        return min((at for at in ends if at is not None), default=None)

    def __await__(self) -> Generator[Any, Any, Any]:
        self._used()
        return self._value().__await__()

    def _used(self) -> None:
        """Note that the wait is not forgotten."""
        if self._step.run.waits is not None:
            self._step.run.waits.unawaited.pop(self, None)

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
            return typed(self._step.shared.codec, self._fit, record.value)
        if record.end == END:
            raise NoMoreSignalsError(
                f"action {self._step.action.name!r} waits for {self._wait.what}, and the input has ended",
                expected="a signal before the end of the input, or an action that catches this",
                found="the end of a bounded input, which no signal follows",
                fix="catch NoMoreSignalsError (flink_agents.api.errors) and go on without an answer; "
                "or let the stream of signals have no end",
            )
        raise SignalTimeoutError(
            f"action {self._step.action.name!r} has waited for {self._wait.what} for long enough",
            expected=f"a signal within {self._seconds:g} s",
            found="none",
            fix="catch this and go on without it, or raise timeout=",
        )


def wait_of(
    step: ActionRun, delivery: Delivery | None, name: str | None, fit: Fit | None, seconds: float | None
) -> AwaitedWait:
    """Make a wait of an action, which begins when it is awaited.

    Args:
        step: The execution of the action.
        delivery: That of the code that runs; None where it belongs to none.
        name: Name of the signal; None for a pause.
        fit: Makes of a signal's value what the action waits for; None where any value will do.
        seconds: How long it takes, or may take; None for ever.

    Raises:
        ContextMisuseError: The action cannot wait so.
    """
    called = "ctx.sleep" if name is None else "ctx.wait_for_signal"
    if step.run.waits is None and not step.shared.may_wait:
        raise ContextMisuseError(
            f"action {step.action.name!r} calls {called}, and nothing told that its code does",
            expected=f"an action that calls {called} itself, or in code of its own modules",
            found="code that no action of the agent was seen to lead to",
            fix="set the option run.may-suspend to true",
        )
    if delivery is None or delivery is not step.delivery or delivery.main is None or step.run.waits is None:
        raise ContextMisuseError(
            f"action {step.action.name!r} calls {called}, but is no async def",
            expected="an async def action, whose own task or tasks wait",
            found="a def action, or code outside of the action",
            fix=f"write async def, and await {called}(...)",
        )
    wait = AwaitedWait(OutlastingWait(step, delivery, name, fit, seconds), step, fit, seconds)
    step.run.waits.unawaited[wait] = delivery
    return wait


def check_waits_awaited(step: ActionRun) -> None:
    """Check that an execution that ended well has awaited its waits, of which no other does anything.

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
        # The wait may be that of a task which was cancelled before it began.
        return
    called = told(forgotten)
    raise MissingAwaitError(
        f"action {step.action.name!r} ended without awaiting {called}: it did not wait",
        expected="an await, or a task, for each pause and each wait for a signal",
        found="a wait that nobody awaited",
        fix=f"write await {called}; make no wait that is not awaited",
    )


def fit_of(kind: Any) -> Fit | None:
    """Return what makes of a signal's value what an action waits for; None where any value will do.

    Args:
        kind: The type that it waits for, or None.

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
