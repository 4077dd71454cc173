"""The thread that appends to a store ``kafka``.

Each turn sends one batch to each partition, so that one round trip serves many appends. An append is done
when Kafka has it, and the owner's lease is still valid or the claims, read afterwards, name no later owner;
see ``lease`` and ``claims``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from typing_extensions import override

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    JournalKey,
    Owner,
    pruned_error,
    stale_error,
)
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import StoreError
from flink_agents.connectors.action_state.group_writer import (
    BatchLimits,
    GroupWriter,
    OnEnd,
    Outcome,
    PendingWrite,
    StoreMetrics,
)
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.layout import (
    FORGET,
    LOOKER,
    BatchKey,
    Entry,
    pack_batch,
    pack_entry,
    pack_key,
    partition_of,
)
from flink_agents.connectors.action_state.kafka.ownership.claims import Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.ownership.lease import Lease
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, unavailable_error
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.kafka_clients import close_producer

_log = bounded_logger("flink_agents.store")

BATCH_BYTES = 1024 * 1024
"""A Kafka record takes no more appends once it has this many bytes."""

LIMITS = BatchLimits(writes=2000, size=BATCH_BYTES, pause_seconds=0.02)
"""Limits of a turn; sizes are known only when appends are packed, so bytes do not limit it."""

SPARSE_AT_ONCE = 10_000
SLICE_SECONDS = 0.2
ABANDONED_SECONDS = 0.0
CLOSE_SECONDS = 5.0
UNDECIDED_SECONDS = 0.005


class KafkaWrite(PendingWrite):
    """An append or a removal that waits for its batch.

    Args:
        entry: The entry to write.

    Attributes:
        outcome: The error of the write; None as long as it has not failed.
    """

    __slots__ = ("entry", "outcome")

    def __init__(self, entry: Entry) -> None:
        # The base class's code is repeated here for speed: each durable call makes several of these.
        self.future = None
        self.size = 0
        self.entry = entry
        self.outcome: Outcome = None


class _Packed(NamedTuple):
    """A batch that is ready to be sent.

    Attributes:
        batch: Its partition and key.
        writes: The writes that it contains.
        value: The value of its Kafka record.
    """

    batch: Batch
    writes: list[KafkaWrite]
    value: bytes


class _Sent(NamedTuple):
    """A batch that was sent, and may be stored or not.

    Attributes:
        batch: Its partition and key.
        writes: The writes that it contains.
        report: The future of kafka-python with the metadata of its record.
    """

    batch: Batch
    writes: list[KafkaWrite]
    report: Any


class KafkaWriter(GroupWriter[KafkaWrite]):
    """Sends the batches of one owner, and reports when their appends are done.

    Args:
        settings: Settings of the store.
        journals: The journal topic.
        producer: The producer; from now on, only this thread uses it.
        claims: The claims; from now on, only this object reads them.
        owner: The owner that appends; None for a writer that only removes, and needs no claim.
        claims_writer: Writes heartbeats.
        garbage: Records the content of all written batches.
        positions: Last known end offset of each partition; updated by this thread.
        loop: The event loop on which futures are resolved.
        metrics: Receives counts and durations of the writes.
        on_end: Called on the loop with the unresolved futures, after the thread has ended.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        journals: Topic,
        producer: KafkaProducer,
        claims: Claims,
        owner: Owner | None,
        claims_writer: ClaimsWriter,
        garbage: Garbage,
        positions: dict[int, int],
        loop: asyncio.AbstractEventLoop,
        metrics: StoreMetrics,
        on_end: OnEnd,
    ) -> None:
        place = f"topic {journals.name}"
        super().__init__(place, LIMITS, settings.lease_seconds, loop, metrics, on_end)
        self._settings = settings
        self._topic = journals.name
        self._partitions = journals.partitions
        self._producer = producer
        self._owner = owner
        self._token = owner.token if owner is not None else LOOKER + Owner.create("", "").token
        self._lease = Lease(claims, self._token, settings.append_lease_seconds if owner is not None else 0)
        self._claims_writer = claims_writer
        self._garbage = garbage
        self._positions = positions
        self._numbers = itertools.count()
        self._wrote = False

    def start(self) -> None:
        """Start the thread that writes, and the one that renews the lease."""
        self._lease.start()
        super().start()

    def _write_batch(self, batch: list[KafkaWrite]) -> list[Outcome]:
        self._wrote = True
        self._lease.note_append()
        sent = self._send_batches(self._pack_writes(batch))
        self._send_dead()
        self._await_acknowledgements(sent)
        self._check_sent(sent)
        if time.monotonic() > self._beat_at:
            self._renew_idle_lease()
        return [write.outcome for write in batch]

    # -- to Kafka ---------------------------------------------------------------------

    def _pack_writes(self, writes: list[KafkaWrite]) -> deque[_Packed]:
        """Pack writes into batches of at most :packed_entry:`BATCH_BYTES`, in order.

        Reject appends to pruned runs.
        """
        by_partition: dict[int, list[KafkaWrite]] = {}
        removed: dict[JournalKey, int] = {}
        for write in writes:
            write.outcome = self._pruned_run_error(write.entry, removed)
            if write.outcome is None:
                partition = partition_of(write.entry.journal, self._partitions)
                by_partition.setdefault(partition, []).append(write)
        batches: deque[_Packed] = deque()
        for partition, partition_writes in by_partition.items():
            packed: list[bytes] = []
            batch_writes: list[KafkaWrite] = []
            size = 0
            for write in partition_writes:
                packed_entry = pack_entry(write.entry)
                write.size = len(packed_entry)
                if batch_writes and size + write.size > BATCH_BYTES:
                    batches.append(self._pack_batch(partition, batch_writes, packed))
                    packed = []
                    batch_writes = []
                    size = 0
                packed.append(packed_entry)
                batch_writes.append(write)
                size += write.size
            batches.append(self._pack_batch(partition, batch_writes, packed))
        return batches

    def _pack_batch(self, partition: int, writes: list[KafkaWrite], packed: list[bytes]) -> _Packed:
        return _Packed(
            Batch(partition, BatchKey(self._token, next(self._numbers))), writes, pack_batch(packed)
        )

    def _send_batches(self, batches: deque[_Packed]) -> list[_Sent]:
        """Pass batches to the producer, in order, and return those that it accepted.

        Packing is over by then, so that the producer gets the whole turn at once and makes few requests of
        it.
        """
        sent: list[_Sent] = []
        while batches:
            # The client has its own copy, so that large records need not be in memory twice.
            batch, writes, value = batches.popleft()
            try:
                report = self._producer.send(
                    self._topic, key=pack_key(batch.key), value=value, partition=batch.partition
                )
            except Exception as error:
                # The client did not even accept it.
                for write in writes:
                    write.outcome = unavailable_error(f"topic {self._topic!r} cannot be written", error)
                self._metrics.count_failure()
                continue
            sent.append(_Sent(batch, writes, report))
        return sent

    def _send_dead(self) -> None:
        """Send tombstones for batches that are not needed; those that cannot be sent are sent later."""
        if self._owner is None and not self._wrote:
            return  # A reader without a claim leaves the topic as it is.
        dead = self._garbage.take_dead()
        for number, (partition, key) in enumerate(dead):
            try:
                sent: Any = self._producer.send(
                    self._topic, key=pack_key(key), value=None, partition=partition
                )
            except Exception as error:
                # An append's caller gets the error. In this order: a removal comes after the removed records.
                self._garbage.put_back(dead[number:])
                _log.warning(
                    "batches that are no longer needed could not be removed from %s: %s", self._topic, error
                )
                return
            sent.add_errback(self._note_failed_removal)

    def _note_failed_removal(self, error: BaseException) -> None:
        """Keep all removals from now on: it is unknown if this batch was removed."""
        self._garbage.keep_removals()
        _log.warning("a batch that is no longer needed was not removed from %s: %s", self._topic, error)

    def _await_acknowledgements(self, sent: list[_Sent]) -> None:
        """Wait until each batch is acknowledged, or its time is over; set the outcome of its writes."""
        deadline = time.monotonic() + self._settings.append_seconds + CLOSE_SECONDS
        for batch, writes, report in sent:
            try:
                while not report.is_done and not self._abandoned and time.monotonic() < deadline:
                    _wait_for_acknowledgement(report, SLICE_SECONDS)
                if not report.is_done:
                    raise TimeoutError("no report")
                offset = report.get(timeout=0).offset
                if offset < 0:
                    # Without its offset, it can neither be compared with a fence nor removed.
                    raise LookupError("stored, but the broker does not report its offset")
            except Exception as error:
                failure = self._unacknowledged_error(error)
                for write in writes:
                    write.outcome = copy.copy(failure)
                continue
            self._positions[batch.partition] = max(self._positions.get(batch.partition, 0), offset + 1)

    # -- ownership --------------------------------------------------------------------

    def _check_sent(self, sent: list[_Sent]) -> None:
        """Reject the batches that do not count after a takeover; record the content of the others."""
        error, void = self._takeover_error() if self._owner is not None and sent else (None, {})
        for batch, writes, report in sent:
            if writes[0].outcome is not None:
                continue
            if error is not None and report.value.offset >= void.get(batch.partition, 0):
                for write in writes:
                    write.outcome = copy.copy(error)
                continue
            self._garbage.add_batch(batch, report.value.offset, [write.entry for write in writes])

    def _takeover_error(self) -> tuple[StoreError | None, Mapping[int, int]]:
        """Return the error for appends after another owner took over, and the offsets from which it applies.

        The error is None if no other owner took over. Without a valid lease, this reads the claims, and waits
        until a later owner has written its fence.
        """
        assert self._owner is not None
        # Everything was acknowledged before the clock is read here.
        if self._lease.covers():
            return None, {}
        deadline = time.monotonic() + self._settings.append_seconds
        try:
            standing = self._lease.check_owner(self._settings.append_seconds)
            while standing.undecided:
                if time.monotonic() > deadline or self._abandoned:
                    waited = TimeoutError("another owner has claimed, and makes no progress")
                    return self._unacknowledged_error(waited), {}
                time.sleep(UNDECIDED_SECONDS)
                standing = self._lease.check_owner(self._settings.append_seconds)
        except StoreError as error:
            return self._unacknowledged_error(error), {}
        if standing.lost:
            # It was paused for so long that the new owner is gone as well, with its fence.
            return self._unacknowledged_error(stale_error(self._owner)), {}
        if not standing.void:
            return None, {}
        self._failure = stale_error(self._owner)
        return self._failure, standing.void

    @override
    def _renew_idle_lease(self) -> None:
        """Send a heartbeat, check for owners that took over, and remove batches that are no longer needed."""
        self._beat_at = time.monotonic() + self._beat_seconds
        if self._failure is not None:
            return
        try:
            sparse: list[tuple[JournalKey, int]] = []
            if self._owner is not None:
                self._claims_writer.write_heartbeat(self._owner)
                standing = self._lease.last_look(min(self._settings.append_seconds, CLOSE_SECONDS))
                if standing.void or standing.lost:
                    self._failure = stale_error(self._owner)
                # An owner with nothing to append need not wait for an undecided claim.
                if standing.undecided:
                    return
                sparse = self._garbage.take_sparse(SPARSE_AT_ONCE, self._owner)
            rewritten_entries = [
                Entry(journal, (), through, since)
                for journal, through in sparse
                if (since := self._garbage.removal_start(journal)) is not None
            ]
            if rewritten_entries:
                self._write_batch([KafkaWrite(entry) for entry in rewritten_entries])
            else:
                self._send_dead()
        except Exception as error:
            # An append will meet the same error, and has a caller that gets it.
            _log.warning("no heartbeat could be written to %s: %s", self._topic, error)

    # -- outcomes ---------------------------------------------------------------------

    def _pruned_run_error(self, entry: Entry, removed: dict[JournalKey, int]) -> StoreError | None:
        """Return the error for an append to a run that was removed before, also in this turn; else None."""
        through = max(self._garbage.pruned_through(entry.journal), removed.get(entry.journal, NOTHING_PRUNED))
        if entry.through == FORGET:
            return None
        if entry.through is not None:
            removed[entry.journal] = max(entry.through, through)
        for record in entry.records:
            if record.seq <= through:
                return pruned_error(entry.journal, record.seq, through)
        return None

    def _unacknowledged_error(self, cause: BaseException) -> StoreError:
        return self._unknown_write_error(f"an append to topic {self._topic!r} was not acknowledged", cause)

    def _close_resources(self) -> None:
        try:
            if not self._abandoned:
                self._send_dead()
                if self._owner is not None:
                    self._claims_writer.write_release(self._owner, CLOSE_SECONDS)
        except Exception as error:
            _log.warning("the end of an owner could not be written to %s: %s", self._topic, error)
        finally:
            try:
                close_producer(self._producer, ABANDONED_SECONDS if self._abandoned else CLOSE_SECONDS)
            except Exception as error:  # Brokers that are away do not take the rest.
                _log.warning("the producer of topic %s was not closed in order: %s", self._topic, error)
            self._lease.close(ABANDONED_SECONDS if self._abandoned else CLOSE_SECONDS)


def _wait_for_acknowledgement(report: Any, seconds: float) -> None:
    """Block until a future of kafka-python is resolved, at most ``seconds``."""
    with contextlib.suppress(KafkaTimeoutError):
        report.get(seconds)
