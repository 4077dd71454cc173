"""The store ``kafka``; see the package."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from flink_agents.api.action_state import (
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    StoreStats,
    check_records,
    pruned_error,
)
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import (
    AgentsError,
    RecordTooLargeError,
    StoreError,
    StoreUnavailableError,
)
from flink_agents.connectors.action_state.group_writer import OnEnd
from flink_agents.connectors.action_state.kafka.garbage import Garbage
from flink_agents.connectors.action_state.kafka.layout import (
    FORGET,
    Entry,
    pack_offsets,
    partition_of,
    unpack_offsets,
)
from flink_agents.connectors.action_state.kafka.markers import Markers
from flink_agents.connectors.action_state.kafka.ownership.claims import Claims, ClaimsWriter, check_topic
from flink_agents.connectors.action_state.kafka.ownership.takeover import TakeOver
from flink_agents.connectors.action_state.kafka.remembered import Remembered
from flink_agents.connectors.action_state.kafka.scan import Scanner
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, quiet_client
from flink_agents.connectors.action_state.kafka.topics import find_topics, stored_bytes
from flink_agents.connectors.action_state.kafka.writer import KafkaWrite, KafkaWriter
from flink_agents.connectors.action_state.threaded import ThreadedStore
from flink_agents.kafka_clients import close_producer

T = TypeVar("T")

_log = bounded_logger("flink_agents.store")

CLOSE_SECONDS = 15.0
"""Time that :meth:`~KafkaStore.close` waits for the brokers."""

PRUNED_AT_ONCE = 1000
"""After this many pruned journals, the reader drops them from memory."""

MANY_CLAIMS = 100
"""If there are more claims than this, besides two per subtask, an owner reads all journals to remove some."""

FRAME_BYTES = 1024
"""The most bytes that a message has besides its records."""


class KafkaStore(ThreadedStore[KafkaWrite]):
    """A store in two Kafka topics. It is opened once.

    Args:
        settings: Brokers, names of the topics, timeouts and limits.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(f"the store in topic {settings.topic!r}", CLOSE_SECONDS)
        self.settings = settings
        self._positions: dict[int, int] = {}
        self._garbage = Garbage()
        self._pruned: deque[tuple[JournalKey, int]] = deque()
        self._tidying: asyncio.Future[None] | None = None
        self._appending: Counter[JournalKey] = Counter()
        self._fresh: dict[int, asyncio.Future[None]] = {}
        self._wanted: dict[int, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KafkaStore:
        """Return a store for options by their names below ``action-state.kafka.``."""
        return cls(KafkaSettings.from_options(options))

    @property
    @override
    def store_id(self) -> str:
        """UUID of the journal topic, which differs after the topic is deleted and created again."""
        self._require_open()
        return str(self._topic.id)

    @property
    @override
    def max_record_bytes(self) -> int:
        return self.settings.max_record_bytes

    @override
    def metrics(self) -> Mapping[str, int]:
        return {**self.measured.values(), **self._garbage.counts()}

    def _run_on_reader(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function on the reader thread.

        An unexpected exception becomes a ``StoreUnavailableError``.
        """
        return super()._run_on_reader(functools.partial(_run_operation, self._place, call))

    # -- open -------------------------------------------------------------------------

    async def _connect(
        self, owner: Owner | None, opened: list[Callable[[], object]]
    ) -> tuple[Callable[[OnEnd], KafkaWriter], list[Callable[[], object]]]:
        reader_closers = await self._in_thread(lambda: self._open_clients(owner, opened))
        if owner is not None:
            takeover = TakeOver(self._claims, self._claims_writer, self._read_ends)
            self._markers.ends = await takeover.run(owner, self._in_thread)
            self._positions.update(self._markers.ends)
            claim_limit = MANY_CLAIMS + 2 * owner.parallelism
            # Other jobs take takeover if this one is restarted again and again without its first subtask.
            if len(self._claims.of_group(owner.group)) > (4 * claim_limit if owner.subtask else claim_limit):
                self._run_on_reader(lambda: self._clear_claims(owner)).add_done_callback(_log_failure)
        create_writer = functools.partial(
            KafkaWriter,
            self.settings,
            self._topic,
            self._producer,
            self._claims,
            owner,
            self._claims_writer,
            self._garbage,
            self._positions,
            asyncio.get_running_loop(),
            self.measured,
        )
        return create_writer, reader_closers

    def _open_clients(
        self, owner: Owner | None, opened: list[Callable[[], object]]
    ) -> list[Callable[[], object]]:
        """Create the clients, check the topics, and read the claims.

        Args:
            owner: The owner that appends; None for a reader.
            opened: Gets the function that closes each client, as soon as it is created.

        Returns:
            The functions that close the clients of the reader thread.
        """
        quiet_client()
        self.settings.check_client_options()
        self._topic, claims_topic = find_topics(self.settings, create=owner is not None)
        token = owner.token if owner is not None else None
        self._markers = Markers(self._topic, owner)
        self._claims = Claims(self.settings, claims_topic, token)
        opened.append(self._claims.close)
        reader_claims = Claims(self.settings, claims_topic, token)
        opened.append(reader_claims.close)
        if owner is not None:
            kept_removals = self.settings.removals // self._topic.partitions
            self._garbage = Garbage(Remembered(kept_removals, kept_removals // owner.parallelism), token)
        self._scanner = Scanner(self.settings, self._topic, reader_claims, self._garbage, token)
        opened.append(self._scanner.close)
        self._producer = self.settings.create_producer()
        opened.append(functools.partial(close_producer, self._producer, 0.0))
        self._claims_writer = ClaimsWriter(self._producer, claims_topic, self.settings)
        # In this order: an owner that appends has described the topic before.
        ends = self._read_ends()
        self._claims.refresh()
        check_topic(self._claims, self._topic, is_used=any(ends.values()))
        if self._claims.described is None and owner is not None:
            self._claims_writer.write_topic_description(self._topic)
        return [reader_claims.close, self._scanner.close]

    def _read_ends(self) -> dict[int, int]:
        return self._scanner.log_ends(list(range(self._topic.partitions)))

    # -- claims that are no longer needed -------------------------------------------------

    def _clear_claims(self, owner: Owner) -> None:
        """Read all journals, and remove the claims of the group that are unnecessary.

        Removals of ended owners are marked to be written again, so that their claims become unnecessary as
        well.
        """
        self._scanner.read_from(dict.fromkeys(range(self._topic.partitions), 0))
        self._remove_claims(owner)
        # Batches of ended owners still hold removals of remembered keys: rewriting them frees the claims.
        self._garbage.adopt_removals(self._scanner.ended_tokens(owner.group))

    def _remove_claims(self, owner: Owner) -> None:
        """Remove the unnecessary claims of the owner's group, unless another owner outranks this one."""
        claims = self._scanner.claims
        claims.refresh()
        done = self._scanner.done_claims(owner.group)
        is_outranked = (
            claims.is_undecided(owner.token) or claims.void_from(owner.token) or claims.is_lost(owner.token)
        )
        if (done or claims.orphans) and not is_outranked:
            self._claims_writer.remove_claims(owner, claims, done)

    def _remove_claims_after_read(self) -> None:
        """Remove claims that are known to be unnecessary after a read. Only subtask 0 does so."""
        if self._owner is not None and self._owner.subtask == 0:
            try:
                self._remove_claims(self._owner)
            except StoreError as error:
                _log.warning("claims that are no longer needed could not be removed: %s", error)

    # -- plans ----------------------------------------------------------------------------

    async def remember_plan(self, fingerprint: str, data: bytes) -> None:
        """Store the bytes of an agent's plan in the claims topic, which each owner reads in any case."""
        self._require_owned()
        await self._in_thread(lambda: self._write_plan(fingerprint, data))

    def _write_plan(self, fingerprint: str, data: bytes) -> None:
        self._scanner.claims.refresh()
        if fingerprint not in self._scanner.claims.plans:
            self._claims_writer.write_plan(fingerprint, data)

    async def recall_plan(self, fingerprint: str) -> bytes | None:
        """Return the stored bytes of the plan with a fingerprint; None if there are none."""
        return (await self.plans()).get(fingerprint)

    @override
    async def plans(self) -> dict[str, bytes]:
        self._require_open()
        await self._in_thread(self._scanner.claims.refresh)
        return dict(self._scanner.claims.plans)

    # -- writing ----------------------------------------------------------------------

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        writer = self._require_owned()
        records = tuple(records)
        check_records(records, self.max_record_bytes)
        _check_message_size(journal, records, self.settings.message_bytes)
        if not records:
            return
        self._appending[journal] += 1
        try:
            await writer.submit_with_future(KafkaWrite(Entry(journal, records)))
        finally:
            self._appending[journal] -= 1
            if not self._appending[journal]:
                self._appending.pop(journal)  # a Counter deletes more slowly, in Python

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        writer = self._require_open()
        if not self._has_journal(journal):
            await self.rebuild(journal)
        if self._has_journal(journal):
            await writer.submit_with_future(KafkaWrite(Entry(journal, (), through_seq)))
            partition = partition_of(journal, self._topic.partitions)
            if journal in self._scanner.index:
                self._pruned.append((journal, through_seq))
            if len(self._pruned) >= PRUNED_AT_ONCE or self._garbage.is_over(partition):
                self._drop_pruned_journals()

    def _drop_pruned_journals(self) -> None:
        """Let the reader thread drop pruned journals from memory, unless it is doing that already."""
        if self._owner is None or (self._tidying is not None and not self._tidying.done()):
            return
        pruned = [self._pruned.popleft() for _ in range(len(self._pruned))]
        self._tidying = self._run_on_reader(lambda: self._scanner.drop_pruned(pruned))
        self._tidying.add_done_callback(_log_failure)

    @override
    async def forget(self, journal_id: str) -> None:
        writer = self._require_owned()
        await self.rebuild()
        journals = await self._in_thread(lambda: self._describe_journals(journal_id, None, sys.maxsize))
        removals = [KafkaWrite(Entry(info.journal, (), FORGET)) for info in journals]
        await asyncio.gather(*(writer.submit_with_future(write) for write in removals))

    def _has_journal(self, journal: JournalKey) -> bool:
        """Return True if a journal has a record in the topic, or an append in flight."""
        return journal in self._appending or self._garbage.knows(journal)

    # -- markers ----------------------------------------------------------------------

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        self._require_open()
        if self._owner is None or journal in self._scanner.known_journals:
            return True
        partition = partition_of(journal, self._topic.partitions)
        start = self._scanner.starts.get(partition)
        if start is None:
            return True
        wanted = self._markers.start_offset(marker, partition, pending)
        return wanted is None or wanted < start

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        self._require_open()
        if journal is None:
            await self._read_from(dict.fromkeys(range(self._topic.partitions), 0))
            return
        partition = partition_of(journal, self._topic.partitions)
        self._markers.check_marker(journal, marker, partition)
        wanted = self._markers.start_offset(marker, partition, pending) or 0
        self._markers.note_bound(marker, partition)
        if not self._has_read(partition, wanted):
            await self._read_partition_from(partition, wanted)
        if marker is not None and pending:
            self._markers.check_begin(journal, partition, wanted, self._scanner.begins.get(partition, 0))

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        """Return a packed marker with the end of the key's partition, as last known here."""
        self._require_open()
        partition = partition_of(journal, self._topic.partitions)
        return self._markers.create_marker(partition, self._positions.get(partition, 0))

    @override
    def position(self) -> bytes:
        return pack_offsets(self._positions)

    @override
    async def check_position(self, position: bytes) -> None:
        self._require_open()
        offsets = unpack_offsets(position)
        begins = await self._in_thread(lambda: self._scanner.log_starts(list(offsets)))
        self._markers.check_offsets(offsets, begins)

    # -- reading ----------------------------------------------------------------------

    async def _read_from(self, wanted: Mapping[int, int]) -> None:
        """Read all records from the given offsets to the present ends of their partitions."""
        await self._in_thread(lambda: self._read_all(wanted))
        self._update_measurements()

    def _read_all(self, wanted: Mapping[int, int]) -> None:
        self._scanner.read_from(wanted)
        self._remove_claims_after_read()

    def _update_measurements(self) -> None:
        self.measured.rebuild_records = self._scanner.records
        self.measured.rebuild_seconds = self._scanner.seconds

    def _has_read(self, partition: int, wanted: int) -> bool:
        start = self._scanner.starts.get(partition)
        return start is not None and start <= wanted

    async def _read_partition_from(self, partition: int, wanted: int) -> None:
        """Read a partition from an offset on.

        Concurrent callers share one read, as many keys return at once.
        """
        with self._lock:
            self._wanted[partition] = min(wanted, self._wanted.get(partition, wanted))
        await self._in_thread(lambda: self._read_wanted(partition, wanted))
        self._update_measurements()

    def _read_wanted(self, partition: int, wanted: int) -> None:
        """Read each partition that callers wait for from the lowest offset that one of them needs."""
        with self._lock:
            starts = self._wanted
            self._wanted = {}
        # The caller that read it for this one may have failed.
        starts[partition] = min(wanted, starts.get(partition, wanted))
        remaining_starts = {p: start for p, start in starts.items() if not self._has_read(p, start)}
        if remaining_starts:
            self._scanner.read_from(remaining_starts)
            self._remove_claims_after_read()

    async def _refresh_partition(self, partition: int) -> None:
        """Read the records of a partition that exist at this call. Concurrent callers share one read."""
        with self._lock:
            waiting = self._fresh.get(partition)
            if waiting is None:
                waiting = self._fresh[partition] = self._run_on_reader(lambda: self._read_fresh(partition))
        await asyncio.shield(waiting)

    def _read_fresh(self, partition: int) -> None:
        """Read the new records of a partition, for all callers that asked before this began."""
        with self._lock:
            del self._fresh[partition]
        self._scanner.read_from({partition: self._scanner.starts.get(partition, 0)})

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        self._require_open()
        await self._refresh_partition(partition_of(journal, self._topic.partitions))
        return await self._in_thread(lambda: self._scan_journal(journal, from_seq, to_seq))

    def _scan_journal(self, journal: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        through = self._garbage.pruned_through(journal)
        if from_seq is not None and from_seq <= through:
            raise pruned_error(journal, from_seq, through)
        return self._scanner.index.scan(journal, from_seq, to_seq)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        self._require_open()
        await self._refresh_partition(partition_of(journal, self._topic.partitions))
        return await self._in_thread(
            lambda: max(self._garbage.pruned_through(journal), self._scanner.index.pruned_through(journal))
        )

    @override
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        await self.rebuild()
        return await self._in_thread(lambda: self._describe_journals(journal_id, after, limit))

    def _describe_journals(
        self, journal_id: str | None, after: JournalKey | None, limit: int
    ) -> list[JournalInfo]:
        return self._scanner.index.describe(journal_id, after, limit, self._garbage.pruned())

    @override
    async def stats(self) -> StoreStats:
        await self.rebuild()
        journals, records, data_bytes = await self._in_thread(
            lambda: self._scanner.index.totals(self._garbage.pruned())
        )
        owners = await self._in_thread(self._scanner.owners)
        details = await self._in_thread(self._scanner.details)
        size = await self._in_thread(lambda: stored_bytes(self.settings))
        return StoreStats(journals, records, data_bytes, size, owners, details)


def _run_operation(place: str, call: Callable[[], T]) -> T:
    """Call a function; turn an unexpected exception into an error of the store, and log it.

    Args:
        place: What cannot be read then, for the error.
        call: The function.

    Raises:
        StoreUnavailableError: The function raised an exception that is not one of this package.
    """
    try:
        return call()
    except AgentsError:
        raise
    except Exception as error:
        _log.exception("the thread that reads for %s met an unexpected error", place)
        raise StoreUnavailableError(
            f"{place} cannot be read",
            found=f"{type(error).__name__}: {error}",
            fix="none, if the job restarts and continues; otherwise report it, with the log of this process",
        ) from error


def _log_failure(tidying: asyncio.Future[None]) -> None:
    """Log the exception of a clean-up in the background; the next one tries again."""
    if not tidying.cancelled() and (error := tidying.exception()) is not None:
        _log.warning("pruned journals could not be dropped: %s", error)


def _check_message_size(journal: JournalKey, records: Sequence[Record], limit: int) -> None:
    """Check that the records of one append fit into one Kafka message.

    Args:
        journal: The journal.
        records: The records.
        limit: Maximum size of a message in bytes.

    Raises:
        RecordTooLargeError: They do not.
    """
    size = (len(journal.journal_id) + len(journal.key)) * 4 + FRAME_BYTES
    for record in records:
        size += len(record.data) + len(record.step) * 4 + 64
    if size > limit:
        raise RecordTooLargeError(
            "the records of one append are too large together",
            expected=f"at most {limit} bytes",
            found=f"about {size} bytes in {len(records)} records",
            fix="record less: return references to large data, or parts of it",
        )
