"""The entries of ``pending``: what waits in the state of a key, each with its kind.

An entry of version 2 is the version, a byte for the kind, and the bytes of what waits. Version 1 knew inputs
only, and wrote their ``codec`` bytes alone. What a run records of its input is the digest of these ``codec``
bytes, so that it does not depend on the version of the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from flink_agents.api.errors import StateError, StateFormatError
from flink_agents.runtime.serde.codec import VERSION, ValueCodec
from flink_agents.runtime.state.slots import MapSlot


class PendingKind(IntEnum):
    """What an entry is.

    Attributes:
        INPUT: An input that waits for its run. Its bytes are those of ``[record, timestamp]``.
        RESUMPTION: A suspended run: all that is left of it (``state.suspended``).
        SIGNAL: The signals of the key, which wait for a run or were taken by one (``state.mailbox``).
        WAKE_UP: What resumes a released run. It has its turn as an input has.
    """

    INPUT = 0
    RESUMPTION = 1
    SIGNAL = 2
    WAKE_UP = 3


_VERSION = 2
_INPUT = bytes((_VERSION, PendingKind.INPUT))
_RESUMPTION = bytes((_VERSION, PendingKind.RESUMPTION))
_SIGNAL = bytes((_VERSION, PendingKind.SIGNAL))
_WAKE_UP = bytes((_VERSION, PendingKind.WAKE_UP))

_MAILBOX = -(2**62)
"""Number of the entry that has the signals of a key. The run of input ``n`` is suspended under ``-1 - n``."""


def pack_input(packed: bytes) -> bytes:
    """The entry of an input, of which ``packed`` are the bytes."""
    return _INPUT + packed


def unpack_input(entry: bytes) -> bytes:
    """The bytes of the input, or of the wake-up, that ``entry`` holds.

    Raises:
        StateFormatError: The entry is of a kind that this version cannot act upon.
    """
    if entry[:1] != _INPUT[:1]:
        # An entry of version 1 has no kind. Any other version is refused where the bytes are decoded.
        return entry
    if entry[1:2] not in (_INPUT[1:], _WAKE_UP[1:]):
        raise StateFormatError(
            "what waits in the state of a key is of a kind that this version cannot act upon",
            expected=f"kind {PendingKind.INPUT.value} (an input)",
            found=f"kind {entry[1]}" if len(entry) > 1 else "no kind",
            fix="run the version of flink-agents-python that wrote it, or a newer one",
        )
    return entry[2:]


@dataclass(frozen=True)
class UnreadableInput:
    """Stands for an input whose class was renamed, removed or changed while the input waited.

    Attributes:
        packed: The bytes of the input and its timestamp.
        error: What is wrong with them.
    """

    packed: bytes
    error: StateError


def read_input(codec: ValueCodec, packed: bytes) -> tuple[Any, int | None]:
    """Return the input and the timestamp that ``packed`` are the bytes of.

    An input that this code cannot read is an :class:`UnreadableInput`: its run ends as ``on_error`` says.

    Raises:
        StateFormatError: The bytes are of an unknown version, or corrupt.
    """
    try:
        record, timestamp, *_ = codec.decode(packed)
    except StateError as error:
        return UnreadableInput(packed, error), _timestamp(packed, error)
    return record, timestamp


def _timestamp(packed: bytes, error: StateError) -> int | None:
    """The timestamp of an input that cannot be read."""
    parts = msgpack.Unpacker(strict_map_key=False)
    parts.feed(packed[1:])
    try:
        if packed[:1] != VERSION or parts.read_array_header() < 2:
            raise error
        parts.skip()
        return parts.unpack()
    except (ValueError, msgpack.UnpackException):
        raise error from None


class PendingInputs:
    """The inputs that wait, by number, of whatever key is current.

    Args:
        entries: The entries in state.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: MapSlot[int]) -> None:
        self._entries = entries

    def get(self, key: int) -> bytes | None:
        """The bytes of input ``key``, or None."""
        entry = self._entries.get(key)
        return None if entry is None else unpack_input(entry)

    def put(self, key: int, value: bytes) -> None:
        """Let an input wait under the number ``key``."""
        self._entries.put(key, pack_input(value))

    def put_wake_up(self, key: int, value: bytes) -> None:
        """Let a wake-up wait for its turn under the number ``key``."""
        self._entries.put(key, _WAKE_UP + value)

    def remove(self, key: int) -> None:
        """Remove input ``key``."""
        self._entries.remove(key)

    def items(self) -> Iterable[tuple[int, bytes]]:
        """All inputs that wait, and wake-ups."""
        return [(number, unpack_input(entry)) for number, entry in self._entries.items() if number >= 0]

    def inputs_and_wake_ups(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """All inputs that wait, and the numbers of the wake-ups."""
        inputs, wake_ups = list[tuple[int, bytes]](), list[int]()
        for number, entry in self._entries.items():
            if entry[:2] == _WAKE_UP:
                wake_ups.append(number)
            elif number >= 0:
                inputs.append((number, unpack_input(entry)))
        return inputs, wake_ups

    # -- other entries ----------------------------------------------------------------

    def suspended(self, key: int) -> bytes | None:
        """What is left of the suspended run of input ``key``, or None."""
        return _content(self._entries.get(-1 - key), _RESUMPTION)

    def suspend(self, key: int, value: bytes) -> None:
        """Keep what is left of the run of input ``key``."""
        self._entries.put(-1 - key, _RESUMPTION + value)

    def end_suspension(self, key: int) -> None:
        """Remove what was left of the run of input ``key``."""
        self._entries.remove(-1 - key)

    def mailbox(self) -> bytes | None:
        """The signals of the key, or None."""
        return _content(self._entries.get(_MAILBOX), _SIGNAL)

    def put_mailbox(self, value: bytes | None) -> None:
        """Keep the signals of the key; None where there is nothing to keep."""
        if value is None:
            self._entries.remove(_MAILBOX)
        else:
            self._entries.put(_MAILBOX, _SIGNAL + value)


def _content(entry: bytes | None, kind: bytes) -> bytes | None:
    """The bytes of an entry of that kind.

    Raises:
        StateFormatError: The entry is of another kind.
    """
    if entry is None:
        return None
    if entry[:2] != kind:
        raise StateFormatError(
            "what waits in the state of a key is of a kind that does not belong there",
            expected=f"version {_VERSION}, kind {kind[1]}",
            found=repr(entry[:2]),
            fix="run the version of flink-agents-python that wrote it, or a newer one",
        )
    return entry[2:]
