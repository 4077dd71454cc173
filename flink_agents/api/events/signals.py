"""Signals: messages for runs that wait, and what becomes of those that no run takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

UNMATCHED_SIGNALS_TAG = "unmatched-signals"
"""Name of the side output that carries :class:`UnmatchedSignal` records."""


@dataclass(frozen=True)
class Signal:
    """A message for a run of a key that waits for it, or will.

    Attributes:
        name: What the run waits for: ``ctx.wait_for_signal(name)``.
        value: What it says: a value that state can hold.
        key: The key, where the stream of signals has no key selector of its own.
        id: What distinguishes it from others of its key. A second signal of the same id is unmatched. Without
            one, each counts.
        wait: The id of the wait that it is for. Needed where several waits for that name are open.
    """

    name: str
    value: Any = None
    key: Any = None
    id: str | None = None
    wait: str | None = None


@dataclass(frozen=True)
class TaggedSignal:
    """A signal among the inputs of an agent.

    Attributes:
        signal: The signal.
    """

    signal: Signal


class UnmatchedReason(StrEnum):
    """Why no run took a signal.

    Attributes:
        DUPLICATE: One of its id has come before, or the wait that it names has ended.
        AMBIGUOUS: Several waits for its name are open that no signal has come for, and it names none of them.
        OVERFLOW: As many signals of the key as may wait did so (``signals.max-per-key``).
        EXPIRED: No run took it in time (``signals.ttl``).
        END_OF_INPUT: The input has ended, and all runs, before one took it.
        INVALID: What it says is not of the type that the run waits for, or state cannot hold it and give it
            back; or its name, ``id`` or ``wait`` is no text.
    """

    DUPLICATE = "duplicate"
    AMBIGUOUS = "ambiguous"
    OVERFLOW = "overflow"
    EXPIRED = "expired"
    END_OF_INPUT = "end-of-input"
    INVALID = "invalid"


def is_text(value: object) -> bool:
    """Return whether ``value`` is a text that state can hold, as names and ids of signals have to be."""
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
        WAIT: The job ends when they have ended.
        SKIP: Pauses end at once, and delayed events come at once.
    """

    WAIT = "wait"
    SKIP = "skip"


@dataclass(frozen=True)
class UnmatchedSignal:
    """A signal that no run took.

    Attributes:
        signal: The signal, with the key that it was for.
        reason: Why none did.
        detail: What is wrong with an invalid one, or with one that cannot be read any more; else None.
    """

    signal: Signal
    reason: UnmatchedReason
    detail: str | None = None


class SignalWait(Awaitable[T_co], Protocol[T_co]):
    """A wait for a signal, to be awaited once."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The text that names the wait, for :attr:`Signal.wait`; the same on replay."""
        ...
