"""The bytes of the store ``kafka``: keys and values of records in its two topics.

The journal topic is compacted and holds *batches*. A batch is one Kafka record: appends and
removals of many journals of one partition that were written together. Its key is the writer's
token and a number; its value has the entries. A record with the same key and no value means that
no entry of the batch is needed any more.

The claims topic is compacted too, and has one partition. Its order is the order in which owners
took over. See ``claims``.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from flink_agents.api.action_state import JournalKey, Record, RecordKind, encode_text
from flink_agents.api.errors import StoreFormatError

VERSION = 1
"""Version of records in the claims topic."""

BATCH_VERSION = 3
"""Version of batches."""

LOOKER = "looker-"
"""Prefix of the token of a writer without a claim, which only removes."""

PARTITIONS_KEPT = 16_384
"""The size of the cache of partitions by journal: each durable call looks its partition up several times.
Usually, fewer keys than that have calls in flight."""

FORGET = 2**63
"""The value of ``Entry.through`` that deletes a whole journal; no run has this number."""


class _Packers(threading.local):
    """One packer per thread: Flink's and the loop's thread pack markers, the writers' threads entries."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(unicode_errors="surrogatepass").pack


_packers = _Packers()

# To call the class takes five times as long.
_KINDS = {int(kind): kind for kind in RecordKind}


class Entry(NamedTuple):
    """One append to a journal, or one removal.

    Attributes:
        journal: The journal.
        records: The appended records; empty for a removal.
        through: Number of the last removed run; :data:`FORGET` for all; None for an append.
        since: Offset at which a rewritten removal was first written; None if it was not rewritten.
    """

    journal: JournalKey
    records: Sequence[Record]
    through: int | None = None
    since: int | None = None


class BatchKey(NamedTuple):
    """Identifies a batch.

    Attributes:
        token: Token of the writer; see ``Owner.token``.
        number: Number of the batch, counted by that writer.
    """

    token: str
    number: int


class Marker(NamedTuple):
    """A recovery marker.

    Attributes:
        topic: The first 8 bytes of the topic's id.
        partition: The partition.
        offset: Records that were appended after the marker was created are at or after this offset.
        writer: The first 8 bytes of the token of the owner that created it.
        subtask: Number of that owner's subtask.
        parallelism: Parallelism of its job.
    """

    topic: bytes
    partition: int
    offset: int
    writer: bytes
    subtask: int
    parallelism: int


@functools.lru_cache(maxsize=PARTITIONS_KEPT)
def partition_of(journal: JournalKey, partitions: int) -> int:
    """Return the partition of a journal in a topic with ``partitions`` partitions. It never changes."""
    text = encode_text(f"{len(journal.journal_id)}:{journal.journal_id}{journal.key}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % partitions


def pack_key(key: BatchKey) -> bytes:
    """Return the key of the Kafka record that holds a batch."""
    return _packers.pack(["batch", *key])


def unpack_key(data: bytes | None) -> BatchKey | None:
    """Parse the key of a Kafka record; return None if it is no batch of this store."""
    try:
        kind, token, number = _unpack_content(data or b"")
        is_batch_key = kind == "batch" and isinstance(token, str) and isinstance(number, int)
        return BatchKey(token, number) if is_batch_key else None
    except (StoreFormatError, TypeError, ValueError):
        return None


def pack_entry(entry: Entry) -> bytes:
    """Encode an entry; :func:`pack_batch` joins several."""
    content: Any = entry.through
    if content is None:
        content = [(int(r.kind), r.seq, r.step, r.index, r.data) for r in entry.records]
    elif entry.since is not None:
        content = [content, entry.since]
    return _packers.pack((entry.journal.journal_id, entry.journal.key, content))


def pack_batch(entries: Sequence[bytes]) -> bytes:
    """Return the value of the Kafka record that holds the packed entries: a version byte and a list."""
    packer = msgpack.Packer()
    return b"".join([bytes([BATCH_VERSION]), packer.pack_array_header(len(entries)), *entries])


def unpack_batch(data: bytes) -> list[Entry]:
    """Parse the value of a Kafka record that holds a batch.

    Raises:
        StoreFormatError: It is corrupt, or of an unknown version.
    """
    if not data or data[0] != BATCH_VERSION:
        raise StoreFormatError(
            "a batch of the store is of a format that this version cannot read",
            expected=f"version {BATCH_VERSION}",
            found=f"version {data[0]}" if data else "no bytes",
            fix="run the version of flink-agents-python that wrote it, or a newer one",
        )
    try:
        return [_build_entry(*parts) for parts in _unpack_content(data[1:])]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreFormatError("a batch of the store cannot be read", found=str(error)) from error


def _build_entry(journal_id: str, key: str, content: Any) -> Entry:
    journal = JournalKey(sys.intern(journal_id), key)  # the same for many
    if isinstance(content, int):
        return Entry(journal, (), content)
    if content and isinstance(content[0], int):
        through, since = content
        return Entry(journal, (), through, since)
    return Entry(
        journal, [Record(_KINDS[kind], seq, step, index, data) for kind, seq, step, index, data in content]
    )


def pack_marker(marker: Marker) -> bytes:
    """Encode a marker for Flink's state."""
    return _packers.pack(list(marker))


def unpack_marker(data: bytes) -> Marker | None:
    """Parse a marker from Flink's state; return None if another store wrote it."""
    try:
        return Marker(*_unpack_content(data))
    except (StoreFormatError, TypeError):
        return None


def pack_offsets(offsets: Mapping[int, int]) -> bytes:
    """Encode the offset of each partition."""
    return _packers.pack(offsets)


def unpack_offsets(data: bytes) -> dict[int, int]:
    """Parse the offsets by partition that :func:`pack_offsets` encoded."""
    return _unpack_content(data)


def pack_claim(kind: str, token: str, content: Any) -> tuple[bytes, bytes]:
    """Return the key and the value of a record in the claims topic.

    Args:
        kind: ``topic``, ``plan``, ``left``, or one of ``OF_OWNERS`` of ``claims``.
        token: Token of the owner, or the name of what the record describes.
        content: What MessagePack can encode; its form depends on the kind.
    """
    return pack_claim_key(kind, token), bytes([VERSION]) + _packers.pack(content)


def pack_claim_key(kind: str, token: str) -> bytes:
    """Return the key of a record in the claims topic, by its kind and token."""
    return _packers.pack([kind, token])


def unpack_claim_key(key: bytes | None) -> tuple[str, str] | None:
    """Parse the key of a record in the claims topic: kind and token. Return None for a foreign record."""
    try:
        kind, token = _unpack_content(key or b"")
    except (StoreFormatError, TypeError, ValueError):
        return None
    return (kind, token) if isinstance(kind, str) and isinstance(token, str) else None


def unpack_claim(key: bytes | None, value: bytes | None) -> tuple[str, str, Any] | None:
    """Parse a record of the claims topic: kind, token, content.

    Return None if it is foreign or a tombstone.
    """
    if key is None or not value or value[:1] != bytes([VERSION]):
        return None
    try:
        kind, token = _unpack_content(key)
        return kind, token, _unpack_content(value[1:])
    except (StoreFormatError, TypeError, ValueError):
        return None


def _unpack_content(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise StoreFormatError("bytes of the store cannot be read", found=str(error)) from error
