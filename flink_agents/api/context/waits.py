"""The methods of an action's context that wait for what outlasts an execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.common.durations import LONGEST, seconds_of
from flink_agents.api.errors import ContextMisuseError, InvalidDurationError
from flink_agents.api.events.approvals import ApprovalOutcome, Check, plain
from flink_agents.api.events.signals import SignalWait, is_text

_T = TypeVar("_T")


class WaitMethods(AwaitedMethods, ABC):
    """Pauses, waits for signals, and requests for approvals."""

    def sleep(self, duration: float | timedelta) -> Awaitable[None]:
        """Return a pause, to be awaited, that survives restarts; for ``async def`` actions.

        Where a run waits for nothing else it is suspended: it costs state and a timer, and neither memory
        nor one of the places of ``run.max-in-flight``. Its key waits meanwhile. The pause ends once, and
        never before its time.

        Args:
            duration: How long, in seconds or as a timedelta. Below 0 is 0.

        Raises:
            InvalidDurationError: The duration is none.
            ContextMisuseError: The action is no ``async def``, or nothing told that its code waits.
        """
        return self._pause(_seconds_of("ctx.sleep", duration))

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
        """Return a wait for a signal of the key, to be awaited; for ``async def`` actions.

        A run that waits is suspended as by :meth:`sleep`; its outputs leave then. The signal may
        come before the wait does. It ends one wait, once.

        Args:
            name: Name of the signal.
            signal_type: Type of the value: a pydantic model, a dataclass, or any other type that pydantic
                describes. Default: the value as it came.
            timeout: How long to wait at most, in seconds or as a timedelta. Default: for ever.

        Returns:
            What gives the value of the signal. Its ``id`` names the wait.

        Raises:
            SignalTimeoutError: When awaited: there was none in time.
            NoMoreSignalsError: When awaited: the input has ended, so that none will come.
            ContextMisuseError: The action is no ``async def``, nothing told that its code waits, the name is
                no text, or pydantic does not know the type.
            InvalidDurationError: The timeout is none.
        """
        if not is_text(name):
            raise ContextMisuseError(
                "ctx.wait_for_signal needs the name of a signal",
                expected="a text",
                found=f"{type(name).__qualname__} {name!r}"[:200],
                fix='name the signal, as in ctx.wait_for_signal("approval"); ctx.sleep is for pauses',
            )
        return self._signal_wait(name, signal_type, _timeout_of("ctx.wait_for_signal", timeout))

    async def request_approval(
        self,
        what: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | timedelta | None = None,
        check: Check | None = None,
    ) -> ApprovalOutcome:
        """Ask a person for an approval, and wait for the answer; for ``async def`` actions.

        The request goes to the stream ``approvals()`` of the applied agent when the run is suspended, and how
        it ended goes there as well. A denial is a result, and so is the end of the time to answer.

        Args:
            what: What is to be done, for those who decide.
            arguments: With what, by name; values that become JSON.
            timeout: After which time it counts as denied, in seconds or as a timedelta. Default: never.
            check: Raises an exception for arguments that an answer must not bring. Such an answer is a
                unmatched signal, and the run waits on. Default: any arguments.

        Raises:
            ContextMisuseError: The action is no ``async def``, nothing told that its code waits, or ``what``
                is no text.
            InvalidDurationError: The timeout is none.
        """
        if not isinstance(what, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ContextMisuseError(
                "ctx.request_approval needs to know what is to be done",
                expected="a text",
                found=f"{type(what).__qualname__} {what!r}"[:200],
                fix='say it to those who decide, as in ctx.request_approval("refund", {"order": 7})',
            )
        shown = plain(dict(arguments or {}))
        return await self._approval(what, shown, _timeout_of("ctx.request_approval", timeout), check)

    @abstractmethod
    def _approval(
        self, what: str, arguments: Mapping[str, Any], seconds: float | None, check: Check | None
    ) -> Awaitable[ApprovalOutcome]: ...

    @abstractmethod
    def _pause(self, seconds: float) -> Awaitable[None]: ...

    @abstractmethod
    def _signal_wait(self, name: str, signal_type: Any, seconds: float | None) -> SignalWait[Any]: ...


def _seconds_of(called: str, duration: float | timedelta, otherwise: str = "") -> float:
    def refuse(found: str) -> InvalidDurationError:
        return InvalidDurationError(
            f"{called} is given a time that is none",
            expected=f"seconds or a timedelta, at most {LONGEST.days} days",
            found=found,
            fix=f"give the time from now on, such as 60 or timedelta(hours=1){otherwise}",
        )

    return seconds_of(duration, refuse)


def _timeout_of(called: str, timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else _seconds_of(called, timeout, "; None waits for ever")
