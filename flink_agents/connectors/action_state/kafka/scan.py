"""Reads partitions of a store ``kafka`` into the index, never more than is asked for.

A scan ends at the offsets that were the ends when it began, and not when a poll is empty: where a
partition ends with records that were compacted away or that no client is shown, the consumer's
position passes them. What was read is a range of each partition; a lower start reads the missing part
only, and goes before the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kafka.structs import TopicPartition

from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.logs import bounded_logger
from flink_agents.connectors.action_state.kafka.claims import Claims
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.index import JournalIndex
from flink_agents.connectors.action_state.kafka.layout import Entry, unpack_batch, unpack_key
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, request_ms, unavailable
from flink_agents.connectors.action_state.kafka.topics import Topic

_log = bounded_logger("flink_agents.store")

POLL_MS = 200
PROGRESS_SECONDS = 5.0
RETRY_SECONDS = 0.1


class Scanner:
    """See the module. Only for the thread that reads.

    Args:
        settings: How to reach the topic.
        topic: The topic of journals.
        claims: Which records count.
        garbage: Told of each batch that others wrote.
        token: The owner's; its own batches are known to ``garbage`` from elsewhere.

    Attributes:
        index: What was read.
        starts: From where on each partition was read; only those of which something was. Threads
            that read it see an offset as soon as all behind it is in ``known``.
        begins: Where each partition began when it was read from its lowest start on.
        known: Journals of which others wrote something.
        records: How many records of Kafka were read.
        seconds: How long that took.
    """

    def __init__(
        self, settings: KafkaSettings, topic: Topic, claims: Claims, garbage: Garbage, token: str | None
    ) -> None:
        self._settings = settings
        self._topic = topic.name
        self._claims = claims
        self._garbage = garbage
        self._token = token
        # Its own types lack arguments that it has.
        self._consumer: Any = settings.consumer()
        self._ends: dict[int, int] = {}
        self.index = JournalIndex()
        self.starts: dict[int, int] = {}
        self.begins: dict[int, int] = {}
        self.known: set[JournalKey] = set()
        self.records = 0
        self.seconds = 0.0
        self._written: dict[Batch, int] = {}
        # Of a range that lies before what was read, what garbage is told when all of it was read.
        self._older: dict[Batch, tuple[int, list[Entry]]] | None = None

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def owners(self) -> tuple[Owner, ...]:
        """All who may append at present."""
        self._claims.refresh()
        found = [claim.owner for claim in self._claims.live()]
        return tuple(sorted(found, key=lambda owner: (owner.group, owner.subtask)))

    def details(self) -> dict[str, int | float | str]:
        """What is kept in batches, and since when, for those who look at a store without an owner."""
        kept = self._garbage.with_runs()
        found: dict[str, int | float | str] = dict(self._garbage.counts())
        written = [self._written[batch] / 1000 for batch in kept if batch in self._written]
        if written:
            oldest = datetime.fromtimestamp(min(written), UTC)
            found["oldest_records"] = oldest.isoformat(timespec="seconds")
            found["oldest_records_seconds"] = round(max(0.0, time.time() - min(written)), 1)
        return found

    def log_starts(self, partitions: list[int]) -> dict[int, int]:
        """Where the partitions begin."""
        asked = [TopicPartition(self._topic, partition) for partition in partitions]
        patience = request_ms(self._settings.rebuild_seconds)
        found = self._retried(lambda: self._consumer.beginning_offsets(asked, timeout_ms=patience))
        return {each.partition: offset for each, offset in found.items()}

    def log_ends(self, partitions: list[int]) -> dict[int, int]:
        """Where the partitions end."""
        asked = [TopicPartition(self._topic, partition) for partition in partitions]
        patience = request_ms(self._settings.rebuild_seconds)
        found = self._retried(lambda: self._consumer.end_offsets(asked, timeout_ms=patience))
        return {each.partition: offset for each, offset in found.items()}

    def read(self, wanted: Mapping[int, int]) -> None:
        """Have all that lies behind given offsets, and was acknowledged before this was called.

        Args:
            wanted: From where on, by partition.

        Raises:
            StoreUnavailableError: There was no progress for too long.
        """
        began = time.monotonic()
        if lower := [p for p, start in wanted.items() if start < self.starts.get(p, start + 1)]:
            self.begins.update(self.log_starts(lower))
        ends = self.log_ends(list(wanted))
        self._claims.refresh()
        behind = {p: (self._ends.get(p, wanted[p]), ends[p]) for p in wanted}
        before = {p: (start, self.starts[p]) for p, start in wanted.items() if start < self.starts.get(p, 0)}
        older, newer = JournalIndex(), JournalIndex()
        self._older = {}
        self._read_ranges(before, older)
        noted, self._older = self._older, None
        self._read_ranges(behind, newer)
        # The last first: what was forgotten must not make garbage of what came after it.
        for batch, (offset, entries) in reversed(noted.items()):
            self._garbage.add(batch, offset, entries)
        # Only now: what fails half way is read again, and must not be there twice.
        self.index.prepend(older)
        self.index.extend(newer)
        for partition, start in wanted.items():
            self._ends[partition] = max(ends[partition], behind[partition][0])
            self.starts[partition] = min(start, self.starts.get(partition, start))
        self.seconds += time.monotonic() - began

    # -- records ----------------------------------------------------------------------

    def _read_ranges(self, ranges: Mapping[int, tuple[int, int]], index: JournalIndex) -> None:
        """Read each partition from an offset on, up to another one."""
        left = {TopicPartition(self._topic, p): end for p, (start, end) in ranges.items() if start < end}
        if not left:
            return
        self._consumer.assign(list(left))
        self._consumer.resume(*left)  # one that was assigned before is as it was left
        for each in left:
            self._consumer.seek(each, ranges[each.partition][0])
        progress = _Progress(self._settings, sum(end - start for start, end in ranges.values()))
        while left:
            for each, records in self._poll(progress).items():
                end = left.get(each)
                if end is not None:
                    self._take(each.partition, records, end, index)
            positions = {each: self._consumer.position(each, timeout_ms=1000) for each in left}
            progress.at(self.records, sum(position or 0 for position in positions.values()))
            done = [each for each, position in positions.items() if (position or 0) >= left[each]]
            for each in done:
                del left[each]
                self._consumer.pause(each)

    def _poll(self, progress: _Progress) -> dict[TopicPartition, list[Any]]:
        try:
            return self._consumer.poll(POLL_MS)
        except Exception as error:
            progress.failed(error)
            self._skip_what_is_gone(error)
            time.sleep(RETRY_SECONDS)
            return {}

    def _skip_what_is_gone(self, error: Exception) -> None:
        """Go on at the log's start where it has passed the position meanwhile."""
        from kafka.errors import OffsetOutOfRangeError

        if isinstance(error, OffsetOutOfRangeError):
            starts = self.log_starts([each.partition for each in self._consumer.assignment()])
            for each in self._consumer.assignment():
                if (self._consumer.position(each) or 0) < starts[each.partition]:
                    self._consumer.seek(each, starts[each.partition])

    def _take(self, partition: int, records: list[Any], end: int, index: JournalIndex) -> None:
        voids: dict[str, int | None] = {}
        for record in records:
            if record.offset >= end:
                return
            self.records += 1
            key = unpack_key(record.key)
            if key is None:
                continue
            batch = Batch(partition, key)
            if record.value is None:
                self._garbage.gone(batch)
                if self._older is not None:
                    self._older.pop(batch, None)
                continue
            if key.token not in voids:
                voids[key.token] = self._claims.void_from(key.token).get(partition)
            void = voids[key.token]
            if void is not None and record.offset >= void:
                self._garbage.void(batch)
                continue
            entries = unpack_batch(record.value)
            if self._token is None:
                self._written[batch] = record.timestamp
            if key.token != self._token:
                self._note(batch, record.offset, entries)
            index.apply(entries)

    def _note(self, batch: Batch, offset: int, entries: list[Entry]) -> None:
        self.known.update(entry.journal for entry in entries)
        # A removal that may come to nothing must not make anything garbage.
        if self._claims.undecided(batch.key.token):
            return
        if self._older is None:
            self._garbage.add(batch, offset, entries)
        else:
            self._older[batch] = offset, [_without_data(entry) for entry in entries]

    def _retried(self, ask: Callable[[], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
        progress = _Progress(self._settings, 0)
        while True:
            try:
                return ask()
            except Exception as error:
                progress.failed(error)
                time.sleep(RETRY_SECONDS)


def _without_data(entry: Entry) -> Entry:
    """What garbage needs of an entry."""
    first = {record.seq: record for record in entry.records}
    return entry._replace(records=[replace(record, step="", data=b"") for record in first.values()])


class _Progress:
    """Tells how far a long scan is, and ends one that does not go on.

    Args:
        settings: How long it may stand still.
        offsets: How many offsets it has to pass.
    """

    def __init__(self, settings: KafkaSettings, offsets: int) -> None:
        self._seconds = settings.rebuild_seconds
        self._offsets = offsets
        self._moved = self._told = time.monotonic()
        self._last: tuple[int, int] | None = None
        self._first: int | None = None
        self._error: Exception = TimeoutError("no record came")

    def at(self, records: int, position: int) -> None:
        """Note how far it is.

        Raises:
            StoreUnavailableError: It has not moved for too long.
        """
        now = time.monotonic()
        if self._last != (records, position):
            self._last, self._moved = (records, position), now
            self._first = position if self._first is None else self._first
        elif now - self._moved > self._seconds:
            raise self._stuck()
        if now - self._told > PROGRESS_SECONDS:
            self._told = now
            passed = position - (self._first or 0)
            _log.info("reading the journals: about %d of %d offsets", passed, self._offsets)

    def failed(self, error: Exception) -> None:
        """Note a failure that may pass.

        Raises:
            StoreUnavailableError: It has not passed for too long.
        """
        self._error = error
        if time.monotonic() - self._moved > self._seconds:
            raise self._stuck()

    def _stuck(self) -> Exception:
        return unavailable(f"reading did not go on for {self._seconds:g} s", self._error)
