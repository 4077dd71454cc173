"""What stands in the records of a journal, and its bytes.

The identity of a record (kind, sequence number, step, index) is the store's affair; here is what
it carries. All bytes are ``codec`` bytes, whose first one is a version, of a list that begins with
the number of the layout. A field that is added goes to the end, and readers take what they know.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from flink_agents.api.errors import StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.canonical import DIGEST_BYTES, digest_of_bytes
from flink_agents.runtime.serde.codec import ValueCodec

_LAYOUT = 1

RECORD_FRAME = 64
"""More bytes than the numbers of a call's record take, besides its identity, value and error."""

FLAT_NUMBERS = 1
"""Layout of headers of runs whose calls have one row of numbers, whichever task makes them."""

TASK_NUMBERS = 2
"""Layout of headers of runs whose calls are numbered within the task that makes them."""


SIGNAL, TIMEOUT, END, DEADLINE = "signal", "timeout", "end of input", "deadline"
"""How a durable wait ends: by a signal, by its own time, with the input, or by the deadline of its run."""


def input_digest(packed: bytes) -> bytes:
    """Return the digest of an input: of its value, or of its bytes if it is nested too deeply."""
    try:
        return digest_of_bytes(packed)
    except UnserializableValueError:
        return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


class RunHeader(NamedTuple):
    """Which input a run belongs to.

    Attributes:
        digest: Digest of payload and event time of the input.
        started_at: Wall-clock time at which the run began, in milliseconds.
        plan: Fingerprint of the agent's plan.
        input: Encoded pair of the input and its event time, for debugging; None where it is large.
        memory: Encoded nodes of short-term memory before the run, by path; None where they are large.
        begin: The first sequence number of the key's incarnation.
        layout: How calls of the run are numbered: ``FLAT_NUMBERS`` or ``TASK_NUMBERS``.
    """

    digest: bytes
    started_at: int
    plan: str
    input: bytes | None = None
    memory: dict[str, bytes] | None = None
    begin: int = 0
    layout: int = TASK_NUMBERS

    def pack(self, codec: ValueCodec) -> bytes:
        """The bytes."""
        fields = self.digest, self.started_at, self.plan, self.input, self.memory, self.begin
        return codec.encode([self.layout, *fields])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> RunHeader:
        """The header of which ``data`` are the bytes."""
        layout, *fields = fields_of(codec, data, 5, layout=True, added=1)
        return cls(*fields, layout=layout)


class CallIdentity(NamedTuple):
    """What was called.

    Attributes:
        function: ``module:qualname``, or the name that the author gave.
        arguments: Digest of the canonical arguments.
        request: The arguments as a text for people, bounded; None where it is not kept.
    """

    function: str
    arguments: bytes
    request: str | None = None

    def same(self, other: CallIdentity) -> bool:
        """Whether ``other`` is the same call."""
        return self.function == other.function and self.arguments == other.arguments

    def pack(self, codec: ValueCodec) -> bytes:
        """The bytes of the record that the call is about to be made."""
        return codec.encode([_LAYOUT, self.function, self.arguments, self.request])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> CallIdentity:
        """The identity of which ``data`` are the bytes."""
        return cls(*fields_of(codec, data, 3))


class CallRecord(NamedTuple):
    """How a call ended.

    Attributes:
        call: What was called.
        value: Encoded value that it returned; None where it raised.
        error: What it raised, by ``failures.describe``; None where it returned.
        attempts: How often it was tried.
        ended_at: Wall-clock time at its end, in milliseconds.
        order: How many outcomes of the execution there were before it.
        elapsed: Microseconds between the begin of the execution and the end of the call, by the clock
            that the execution sees.
    """

    call: CallIdentity
    value: bytes | None
    error: dict[str, Any] | None
    attempts: int
    ended_at: int
    order: int = 0
    elapsed: int = 0

    def pack(self, codec: ValueCodec) -> bytes:
        """The bytes."""
        call = self.call
        return codec.encode(
            [
                _LAYOUT,
                call.function,
                call.arguments,
                call.request,
                self.value,
                self.error,
                self.attempts,
                self.ended_at,
                self.order,
                self.elapsed,
            ]
        )

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> CallRecord:
        """The record of which ``data`` are the bytes."""
        function, arguments, request, *rest = fields_of(codec, data, 8, added=1)
        return cls(CallIdentity(function, arguments, request), *rest)


class WaitRecord(NamedTuple):
    """That a wait of an action ended which is no call.

    Attributes:
        what: What was waited for, for people: ``a timer``, ``a limit``, ``a client``.
        ended_at: Wall-clock time at its end, in milliseconds.
        order: How many outcomes of the execution there were before it.
        elapsed: Microseconds between the begin of the execution and the end of the wait, by the clock
            that the execution sees.
        end: How a wait for a signal ended: ``signal``, ``timeout`` or ``end of input``; None for others.
        identity: What the signal is known again by.
        value: The value of the signal, encoded.
        name: The name of the signal.
        wait: The wait that the signal names, or None.
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
        """The bytes."""
        return codec.encode([_LAYOUT, *(self if self.end is not None else self[:4])])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> WaitRecord:
        """The record of which ``data`` are the bytes."""
        return cls(*fields_of(codec, data, 4, added=5))


class ActionRecord(NamedTuple):
    """What an execution of an action did that made durable calls.

    Attributes:
        short_term: Encoded nodes of short-term memory that it wrote, by path; None removed one.
        sensory: The same of sensory memory.
        events: Type and fields of each event, and the shape of its class; of an output event, its value.
        side: Pairs of tag and value.
        calls: How many durable calls it made.
    """

    short_term: dict[str, bytes | None]
    sensory: dict[str, bytes | None]
    events: list[list[Any]]
    side: list[list[Any]]
    calls: int

    def pack(self, codec: ValueCodec) -> bytes:
        """The bytes.

        Raises:
            UnserializableValueError: An event carries a value that cannot be recorded.
        """
        return codec.encode([_LAYOUT, self.short_term, self.sensory, self.events, self.side, self.calls])

    @classmethod
    def unpack(cls, codec: ValueCodec, data: bytes) -> ActionRecord:
        """The record of which ``data`` are the bytes."""
        return cls(*fields_of(codec, data, 5))


def with_layout(codec: ValueCodec, fields: list[Any]) -> bytes:
    """The bytes of fields, behind the number of the layout."""
    return codec.encode([_LAYOUT, *fields])


def fields_of(codec: ValueCodec, data: bytes, count: int, layout: bool = False, added: int = 0) -> list[Any]:
    """The first fields.

    Args:
        codec: Decodes them.
        data: The bytes of a record.
        count: How many each record of that kind has.
        layout: Whether the number of the layout stands before them.
        added: How many more there may be: later versions added them.
    """
    fields = codec.decode(data)
    if not isinstance(fields, list) or len(fields) <= count or not isinstance(fields[0], int):
        raise StateFormatError("a record of a journal cannot be read", found=repr(fields)[:200])
    return fields[0 if layout else 1 : count + added + 1]
