"""The entries of ``pending``: the inputs of a key that wait, and other entries, each with its kind.

An entry consists of its version, a byte for its kind, and its content: for an input, its ``codec`` bytes. A
run records the digest of these, so it does not depend on the version of the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from flink_agents.api.errors import StateError, StateFormatError
from flink_agents.runtime.serde.codec import FIX_VERSION, VERSION, ValueCodec, unknown_version
from flink_agents.runtime.state.mailbox import Mailbox
from flink_agents.runtime.state.slots import MapSlot
from flink_agents.runtime.state.suspended import Suspension


class PendingKind(IntEnum):
    """The kind of an entry.

    Attributes:
        INPUT: An input that waits for its run: the bytes of ``[record, timestamp]``.
        RESUMPTION: A suspended run (``state.suspended``).
        SIGNAL: The signals of the key, which wait for a run or were taken by one (``state.mailbox``).
        WAKE_UP: Resumes a suspended run that does not block its key. It has its turn like an input.
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
"""Number of the entry with the signals of a key. The run of input ``n`` is suspended under ``-1 - n``."""


def pack_input(packed: bytes) -> bytes:
    """Return the entry of ``pending`` for an input, from the input's ``codec`` bytes."""
    return _INPUT + packed


def unpack_input(entry: bytes) -> bytes:
    """Return the ``codec`` bytes of the input, or of the wake-up, in an entry of ``pending``.

    Raises:
        StateFormatError: This version does not support the entry, or its kind.
    """
    if entry[:1] != _INPUT[:1]:
        raise unknown_version("an input in keyed state", entry, _INPUT[:1])
    if entry[1:2] not in (_INPUT[1:], _WAKE_UP[1:]):
        raise StateFormatError(
            "unsupported entry in keyed state: an input of a kind that this version does not know",
            expected=f"kind {PendingKind.INPUT.value} (an input)",
            found=f"kind {entry[1]}" if len(entry) > 1 else "no kind",
            fix=FIX_VERSION,
        )
    return entry[2:]


@dataclass(frozen=True)
class UnreadableInput:
    """Replaces an input whose class was renamed, removed or changed while the input waited.

    Attributes:
        packed: The ``codec`` bytes of the pair of input and event time.
        error: The error that reading them raised.
    """

    packed: bytes
    error: StateError


def read_input(codec: ValueCodec, packed: bytes) -> tuple[Any, int | None]:
    """Return an input and its event time (milliseconds, or None) from their bytes.

    If the present code cannot read the input, an :class:`UnreadableInput` replaces it: its run ends as
    ``on_error`` says.

    Raises:
        StateFormatError: The bytes are of an unknown version, or corrupt.
    """
    try:
        record, timestamp, *_ = codec.decode(packed)
    except StateError as error:
        return UnreadableInput(packed, error), _timestamp(packed, error)
    return record, timestamp


def _timestamp(packed: bytes, error: StateError) -> int | None:
    """Return the event time of an input that cannot be read; raise ``error`` if the bytes are corrupt."""
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
    """The state ``pending`` of the current key: waiting inputs, wake-ups, suspended runs, and signals.

    Args:
        entries: The entries in state.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: MapSlot[int]) -> None:
        self._entries = entries

    def get(self, number: int) -> bytes | None:
        """Return the bytes of the input or wake-up with a number; None if it does not wait."""
        entry = self._entries.get(number)
        return None if entry is None else unpack_input(entry)

    def put_input(self, number: int, packed: bytes) -> None:
        """Store the bytes of an input under its number, from 0 on."""
        self._entries.put(number, pack_input(packed))

    def put_wake_up(self, number: int, packed: bytes) -> None:
        """Store the bytes of a wake-up under its number, which is one of the inputs' numbers."""
        self._entries.put(number, _WAKE_UP + packed)

    def remove(self, number: int) -> None:
        """Remove the input or wake-up with a number."""
        self._entries.remove(number)

    def items(self) -> Iterable[tuple[int, bytes]]:
        """Return number and bytes of all waiting inputs and wake-ups, in any order."""
        return [(number, unpack_input(entry)) for number, entry in self._entries.items() if number >= 0]

    def inputs_and_wake_ups(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Return number and bytes of all waiting inputs, and the numbers of the wake-ups."""
        inputs = list[tuple[int, bytes]]()
        wake_ups = list[int]()
        for number, entry in self._entries.items():
            if entry[:2] == _WAKE_UP:
                wake_ups.append(number)
            elif number >= 0:
                inputs.append((number, unpack_input(entry)))
        return inputs, wake_ups

    # -- other entries ----------------------------------------------------------------

    def suspension(self, number: int) -> Suspension | None:
        """Return the stored form of the suspended run of input ``number``; None if it is not suspended."""
        packed = _content(self._entries.get(-1 - number), _RESUMPTION)
        return None if packed is None else Suspension.unpack(packed)

    def suspend(self, suspension: Suspension) -> None:
        """Store a suspended run under the number of its input."""
        self._entries.put(-1 - suspension.number, _RESUMPTION + suspension.pack())

    def end_suspension(self, number: int) -> None:
        """Remove the suspended run of input ``number``."""
        self._entries.remove(-1 - number)

    def mailbox(self) -> Mailbox:
        """Return the signals of the key; an empty mailbox if there are none."""
        return Mailbox.unpack(_content(self._entries.get(_MAILBOX), _SIGNAL))

    def put_mailbox(self, mailbox: Mailbox) -> None:
        """Store the signals of the key; remove the entry if there are none."""
        packed = mailbox.pack()
        if packed is None:
            self._entries.remove(_MAILBOX)
        else:
            self._entries.put(_MAILBOX, _SIGNAL + packed)


def _content(entry: bytes | None, kind: bytes) -> bytes | None:
    """Return the content of an entry, after its version and kind; None for None.

    Raises:
        StateFormatError: The entry is of another kind.
    """
    if entry is None:
        return None
    if entry[:2] != kind:
        raise StateFormatError(
            "unexpected entry in keyed state: an input of another kind",
            expected=f"version {_VERSION}, kind {kind[1]}",
            found=repr(entry[:2]),
            fix=FIX_VERSION,
        )
    return entry[2:]
