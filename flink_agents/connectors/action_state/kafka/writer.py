"""The thread that appends to a store ``kafka``.

All that waits becomes one batch for each partition, so that one round trip serves many appends: while
one is under way, the next one gathers. An append is done when Kafka has it and the claims, read
after that, name no other owner; see ``claims``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kafka import KafkaProducer

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    JournalKey,
    Owner,
    closed_error,
    pruned_error,
    stale_error,
)
from flink_agents.api.errors import AppendOutcomeUnknownError, StoreError
from flink_agents.connectors.action_state.kafka.claims import Claims, ClaimsWriter
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.layout import (
    FORGET,
    BatchKey,
    Entry,
    pack_batch,
    pack_entry,
    pack_key,
    partition_of,
)
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, unavailable
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.connectors.action_state.store_metrics import StoreMetrics

_log = logging.getLogger("flink_agents.store")

BATCH = 2000
BATCH_BYTES = 1024 * 1024
"""A turn takes no more appends than the first; a batch no more after so many bytes."""

BUSY = 8
PAUSE_SECONDS = 0.0001
LONGEST_PAUSE_SECONDS = 0.02
"""After a turn of so many the next one is let grow, for so long for each of them, and no longer than this:
a turn takes the interpreter from the others several times, for many appends no oftener than for few."""

BEATS_PER_LEASE = 4
SPARSE_AT_ONCE = 10_000
SLICE_SECONDS = 0.2
ABANDONED_SECONDS = 0.0
CLOSE_SECONDS = 5.0

Outcome = BaseException | None


class Write:
    """One append, or one removal, on its way.

    Args:
        entry: What is written.
        future: Resolved on its loop; None where nobody waits.
    """

    __slots__ = ("entry", "future", "partition", "size")

    def __init__(self, entry: Entry, future: asyncio.Future[None] | None) -> None:
        self.entry = entry
        self.future = future
        self.partition = 0
        self.size = 0


class _Sent(NamedTuple):
    """A batch that Kafka has or not."""

    batch: Batch
    writes: list[Write]
    report: Any


class KafkaWriter:
    """See the module.

    Args:
        settings: Of the store.
        journals: The topic of journals.
        producer: Appends to it; of this thread alone from now on.
        claims: Read by this thread alone from now on; None where nobody owns.
        owner: Who appends; None removes without being asked for a claim.
        claims_writer: Writes beats.
        garbage: Told of all that was written.
        positions: Where each partition ended when it was last heard of; kept up to date here.
        loop: Where futures are resolved.
        metrics: Of the store.
        on_end: Called on the loop when the thread has ended, behind all outcomes.
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
        on_end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._topic = journals.name
        self._partitions = journals.partitions
        self._producer = producer
        self._claims = claims
        self._owner = owner
        self._token = owner.token if owner is not None else Owner.create("", "").token
        self._claims_writer = claims_writer
        self._garbage = garbage
        self._positions = positions
        self._loop = loop
        self._metrics = metrics
        self._on_end = on_end
        self._numbers = itertools.count()
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._stopping = False
        self._wrote = False
        self._abandoned = False
        self._failure: StoreError | None = None
        self._beat_seconds = settings.lease_seconds / BEATS_PER_LEASE
        self._beat_at = time.monotonic() + self._beat_seconds
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str:
        """Under which it writes."""
        return self._token

    def submit(self, write: Write) -> None:
        """Write ``write`` after all that was submitted before."""
        self._queue.put(write)

    def stop(self) -> None:
        """Write what was submitted, say that the owner has ended, and end."""
        self._queue.put(None)

    def abandon(self) -> None:
        """End without writing what waits, and without a word, as a process that is killed."""
        self._abandoned = True
        self._queue.put(None)

    # -- the thread -------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopping:
                batch = self._take()
                if batch:
                    self._tell(batch, self._write(batch))
                    if len(batch) >= BUSY:
                        time.sleep(min(LONGEST_PAUSE_SECONDS, len(batch) * PAUSE_SECONDS))
                elif not self._stopping:
                    self._beat()
        except BaseException:
            _log.exception("the thread that writes to topic %s ended", self._topic)
        finally:
            self._end()

    def _take(self) -> list[Write]:
        """All that waits, up to a limit; waits until there is something, or for the next beat."""
        batch: list[Write] = []
        try:
            write = self._queue.get(timeout=max(0.0, self._beat_at - time.monotonic()))
            while write is not None:
                batch.append(write)
                if len(batch) >= BATCH:
                    return batch
                write = self._queue.get_nowait()
            self._stopping = True
        except queue.Empty:
            pass
        return batch

    def _write(self, batch: list[Write]) -> list[Outcome]:
        if self._abandoned or self._failure is not None:
            return [self._refusal() for _ in batch]
        began = time.perf_counter()
        outcomes: dict[Write, Outcome] = {}
        self._wrote = True
        sent = self._send(batch, outcomes)
        self._wait_for(sent, outcomes)
        self._check(sent, outcomes)
        self._metrics.appended(len(batch), sum(write.size for write in batch), time.perf_counter() - began)
        if time.monotonic() > self._beat_at:
            self._beat()
        return [outcomes[write] for write in batch]

    # -- to Kafka ---------------------------------------------------------------------

    def _send(self, writes: list[Write], outcomes: dict[Write, Outcome]) -> list[_Sent]:
        """Hand all to the client, in order, in one batch of each partition or a few."""
        by_partition: dict[int, list[Write]] = {}
        removed: dict[JournalKey, int] = {}
        for write in writes:
            outcomes[write] = error = self._pruned(write.entry, removed)
            if error is None:
                write.partition = partition_of(write.entry.journal, self._partitions)
                by_partition.setdefault(write.partition, []).append(write)
        sent: list[_Sent] = []
        for partition, own in by_partition.items():
            packed: list[bytes] = []
            taken: list[Write] = []
            size = 0
            for write in own:
                data = pack_entry(write.entry)
                write.size = len(data)
                if taken and size + write.size > BATCH_BYTES:
                    self._send_batch(partition, taken, packed, sent, outcomes)
                    packed, taken, size = [], [], 0
                packed.append(data)
                taken.append(write)
                size += write.size
            self._send_batch(partition, taken, packed, sent, outcomes)
        self._send_dead()
        return sent

    def _send_batch(
        self,
        partition: int,
        writes: list[Write],
        packed: list[bytes],
        sent: list[_Sent],
        outcomes: dict[Write, Outcome],
    ) -> None:
        key = BatchKey(self._token, next(self._numbers))
        try:
            report = self._producer.send(
                self._topic, key=pack_key(key), value=pack_batch(packed), partition=partition
            )
        except Exception as error:
            # It was not even handed over.
            for write in writes:
                outcomes[write] = unavailable(f"topic {self._topic!r} cannot be written", error)
            self._metrics.failed()
            return
        sent.append(_Sent(Batch(partition, key), writes, report))

    def _send_dead(self) -> None:
        if self._owner is None and not self._wrote:
            return  # who only looks leaves the topic as it is
        for partition, key in self._garbage.take_dead():
            try:
                self._producer.send(self._topic, key=pack_key(key), value=None, partition=partition)
            except Exception as error:
                # It stays until the next attempt reads it; appends have somebody to tell.
                _log.warning("what nobody needs could not be removed from %s: %s", self._topic, error)
                return

    def _wait_for(self, sent: list[_Sent], outcomes: dict[Write, Outcome]) -> None:
        """Wait for the report of each batch."""
        deadline = time.monotonic() + self._settings.append_seconds + CLOSE_SECONDS
        for batch, writes, report in sent:
            try:
                while not report.is_done and not self._abandoned and time.monotonic() < deadline:
                    _wait(report, SLICE_SECONDS)
                if not report.is_done:
                    raise TimeoutError("no report")
                at = report.get(timeout=0).offset
            except Exception as error:
                failure = self._unknown(error)
                for write in writes:
                    outcomes[write] = copy.copy(failure)
                continue
            self._positions[batch.partition] = max(self._positions.get(batch.partition, 0), at + 1)

    # -- ownership --------------------------------------------------------------------

    def _check(self, sent: list[_Sent], outcomes: dict[Write, Outcome]) -> None:
        """Tell what counts of that which Kafka has, and note it."""
        error = self._stale() if self._owner is not None and sent else None
        void = self._claims.void_from(self._token) if error is not None else {}
        for batch, writes, report in sent:
            if outcomes[writes[0]] is not None:
                continue
            if error is not None and report.value.offset >= void.get(batch.partition, 0):
                for write in writes:
                    outcomes[write] = copy.copy(error)
                continue
            self._garbage.add(batch, report.value.offset, [write.entry for write in writes])

    def _stale(self) -> StoreError | None:
        """The error of appends that do not count, where somebody else took over."""
        assert self._owner is not None
        deadline = time.monotonic() + self._settings.append_seconds
        try:
            self._claims.refresh(self._settings.append_seconds)
            while self._claims.undecided(self._token):
                if time.monotonic() > deadline or self._abandoned:
                    return self._unknown(TimeoutError("another owner claims, and does not go on"))
                time.sleep(0.005)
                self._claims.refresh(self._settings.append_seconds)
        except StoreError as error:
            return self._unknown(error)
        if not self._claims.void_from(self._token):
            return None
        self._failure = stale_error(self._owner)
        return self._failure

    def _beat(self) -> None:
        """Tell that the owner lives, look whether it still is one, and tidy up."""
        self._beat_at = time.monotonic() + self._beat_seconds
        if self._failure is not None:
            return
        try:
            sparse: list[tuple[JournalKey, int]] = []
            if self._owner is not None:
                self._claims_writer.beat(self._owner)
                self._claims.refresh(min(self._settings.append_seconds, CLOSE_SECONDS))
                if self._claims.void_from(self._token):
                    self._failure = stale_error(self._owner)
                # Who has nothing to append need not wait for a claim that is not decided.
                if self._claims.undecided(self._token):
                    return
                sparse = self._garbage.take_sparse(SPARSE_AT_ONCE, self._owner)
            if sparse:
                self._write([Write(Entry(journal, (), through), None) for journal, through in sparse])
            else:
                self._send_dead()
        except Exception as error:
            # An append will meet the same error, and has somebody to tell.
            _log.warning("no sign of life could be written to %s: %s", self._topic, error)

    # -- outcomes ---------------------------------------------------------------------

    def _pruned(self, entry: Entry, removed: dict[JournalKey, int]) -> StoreError | None:
        """The error of an append to a run that was removed, before or in this turn."""
        through = max(self._garbage.pruned_through(entry.journal), removed.get(entry.journal, NOTHING_PRUNED))
        if entry.through == FORGET:
            return None
        if entry.through is not None:
            removed[entry.journal] = max(entry.through, through)
        for record in entry.records:
            if record.seq <= through:
                return pruned_error(entry.journal, record.seq, through)
        return None

    def _unknown(self, cause: BaseException) -> StoreError:
        self._metrics.failed()
        self._failure = AppendOutcomeUnknownError(
            f"an append to topic {self._topic!r} was not acknowledged: nobody can tell what is stored",
            found=f"{type(cause).__name__}: {cause}",
            fix="none is needed where the job restarts: the next attempt reads what was stored",
        )
        return self._failure

    def _refusal(self) -> StoreError:
        if self._owner is not None and type(self._failure) is type(stale_error(self._owner)):
            return stale_error(self._owner)
        return closed_error(
            "the store was closed before this could be written"
            if self._failure is None
            else "the store takes nothing more after an append of unknown outcome"
        )

    def _tell(self, writes: Sequence[Write], outcomes: Iterable[Outcome]) -> None:
        told = [
            (write.future, outcome)
            for write, outcome in zip(writes, outcomes, strict=True)
            if write.future is not None
        ]
        try:
            self._loop.call_soon_threadsafe(_resolve, told)
        except RuntimeError:  # the loop is closed: nobody waits
            _log.debug("nobody waits for %d appends", len(told))

    def _end(self) -> None:
        try:
            if not self._abandoned:
                self._send_dead()
                if self._owner is not None:
                    self._claims_writer.release(self._owner, CLOSE_SECONDS)
        except Exception as error:
            _log.warning("the end of an owner could not be told to %s: %s", self._topic, error)
        finally:
            try:
                self._producer.close(timeout=ABANDONED_SECONDS if self._abandoned else CLOSE_SECONDS)
            except Exception as error:  # brokers that are away do not take what is left
                _log.warning("the producer of topic %s was not closed in order: %s", self._topic, error)
            self._claims.close()
            try:
                self._loop.call_soon_threadsafe(self._on_end)
            except RuntimeError:
                _log.debug("nobody waits for the end of the store")


def _wait(report: Any, seconds: float) -> None:
    """Wait until a report is there, for so long at most."""
    from kafka.errors import KafkaTimeoutError

    with contextlib.suppress(KafkaTimeoutError):
        report.get(seconds)


def _resolve(told: Sequence[tuple[asyncio.Future[None], Outcome]]) -> None:
    for future, outcome in told:
        if future.done():  # its caller was cancelled
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
