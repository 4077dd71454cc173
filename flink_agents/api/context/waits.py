"""Methods of an action's context for waits that outlast an execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.common.durations import LONGEST, seconds_of
from flink_agents.api.errors import ContextMisuseError, InvalidDurationError
from flink_agents.api.events.approvals import ApprovalOutcome, Check, plain
from flink_agents.api.events.signals import SignalWait, is_text

_T = TypeVar("_T")


class WaitMethods(AwaitedMethods, ABC):
    """Pauses, waits for signals, and approval requests."""

    def sleep(self, duration: float | timedelta) -> Coroutine[Any, Any, None]:
        """Return an awaitable pause that survives restarts; for ``async def`` actions.

        If a run waits for nothing else, it is suspended: it uses state and a timer, but no memory and no slot
        of ``run.max-in-flight``. Meanwhile, other inputs of its key wait, or run, as ``on_suspend`` of the
        agent says. The pause ends once, and never early.

        Args:
            duration: Duration in seconds or as a timedelta. Below 0 counts as 0.

        Raises:
            InvalidDurationError: The duration is invalid.
            ContextMisuseError: The action is not ``async def``.
        """
        return self._wait_for_pause(_seconds_of("ctx.sleep", duration))

    @overload
    def wait_for_signal(
        self, name: str, signal_type: type[_T], *, timeout: float | timedelta | None = None
    ) -> SignalWait[_T]: ...
    @overload
    def wait_for_signal(
        self, name: str, signal_type: Any = None, *, timeout: float | timedelta | None = None
    ) -> SignalWait[Any]: ...
    def wait_for_signal(
        self, name: str, signal_type: Any = None, *, timeout: float | timedelta | None = None
    ) -> SignalWait[Any]:
        """Return an awaitable wait for a signal of the key; for ``async def`` actions.

        The run is suspended as in :meth:`sleep`, and emits its outputs then. The signal may come before the
        wait does. It ends one wait, once.

        Args:
            name: Name of the signal.
            signal_type: Type of the value: a pydantic model, a dataclass, or another type that pydantic
                supports. Default: the value as it came.
            timeout: Longest wait, in seconds or as a timedelta. Default: no limit. It survives restarts;
                ``asyncio.timeout`` would start again.

        Returns:
            An awaitable of the signal's value. Its ``id`` is the id of the wait.

        Raises:
            SignalTimeoutError: When awaited: no signal came in time.
            NoMoreSignalsError: When awaited: the input has ended, so no signal will come.
            ContextMisuseError: The action is not ``async def``, the name is not a string, or pydantic does
                not support the type.
            InvalidDurationError: The timeout is invalid.
        """
        if not is_text(name):
            raise ContextMisuseError(
                "ctx.wait_for_signal needs the name of a signal",
                expected="a string",
                found=f"{type(name).__qualname__} {name!r}"[:200],
                fix='name the signal, as in ctx.wait_for_signal("approval"); ctx.sleep is for pauses',
            )
        return self._signal_wait(name, signal_type, timeout_of("ctx.wait_for_signal", timeout))

    async def request_approval(
        self,
        what: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | timedelta | None = None,
        check: Check | None = None,
    ) -> ApprovalOutcome:
        """Request an approval from a person, and wait for the answer; for ``async def`` actions.

        When the run is suspended, the request goes to the stream ``approvals()`` of the applied agent; its
        outcome goes there, too. A denial and a timeout are results, not errors.

        Args:
            what: What to approve, as text for the person.
            arguments: Arguments by name; values that JSON can hold.
            timeout: Time after which it counts as denied, in seconds or as a timedelta. Default: never.
            check: Raises an exception for arguments that an answer must not contain. Such an answer is an
                unmatched signal, and the run continues to wait. Default: an answer has no other names than
                ``arguments``.

        Raises:
            ContextMisuseError: The action is not ``async def``, or ``what`` is not a string.
            InvalidDurationError: The timeout is invalid.
        """
        if not isinstance(what, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ContextMisuseError(
                "ctx.request_approval needs a description of what to approve",
                expected="a string",
                found=f"{type(what).__qualname__} {what!r}"[:200],
                fix='describe it for the person, as in ctx.request_approval("refund", {"order": 7})',
            )
        shown = plain(dict(arguments or {}))
        return await self._wait_for_approval(what, shown, timeout_of("ctx.request_approval", timeout), check)

    @abstractmethod
    def _wait_for_approval(
        self, what: str, arguments: Mapping[str, Any], seconds: float | None, check: Check | None
    ) -> Awaitable[ApprovalOutcome]: ...

    @abstractmethod
    def _wait_for_pause(self, seconds: float) -> Coroutine[Any, Any, None]: ...

    @abstractmethod
    def _signal_wait(self, name: str, signal_type: Any, seconds: float | None) -> SignalWait[Any]: ...


def _seconds_of(called: str, duration: float | timedelta, further_fix: str = "") -> float:
    """Return the duration that was passed to the method ``called``, in seconds; below 0 counts as 0."""

    def refuse(found: str) -> InvalidDurationError:
        return InvalidDurationError(
            f"invalid duration of {called}",
            expected=f"seconds or a timedelta, at most {LONGEST.days} days",
            found=found,
            fix=f"pass the time from now on, such as 60 or timedelta(hours=1){further_fix}",
        )

    return seconds_of(duration, refuse)


def timeout_of(called: str, timeout: float | timedelta | None) -> float | None:
    """Return the timeout that was passed to a method of the context, in seconds; None for no limit.

    Args:
        called: Name of the method, such as ``ctx.join``, for the error.
        timeout: Seconds or a timedelta; below 0 counts as 0. None for no limit.

    Raises:
        InvalidDurationError: It is not a number, or longer than 365,000 days.
    """
    return None if timeout is None else _seconds_of(called, timeout, "; None waits without a limit")
