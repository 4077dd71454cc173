"""Signals: messages for waiting runs, and signals that no run received."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from flink_agents.api.common.awaited import Awaited

T_co = TypeVar("T_co", covariant=True)

UNMATCHED_SIGNALS_TAG = "unmatched-signals"
"""Name of the side output that carries :class:`UnmatchedSignal` records."""


@dataclass(frozen=True)
class Signal:
    """A message for a run of a key that waits for it, now or later.

    Attributes:
        name: The name in ``ctx.wait_for_signal(name)``.
        value: The value that the wait returns; state must be able to hold it.
        key: The key of the run, if the stream of signals has no key selector.
        id: Id of the signal within its key. A second signal with the same id is unmatched. Without ids, each
            signal counts.
        wait: Id of its wait. It is needed if several waits for that name are open.
    """

    name: str
    value: Any = None
    key: Any = None
    id: str | None = None
    wait: str | None = None


@dataclass(frozen=True)
class TaggedSignal:
    """The mark of a signal among the inputs of an agent, which share one stream.

    Attributes:
        signal: The signal itself.
    """

    signal: Signal


class UnmatchedReason(StrEnum):
    """The reason why no run received a signal.

    Attributes:
        DUPLICATE: A signal with its id came before, or the wait that it names has ended.
        AMBIGUOUS: Several waits for its name are open, and it names none of them.
        OVERFLOW: The key already had the maximum number of waiting signals (``signals.max-per-key``).
        EXPIRED: No run received it in time (``signals.ttl``).
        END_OF_INPUT: The input and all runs ended before a run received it.
        INVALID: Its value does not have the type that the run waits for, or state cannot hold it; or its
            name, ``id`` or ``wait`` is not a string.
    """

    DUPLICATE = "duplicate"
    AMBIGUOUS = "ambiguous"
    OVERFLOW = "overflow"
    EXPIRED = "expired"
    END_OF_INPUT = "end-of-input"
    INVALID = "invalid"


def is_text(value: object) -> bool:
    """Return True if ``value`` is a string that state can hold, as required for names and ids of signals."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class TimersAtEnd(StrEnum):
    """Policy for runs that sleep, and for delayed events, when a bounded input ends.

    Attributes:
        WAIT: The job waits until they have ended.
        SKIP: Pauses end, and delayed events come, at once.
    """

    WAIT = "wait"
    SKIP = "skip"


@dataclass(frozen=True)
class UnmatchedSignal:
    """A signal that no run received.

    Attributes:
        signal: The signal, with its key.
        reason: The reason why no run received it.
        detail: The problem of an invalid or unreadable signal; what has ended, if it names a wait that
            is over; otherwise None.
    """

    signal: Signal
    reason: UnmatchedReason
    detail: str | None = None


class SignalWait(Awaited[T_co]):
    """A wait for a signal, to be awaited once."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of the wait, for :attr:`Signal.wait`; the same on replay."""
        ...
