"""The bytes of the store ``kafka``: keys and values of records in its two topics.

The topic of journals is compacted and holds *batches*. A batch is one Kafka record: appends and
removals of many journals of one partition that were written together. Its key is the token of who
wrote it and a number; its value the entries. A record with the same key and no value says that
nothing in the batch is needed any more.

The topic of claims is compacted too and has one partition. Its order is the order in which owners
took over. See ``claims``.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from flink_agents.api.action_state import JournalKey, Record, RecordKind, encode_text
from flink_agents.api.errors import StoreFormatError

VERSION = 1
"""Of records of the topic of claims."""

BATCH_VERSION = 3
"""Of batches. Those of version 1 came before removals had an age; they may be of a looker without a sign."""

READABLE = (1, BATCH_VERSION)

LOOKER = "looker-"
"""How the token of a writer begins that never claimed, as it only removes."""

PARTITIONS_KEPT = 16_384
"""Of so many journals the partition is remembered, as each durable call asks for it several times. Keys that
have calls in flight are fewer, as a rule."""

FORGET = 2**63
"""What ``Entry.through`` is where a journal is unknown from then on; no run has this number."""


class _Packers(threading.local):
    """A packer for each thread: markers are packed by Flink's and the loop's, entries by the writers'."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(unicode_errors="surrogatepass").pack


_packers = _Packers()

_KINDS = {int(kind): kind for kind in RecordKind}  # the class itself takes five times as long


class Entry(NamedTuple):
    """One append to a journal, or one removal.

    Attributes:
        journal: Which one.
        records: What is appended.
        through: The last run that is removed; None for an append.
        since: Where in the partition the removal was first, if it was written again; None if it was not.
    """

    journal: JournalKey
    records: Sequence[Record]
    through: int | None = None
    since: int | None = None


class BatchKey(NamedTuple):
    """Names a batch.

    Attributes:
        token: Who wrote it; see ``Owner.token``.
        number: The how manieth of that owner.
    """

    token: str
    number: int


class Marker(NamedTuple):
    """A recovery marker.

    Attributes:
        topic: The first bytes of the topic's id.
        partition: Which partition.
        offset: Before which no record lies that was appended after the marker was made.
        writer: The first bytes of the token of who made it.
        subtask: Its subtask.
        parallelism: How many subtasks there were.
    """

    topic: bytes
    partition: int
    offset: int
    writer: bytes
    subtask: int
    parallelism: int


@functools.lru_cache(maxsize=PARTITIONS_KEPT)
def partition_of(journal: JournalKey, partitions: int) -> int:
    """Return the partition of a journal."""
    text = encode_text(f"{len(journal.journal_id)}:{journal.journal_id}{journal.key}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % partitions


def pack_key(key: BatchKey) -> bytes:
    """Return the key of a Kafka record."""
    return _packers.pack(["batch", *key])


def unpack_key(data: bytes | None) -> BatchKey | None:
    """Return what :func:`pack_key` was given; None for a record that is none of this store."""
    try:
        kind, token, number = _unpack(data or b"")
        ours = kind == "batch" and isinstance(token, str) and isinstance(number, int)
        return BatchKey(token, number) if ours else None
    except (StoreFormatError, TypeError, ValueError):
        return None


def pack_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry; a batch is a list of them."""
    content: Any = entry.through
    if content is None:
        content = [(int(r.kind), r.seq, r.step, r.index, r.data) for r in entry.records]
    elif entry.since is not None:
        content = [content, entry.since]
    return _packers.pack((entry.journal.journal_id, entry.journal.key, content))


def pack_batch(entries: Sequence[bytes]) -> bytes:
    """Return the value of a Kafka record, of packed entries."""
    packer = msgpack.Packer()
    return b"".join([bytes([BATCH_VERSION]), packer.pack_array_header(len(entries)), *entries])


def unpack_batch(data: bytes) -> list[Entry]:
    """Return the entries of a batch.

    Raises:
        StoreFormatError: It is corrupt, or of an unknown version.
    """
    if not data or data[0] not in READABLE:
        raise StoreFormatError(
            "a batch of the store is of a format that this version cannot read",
            expected=f"version {BATCH_VERSION} or older",
            found=f"version {data[0]}" if data else "no bytes",
            fix="run the version of flink-agents-python that wrote it, or a newer one",
        )
    try:
        return [_entry(*parts) for parts in _unpack(data[1:])]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreFormatError("a batch of the store cannot be read", found=str(error)) from error


def _entry(journal_id: str, key: str, content: Any) -> Entry:
    journal = JournalKey(sys.intern(journal_id), key)  # the same for many
    if isinstance(content, int):
        return Entry(journal, (), content)
    if content and isinstance(content[0], int):
        through, since = content
        return Entry(journal, (), through, since)
    return Entry(
        journal, [Record(_KINDS[kind], seq, step, index, data) for kind, seq, step, index, data in content]
    )


def counting(entries: list[Entry], key: BatchKey, data: bytes) -> list[Entry]:
    """Return what counts of a batch whose writer has no claim.

    A claim is removed when nothing of its owner is needed, so that what comes later is of an owner who
    does not know of its end. Only who looks at a store removes without a claim; in batches of version 1,
    nothing else tells the two apart.
    """
    if key.token.startswith(LOOKER):
        return entries
    return [entry for entry in entries if entry.through is not None] if data[:1] == b"\x01" else []


def pack_marker(marker: Marker) -> bytes:
    """Return the bytes of a marker."""
    return _packers.pack(list(marker))


def unpack_marker(data: bytes) -> Marker | None:
    """Return what :func:`pack_marker` was given; None for a marker of another store."""
    try:
        return Marker(*_unpack(data))
    except (StoreFormatError, TypeError):
        return None


def pack_claim(kind: str, token: str, content: Any) -> tuple[bytes, bytes]:
    """Return the key and the value of a record of the topic of claims."""
    return pack_claim_key(kind, token), bytes([VERSION]) + _packers.pack(content)


def pack_claim_key(kind: str, token: str) -> bytes:
    """Return the key of a record of the topic of claims."""
    return _packers.pack([kind, token])


def unpack_claim_key(key: bytes | None) -> tuple[str, str] | None:
    """Return kind and token; None for a record that is none of this store."""
    try:
        kind, token = _unpack(key or b"")
    except (StoreFormatError, TypeError, ValueError):
        return None
    return (kind, token) if isinstance(kind, str) and isinstance(token, str) else None


def unpack_claim(key: bytes | None, value: bytes | None) -> tuple[str, str, Any] | None:
    """Return kind, token and content; None for a record of another store, or a removed one."""
    if key is None or not value or value[:1] != bytes([VERSION]):
        return None
    try:
        kind, token = _unpack(key)
        return kind, token, _unpack(value[1:])
    except (StoreFormatError, TypeError, ValueError):
        return None


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise StoreFormatError("bytes of the store cannot be read", found=str(error)) from error
