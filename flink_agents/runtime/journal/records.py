"""The contents of journal records, and their bytes.

The store handles the identity of a record (kind, sequence number, step, index). This module handles its data,
and splits records into appends that a store accepts.
All data is ``codec`` bytes, whose first byte is a version. They contain a list: the number of the layout, and
all fields of the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flink_agents.api.action_state import Record, check_records
from flink_agents.api.errors import StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.canonical import DIGEST_BYTES, digest_with_fields
from flink_agents.runtime.serde.codec import FIX_VERSION, ValueCodec

LAYOUT = 1
"""The number of the layout that all records have. A record with another number is rejected."""

FRAME = 64
"""An upper bound for the bytes that a store uses for a record besides its data and its step."""

RECORD_FRAME = 64
"""An upper bound for the bytes of a call's record besides its identity, value and error."""

END_OF_PART = 2**62
"""The index of the record which says that a part of the run ends after the records before it."""

SIGNAL = "signal"
"""The end of a durable wait by a signal."""
TIMEOUT = "timeout"
"""The end of a durable wait by its own time."""
END = "end of input"
"""The end of a durable wait with the job's input."""
DEADLINE = "deadline"
"""The end of a durable wait by the deadline of its run."""

FAILED = "failed"
"""The end of an attempt of an action of a sub-agent that raised. Its error is the value of the record."""


def input_digest(packed: bytes) -> bytes:
    """Return the digest of an input, from its ``codec`` bytes: equal for equal values.

    If the value is nested too deeply, it is the digest of the bytes.
    """
    try:
        return digest_with_fields(packed)[0]
    except UnserializableValueError:
        return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


class RunHeader(NamedTuple):
    """The header of a run, which binds the run to its input.

    Attributes:
        digest: Digest of payload and event time of the input.
        started_at: Wall-clock time at which the run started, in milliseconds.
        plan: Fingerprint of the agent's plan.
        input: Encoded pair of the input and its event time, for debugging; None if it is large.
        memory: Encoded nodes of short-term memory before the run, by path; None if they are large.
        begin: The first sequence number of the key's generation.
    """

    digest: bytes
    started_at: int
    plan: str
    input: bytes | None = None
    memory: dict[str, bytes] | None = None
    begin: int = 0

    def pack(self, codec: ValueCodec) -> bytes:
        """Return the bytes of the header."""
        return codec.encode_record([LAYOUT, *self])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> RunHeader:
        """Return the header from its bytes."""
        return cls(*fields_of(codec, data, len(cls._fields)))


class CallIdentity(NamedTuple):
    """The function and the arguments of a call. Compare with :meth:`same`, which ignores ``request``.

    Attributes:
        function: ``module:qualname``, or the name that its author gave it.
        arguments: Digest of the canonical arguments.
        request: The arguments as readable text, shortened; None if it was not stored.
        fields: The names of the fields of each class of the arguments, by the name of the class; None if the
            arguments have no classes.
    """

    function: str
    arguments: bytes
    request: str | None = None
    fields: dict[str, list[str]] | None = None

    def same(self, other_call: CallIdentity) -> bool:
        """Return True if both are calls of one function with equal arguments."""
        return self.function == other_call.function and self.arguments == other_call.arguments

    def pack(self, codec: ValueCodec) -> bytes:
        """Return the bytes of the record which says that the call is about to be made (its intent)."""
        return codec.encode_record([LAYOUT, *self])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> CallIdentity:
        """Return the identity from its bytes."""
        return cls(*fields_of(codec, data, len(cls._fields)))


class CallRecord(NamedTuple):
    """The outcome of a durable call: its value or its error.

    Attributes:
        call: Function and arguments of the call.
        value: The encoded value that the function returned; None if it raised.
        error: Description of its exception, by ``exceptions.describe``; None if it returned.
        attempts: The number of attempts, the last one included.
        ended_at: Wall-clock time at its end, in milliseconds.
        order: The number of outcomes of the execution before it.
        elapsed: Microseconds from the start of the execution to the end of the call, by the execution's
            clock.
        result_type: The type that validated the value, as text; None if there was none.
    """

    call: CallIdentity
    value: bytes | None
    error: dict[str, Any] | None
    attempts: int
    ended_at: int
    order: int = 0
    elapsed: int = 0
    result_type: str | None = None

    def pack(self, codec: ValueCodec) -> bytes:
        """Return the bytes of the record."""
        return codec.encode_record([LAYOUT, *self.call, *self[1:]])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> CallRecord:
        """Return the record from its bytes."""
        of_call = len(CallIdentity._fields)
        fields = fields_of(codec, data, of_call + len(cls._fields) - 1)
        return cls(CallIdentity(*fields[:of_call]), *fields[of_call:])


class WaitRecord(NamedTuple):
    """The end of a wait of an action that is not a durable call, such as for a timer or a signal.

    Attributes:
        what: The object of the wait, for people: ``a timer``, ``a limit``, ``a client``.
        ended_at: Wall-clock time at its end, in milliseconds.
        order: The number of outcomes of the execution before it.
        elapsed: Microseconds from the start of the execution to the end of the wait, by the execution's
            clock.
        end: The end of a durable wait: ``signal``, ``timeout``, ``end of input`` or ``deadline``; ``failed``
            for an attempt in a sub-agent that raised; None for others.
        identity: The identity of the signal that ended the wait; None for other ends.
        value: The value of the signal, or the error of the attempt, encoded; None for other ends.
        name: The name of the signal; None for other ends.
        wait: The id of the wait that the signal names; None if it names none.
    """

    what: str
    ended_at: int
    order: int
    elapsed: int
    end: str | None = None
    identity: str | None = None
    value: bytes | None = None
    name: str | None = None
    wait: str | None = None

    def pack(self, codec: ValueCodec) -> bytes:
        """Return the bytes of the record."""
        return codec.encode_record([LAYOUT, *self])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> WaitRecord:
        """Return the record from its bytes."""
        return cls(*fields_of(codec, data, len(cls._fields)))


class ActionRecord(NamedTuple):
    """The effects of an execution of an action that made durable calls.

    Attributes:
        short_term: Encoded nodes of short-term memory that it wrote, by path; None for a removed one.
        sensory: Encoded nodes of sensory memory that it wrote, in the same form.
        events: Type and fields of each event that it sent, and the shape of its class; of an output event,
            the value.
        side: The side outputs that it sent: pairs of tag and value.
        calls: The number of durable calls that it made.
    """

    short_term: dict[str, bytes | None]
    sensory: dict[str, bytes | None]
    events: list[list[Any]]
    side: list[list[Any]]
    calls: int

    def pack(self, codec: ValueCodec) -> bytes:
        """Return the bytes of the record. Its events and side outputs were copied by the codec before.

        Raises:
            UnserializableValueError: An event has a value that cannot be recorded.
        """
        return codec.encode_record([LAYOUT, *self])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> ActionRecord:
        """Return the record from its bytes."""
        return cls(*fields_of(codec, data, len(cls._fields)))


def fields_of(codec: ValueCodec, data: bytes, count: int) -> list[Any]:
    """Return the fields of a record, after checking its layout.

    Args:
        codec: Decodes them.
        data: The bytes of a record.
        count: The number of fields that a record of that kind has.

    Raises:
        StateFormatError: The bytes are no such record, or are of another layout.
    """
    fields = codec.decode(data)
    if not isinstance(fields, list) or len(fields) != count + 1 or fields[0] != LAYOUT:
        raise StateFormatError(
            "a record of a journal cannot be read",
            expected=f"the layout {LAYOUT}, and {count} fields",
            found=repr(fields)[:200],
            fix=FIX_VERSION,
        )
    return fields[1:]


def portions(records: list[Record], limit: int) -> Sequence[list[Record]]:
    """Return records in portions of about ``limit`` bytes, in order. Usually there is one.

    Failures that go with a success come before it. If all of it is too large, they are in an earlier portion:
    then their history is stored first, in the order in which it happened.

    Args:
        records: The records.
        limit: The most bytes of a record.

    Raises:
        RecordTooLargeError: One of them is too large. It is raised before the first portion.
    """
    if len(records) == 1 or sum([len(record.data) + len(record.step) + FRAME for record in records]) <= limit:
        return (records,)
    check_records(records, limit)
    return list(_split(records, limit))


def _split(records: list[Record], limit: int) -> Iterator[list[Record]]:
    """Yield records in order, in lists of at most ``limit`` bytes, or of one record."""
    portion = list[Record]()
    size = 0
    for record in records:
        if portion and size + _size(record) > limit:
            yield portion
            portion = []
            size = 0
        portion.append(record)
        size += _size(record)
    yield portion


def _size(record: Record) -> int:
    """Return an upper bound for the bytes that a store uses for a record."""
    return len(record.data) + len(record.step) + FRAME
