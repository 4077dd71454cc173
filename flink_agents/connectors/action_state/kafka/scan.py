"""Reads partitions of a store ``kafka`` into the index, and never more than is needed.

A scan ends at the end offsets of its start, and not when a poll is empty: if a
partition ends with records that were compacted away or that no client gets, the consumer's
position passes them. Each partition is read in one range; a lower start reads the missing part
only, and puts it before the rest.

A batch is decoded when the records after it were read, or when many batches are pending: most pruned runs
have a removal soon after, and their batches need no decoding then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kafka.structs import TopicPartition

from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.common.logs import bounded_logger
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.index import JournalIndex
from flink_agents.connectors.action_state.kafka.layout import LOOKER, Entry, unpack_batch, unpack_key
from flink_agents.connectors.action_state.kafka.ownership.claims import Claim, Claims
from flink_agents.connectors.action_state.kafka.settings import (
    KafkaSettings,
    request_ms,
    unavailable_error,
    unreadable_error,
)
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.kafka_clients import UnreadableCodecError

_log = bounded_logger("flink_agents.store")

POLL_MS = 200
PROGRESS_SECONDS = 5.0
RETRY_SECONDS = 0.1

HELD_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of batches that are not decoded yet."""

FREE_EACH = 20_000
"""After this many entries, pruned journals are dropped from memory."""


class Scanner:
    """Reads ranges of partitions into the index. Only the thread that reads may use it.

    Args:
        settings: Settings of the store, with the options of the client.
        topic: The journal topic.
        claims: The claims, by which records of outranked owners do not count.
        garbage: Records the content of each batch that others have written.
        token: Token of the owner, whose own batches are not passed to ``garbage``; None for a reader.

    Attributes:
        index: The records read so far.
        starts: First offset of each partition that was read. Other threads see it only after
            ``known_journals`` is updated.
        begins: First offset that each partition had when it was last read from an earlier start.
        known_journals: Journals with records of other owners that may still be needed.
        records: Number of Kafka records read so far.
        seconds: Seconds spent reading so far.
    """

    def __init__(
        self, settings: KafkaSettings, topic: Topic, claims: Claims, garbage: Garbage, token: str | None
    ) -> None:
        self._settings = settings
        self._topic = topic.name
        self._claims = claims
        self._garbage = garbage
        self._token = token
        # The package's own types lack arguments that it accepts.
        self._consumer: Any = settings.create_consumer()
        self._ends: dict[int, int] = {}
        self.index = JournalIndex()
        self.starts: dict[int, int] = {}
        self.begins: dict[int, int] = {}
        self.known_journals: set[JournalKey] = set()
        self.records = 0
        self.seconds = 0.0
        self._written: dict[Batch, int] = {}
        # Batches that are not decoded yet, in the order in which they were read.
        self._held: dict[Batch, Any] = {}
        self._held_bytes = 0
        # Removals of parts that were not read yet.
        self._removed_batches: set[Batch] = set()
        # Owners and partitions that garbage knows only in part.
        self._unsure_tokens: set[str] = set()
        self._unsure: set[int] = set()
        self._applied = 0
        # Up to where partitions are decoded that are being read from their beginning.
        self._looked: dict[int, int] = {}
        # For a range before the records read so far: what garbage gets once all of it was read.
        self._older: dict[Batch, tuple[int, list[Entry]]] | None = None

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    @property
    def claims(self) -> Claims:
        """The claims, as last read by the thread that reads."""
        return self._claims

    def owners(self) -> tuple[Owner, ...]:
        """Read the claims, and return the owners that may append now, by group and subtask."""
        self._claims.refresh()
        owners = [claim.owner for claim in self._claims.live_claims()]
        return tuple(sorted(owners, key=lambda owner: (owner.group, owner.subtask)))

    def details(self) -> dict[str, int | float | str]:
        """Return figures for ``stats``: numbers of batches and runs, and the age of the oldest records."""
        batches = self._garbage.with_runs()
        details: dict[str, int | float | str] = dict(self._garbage.counts())
        written = [self._written[batch] / 1000 for batch in batches if batch in self._written]
        if written:
            oldest = datetime.fromtimestamp(min(written), UTC)
            details["oldest_records"] = oldest.isoformat(timespec="seconds")
            details["oldest_records_seconds"] = round(max(0.0, time.time() - min(written)), 1)
        return details

    def log_starts(self, partitions: list[int]) -> dict[int, int]:
        """Ask the brokers for the first offset of each partition; waits, and retries."""
        topic_partitions = [TopicPartition(self._topic, partition) for partition in partitions]
        patience = request_ms(self._settings.rebuild_seconds)
        offsets = self._retry_request(
            lambda: self._consumer.beginning_offsets(topic_partitions, timeout_ms=patience)
        )
        return {topic_partition.partition: offset for topic_partition, offset in offsets.items()}

    def log_ends(self, partitions: list[int]) -> dict[int, int]:
        """Ask the brokers for the end offset of each partition; waits, and retries."""
        topic_partitions = [TopicPartition(self._topic, partition) for partition in partitions]
        patience = request_ms(self._settings.rebuild_seconds)
        offsets = self._retry_request(
            lambda: self._consumer.end_offsets(topic_partitions, timeout_ms=patience)
        )
        return {topic_partition.partition: offset for topic_partition, offset in offsets.items()}

    def read_from(self, wanted: Mapping[int, int]) -> None:
        """Read all records from the given offsets on that were acknowledged before this call.

        Blocks until they are read. Records that were read earlier are not read again.

        Args:
            wanted: First offset by partition.

        Raises:
            StoreUnavailableError: Reading made no progress for ``settings.rebuild_seconds``.
        """
        began = time.monotonic()
        # Partitions that were not read yet, or only from a later offset on.
        if lower := [p for p, start in wanted.items() if p not in self.starts or start < self.starts[p]]:
            self.begins.update(self.log_starts(lower))
        ends = self.log_ends(list(wanted))
        self._claims.refresh()
        # The missing parts of each partition: before the records read so far, and after them.
        older_ranges = {
            p: (start, self.starts[p]) for p, start in wanted.items() if start < self.starts.get(p, 0)
        }
        newer_ranges = {p: (self._ends.get(p, wanted[p]), ends[p]) for p in wanted}
        older = JournalIndex()
        newer = JournalIndex()
        # Garbage gets older batches only below, in reverse order; until then, they are collected here.
        self._older = {}
        self._read_ranges(older_ranges, older)
        older_batches = self._older
        self._older = None
        whole = [p for p, start in wanted.items() if p not in self.starts and start <= self.begins.get(p, 0)]
        # Removals in partitions that are read from their beginning may expire during the scan.
        self._looked = dict.fromkeys(whole, 0)
        try:
            self._read_ranges(newer_ranges, newer)
        finally:
            self._looked = {}
        # The last first: a deletion must not make garbage of records that came after it.
        for batch, (offset, entries) in reversed(older_batches.items()):
            self._garbage.add_batch(batch, offset, entries)
        # Only now: a read that failed half-way is repeated, and must not be there twice.
        self.index.prepend(older, self._garbage.pruned_through)
        self.index.extend(newer)
        self.index.free_journals(self._garbage.pruned_through)
        for partition, start in wanted.items():
            self._ends[partition] = max(ends[partition], newer_ranges[partition][0])
            self.starts[partition] = min(start, self.starts.get(partition, start))
            if self._is_whole(partition):
                self._forget_removed_batches(partition)
        self.seconds += time.monotonic() - began

    def _forget_removed_batches(self, partition: int) -> None:
        if self._removed_batches:
            self._removed_batches = {batch for batch in self._removed_batches if batch.partition != partition}

    # -- removal from memory ----------------------------------------------------------

    def drop_pruned(self, pruned: Iterable[tuple[JournalKey, int]]) -> None:
        """Drop pruned runs from the index, and superfluous removals from ``garbage``.

        Args:
            pruned: Journals of which this owner removed all runs up to a number.
        """
        for journal, through in pruned:
            self.index.drop_runs(journal, through)
        over = self._garbage.partitions_over_limit()
        if unread := [partition for partition in over if not self._is_whole(partition)]:
            # Compaction leaves little of pruned records.
            self.read_from(dict.fromkeys(unread, 0))
        self._expire_removals(over)

    def done_claims(self, group: str) -> list[Claim]:
        """Return the claims of a group that can be removed, in the order of the topic."""
        return self._claims.removable_claims(group, self._may_own_records)

    def ended_tokens(self, group: str) -> set[str]:
        """Return the tokens of all owners of a group that can no longer append."""
        return {claim.owner.token for claim in self._claims.of_group(group) if claim.void is not None}

    def _expire_removals(self, partitions: Iterable[int]) -> None:
        """Forget superfluous removals of partitions that were read from their first offset on."""
        sure = {partition for partition in partitions if partition not in self._unsure}
        read = {partition: sys.maxsize for partition in sure if self._is_whole(partition)}
        read.update({partition: self._looked[partition] for partition in sure & self._looked.keys()})
        for journal in self._garbage.expire_removals(read) if read else ():
            if not self._garbage.knows(journal):
                self.known_journals.discard(journal)

    def _is_whole(self, partition: int) -> bool:
        """Return True if a partition was read from its first offset on."""
        start = self.starts.get(partition)
        return start is not None and start <= self.begins.get(partition, 0)

    def _may_own_records(self, claim: Claim) -> bool:
        """Return True if a record of an outranked owner may still be needed."""
        token = claim.owner.token
        if token in self._unsure_tokens or self._garbage.owns(token):
            return True
        # An owner without a fence has appended nothing that counts.
        return any(
            self.starts.get(partition, begin + 1) > begin
            or self._ends.get(partition, -1) < (claim.void or {}).get(partition, 0)
            for partition, begin in (claim.fence or {}).items()
        )

    # -- records ----------------------------------------------------------------------

    def _read_ranges(self, ranges: Mapping[int, tuple[int, int]], index: JournalIndex) -> None:
        """Read each partition from one offset up to another into an index; blocks until all are read."""
        self._held.clear()  # a scan that failed half way begins again
        self._held_bytes = 0
        remaining_ends = {
            TopicPartition(self._topic, p): end for p, (start, end) in ranges.items() if start < end
        }
        if not remaining_ends:
            return
        self._consumer.assign(list(remaining_ends))
        self._consumer.resume(*remaining_ends)  # A partition that was assigned earlier keeps its position.
        for topic_partition in remaining_ends:
            self._consumer.seek(topic_partition, ranges[topic_partition.partition][0])
        progress = _Progress(self._settings, sum(end - start for start, end in ranges.values()))
        while remaining_ends:
            for topic_partition, records in self._poll(progress).items():
                end = remaining_ends.get(topic_partition)
                if end is not None:
                    self._apply_records(topic_partition.partition, records, end, index)
            positions = {
                assigned_partition: self._consumer.position(assigned_partition, timeout_ms=1000)
                for assigned_partition in remaining_ends
            }
            progress.note_progress(self.records, sum(position or 0 for position in positions.values()))
            done = [
                assigned_partition
                for assigned_partition, position in positions.items()
                if (position or 0) >= remaining_ends[assigned_partition]
            ]
            for topic_partition in done:
                del remaining_ends[topic_partition]
                self._consumer.pause(topic_partition)
        self._decode_batches(index, 0)

    def _poll(self, progress: _Progress) -> dict[TopicPartition, list[Any]]:
        try:
            return self._consumer.poll(POLL_MS)
        except UnreadableCodecError as error:
            raise unreadable_error(error) from error
        except Exception as error:
            progress.note_failure(error)
            self._skip_removed(error)
            time.sleep(RETRY_SECONDS)
            return {}

    def _skip_removed(self, error: Exception) -> None:
        """Move to the first offset of each partition that no longer has the records at its position."""
        from kafka.errors import OffsetOutOfRangeError

        if isinstance(error, OffsetOutOfRangeError):
            starts = self.log_starts(
                [assigned_partition.partition for assigned_partition in self._consumer.assignment()]
            )
            for topic_partition in self._consumer.assignment():
                if (self._consumer.position(topic_partition) or 0) < starts[topic_partition.partition]:
                    self._consumer.seek(topic_partition, starts[topic_partition.partition])

    def _apply_records(self, partition: int, records: list[Any], end: int, index: JournalIndex) -> None:
        """Keep the batches among records up to offset ``end`` for decoding, and apply tombstones."""
        for record in records:
            if record.offset >= end:
                return
            self.records += 1
            key = unpack_key(record.key)
            if key is None:
                continue
            batch = Batch(partition, key)
            if record.value is None:
                self._remove_batch(batch, index)
            elif batch not in self._removed_batches:
                self._held[batch] = record
                self._held_bytes += len(record.value)
        if self._held_bytes > HELD_BYTES:
            self._decode_batches(index, HELD_BYTES // 2)

    def _remove_batch(self, batch: Batch, index: JournalIndex) -> None:
        """Apply a tombstone: forget the batch, and drop its runs from the indexes."""
        held = self._held.pop(batch, None)
        if held is not None:
            self._held_bytes -= len(held.value)
            return
        if self._older is not None and (noted := self._older.pop(batch, None)) is not None:
            for entry in noted[1]:
                for record in entry.records:
                    index.drop_run(entry.journal, record.seq)
        if self._garbage.needs(batch):
            for journal, seq in self._garbage.remove_batch(batch):
                index.drop_run(journal, seq)
                self.index.drop_run(journal, seq)
        elif not self._is_whole(batch.partition) and batch.key.token != self._token:
            self._removed_batches.add(batch)

    def _decode_batches(self, index: JournalIndex, max_pending_bytes: int) -> None:
        """Decode pending batches, the oldest first, until at most ``max_pending_bytes`` of them are left."""
        while self._held and (self._held_bytes > max_pending_bytes or not max_pending_bytes):
            batch = next(iter(self._held))
            record = self._held.pop(batch)
            self._held_bytes -= len(record.value)
            self._apply_batch(batch, record, index)

    def _apply_batch(self, batch: Batch, record: Any, index: JournalIndex) -> None:
        """Decode a batch into an index, unless its records do not count after a takeover."""
        token = batch.key.token
        void = self._claims.void_from(token).get(batch.partition)
        if void is not None and record.offset >= void:
            self._garbage.void_batch(batch)
            return
        entries = unpack_batch(record.value)
        if not self._claims.knows(token) and not token.startswith(LOOKER):
            # The owner's claim was removed when none of its records was needed, so this record came later,
            # from an owner that does not know of its end.
            self._garbage.void_batch(batch)
            return
        if self._token is None:
            self._written[batch] = record.timestamp
        if token != self._token:
            self._note_entries(batch, record.offset, entries)
        index.apply_entries(entries)
        if batch.partition in self._looked:
            self._looked[batch.partition] = record.offset
        self._applied += len(entries)
        if self._applied > FREE_EACH and self._older is None:
            self._applied = 0
            for journal, through in index.free_journals(self._garbage.pruned_through):
                self.index.drop_runs(journal, through)
            self._expire_removals(self._garbage.partitions_over_limit())

    def _note_entries(self, batch: Batch, offset: int, entries: list[Entry]) -> None:
        """Record the content of a batch of another owner, unless it is undecided if the batch counts."""
        self.known_journals.update(entry.journal for entry in entries)
        # A removal that may not take effect must not make anything garbage.
        if self._claims.is_undecided(batch.key.token):
            self._unsure_tokens.add(batch.key.token)
            self._unsure.add(batch.partition)
            return
        if self._older is None:
            self._garbage.add_batch(batch, offset, entries)
        else:
            self._older[batch] = offset, [_without_data(entry) for entry in entries]

    def _retry_request(self, ask: Callable[[], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
        progress = _Progress(self._settings, 0)
        while True:
            try:
                return ask()
            except Exception as error:
                progress.note_failure(error)
                time.sleep(RETRY_SECONDS)


def _without_data(entry: Entry) -> Entry:
    """Return an entry whose records have no data: ``garbage`` needs only their runs."""
    first = {record.seq: record for record in entry.records}
    return entry._replace(records=[record._replace(step="", data=b"") for record in first.values()])


class _Progress:
    """Logs the progress of a long scan, and ends a scan that makes none.

    Args:
        settings: Settings of the store; a scan may be without progress for ``rebuild_seconds``.
        offsets: Number of offsets that the scan reads.
    """

    def __init__(self, settings: KafkaSettings, offsets: int) -> None:
        self._seconds = settings.rebuild_seconds
        self._offsets = offsets
        self._progress_at = self._logged_at = time.monotonic()
        self._latest: tuple[int, int] | None = None
        self._start: int | None = None
        self._error: Exception = TimeoutError("no record came")

    def note_progress(self, records: int, position: int) -> None:
        """Record the progress of a scan, and log it every :data:`PROGRESS_SECONDS`.

        Args:
            records: Number of records read so far.
            position: Sum of the positions of all partitions.

        Raises:
            StoreUnavailableError: Both numbers have not changed for too long.
        """
        now = time.monotonic()
        if self._latest != (records, position):
            self._latest = (records, position)
            self._progress_at = now
            self._start = position if self._start is None else self._start
        elif now - self._progress_at > self._seconds:
            raise self._stalled_error()
        if now - self._logged_at > PROGRESS_SECONDS:
            self._logged_at = now
            passed = position - (self._start or 0)
            _log.info("reading the journals: about %d of %d offsets", passed, self._offsets)

    def note_failure(self, error: Exception) -> None:
        """Record a failure that may be temporary.

        Raises:
            StoreUnavailableError: The failure has lasted for too long.
        """
        self._error = error
        if time.monotonic() - self._progress_at > self._seconds:
            raise self._stalled_error()

    def _stalled_error(self) -> Exception:
        return unavailable_error(f"reading made no progress for {self._seconds:g} s", self._error)
