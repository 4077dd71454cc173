"""Passes records to sinks in its own thread. Its queue is bounded, and never blocks or fails the job."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.queued_sink import QueuedSink, Sink
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.target import TraceLine, TraceSink

_log = bounded_logger("flink_agents.trace")

PAUSE_SECONDS = 0.2
"""Time that records wait for others, to be written as one batch."""

BATCH = 500
CLOSE_SECONDS = 5.0

LOOK_SECONDS = 0.5
"""Time between two looks at runs that have not ended."""

Pending = Callable[[], TraceRecord]
"""Creates a record in the writer's thread."""

Item = TraceRecord | TraceLine

_AT_ONCE = 16
"""Number of records that are made before other threads may have the interpreter."""


class TraceWriter:
    """Queues records, and writes them to sinks in its own thread.

    Args:
        sinks: The sinks by name. If there are several, each has a thread of its own, so that one that fails
            or hangs does not delay the others.
        most: Maximum number of queued records. Further records are dropped.
        on_drop: Called with the number of dropped records, by any thread.

    Attributes:
        dropped: Number of records dropped so far.
        collect: Called by the thread before it writes the queue; may queue records.
        look: Called by the thread every :data:`LOOK_SECONDS`; may queue records.
        started: True once the thread was started.
    """

    def __init__(
        self, sinks: dict[str, TraceSink], most: int = 10_000, on_drop: Callable[[int], None] = lambda _: None
    ) -> None:
        inputs = {name: input_of(sink) for name, sink in sinks.items()}
        self._queued = {
            name: QueuedSink(name, sink, most, partial(self._count_failed, name))
            for name, sink in inputs.items()
            if len(sinks) > 1
        }
        self._sinks: Mapping[str, Sink[Item]] = self._queued or inputs
        self._most = most
        self._on_drop = on_drop
        self._queue: deque[Pending | TraceLine] = deque()
        self._logged: set[str] = set()
        self._wanted = threading.Event()
        self._written = threading.Condition()
        self._busy = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._counting = threading.Lock()
        self.dropped = 0
        self.collect: Callable[[], None] = lambda: None
        self.look: Callable[[], None] = lambda: None
        self.started = False

    def queue_record(self, pending: Pending) -> None:
        """Queue the creation of a record, or drop it if the queue is full. Never blocks."""
        if len(self._queue) >= self._most:
            self._count_dropped(1, "queue", "the queue is full")
            return
        self._queue.append(pending)
        if not self.started:
            self.start()

    def queue_lines(self, lines: Sequence[TraceLine]) -> None:
        """Queue encoded records, or drop those for which the queue has no room. Never blocks."""
        room = self._most - len(self._queue)
        if room < len(lines):
            self._count_dropped(len(lines) - max(0, room), "queue", "the queue is full")
            lines = lines[: max(0, room)]
        self._queue.extend(lines)

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until the sinks have all queued records; return False after ``seconds``."""
        self.collect()
        self._wanted.set()
        until = time.monotonic() + seconds
        with self._written:
            if not self._written.wait_for(lambda: not self._queue and not self._busy, seconds):
                return False
        return all(sink.flush(max(0.0, until - time.monotonic())) for sink in self._queued.values())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write all queued records, close the sinks, and wait for both at most ``seconds``."""
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def start(self) -> None:
        """Start the thread, unless it was started or the writer is closing."""
        with self._starting:
            self.started = True
            if self._thread is None and not self._closing:
                # A daemon: a sink that hangs must not keep the process.
                self._thread = threading.Thread(
                    target=self._write_batches, name="flink-agents-trace", daemon=True
                )
                self._thread.start()

    def _write_batches(self) -> None:
        looked = time.monotonic()
        while not (self._closing and not self._queue):
            self._wanted.wait(PAUSE_SECONDS)
            self._wanted.clear()
            if (now := time.monotonic()) - looked >= LOOK_SECONDS:
                looked = now
                self._collect_from(self.look)
            self._collect_from(self.collect)
            while self._queue:
                self._write_batch(self._next_batch())
            with self._written:
                self._written.notify_all()
        for queued in self._queued.values():
            queued.end()
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as error:
                self._log_once(name, f"closing failed: {error!r}")

    def _collect_from(self, source: Callable[[], None]) -> None:
        try:
            source()
        except Exception as error:
            # Without this thread, there would be no further trace.
            self.count_unmade(error)

    def _next_batch(self) -> list[Item]:
        self._busy = True
        batch: list[Item] = []
        record_count = 0
        while self._queue and len(batch) < BATCH:
            pending = self._queue.popleft()
            if isinstance(pending, tuple):
                batch.append(pending)
                continue
            try:
                batch.append(pending())
            except Exception as error:
                self.count_unmade(error)
            record_count += 1
            if not record_count % _AT_ONCE:
                # Flink's thread would else wait for the interpreter until its switch interval has passed.
                time.sleep(0)
        return batch

    def _write_batch(self, records: list[Item]) -> None:
        for name, sink in self._sinks.items():
            try:
                if records:
                    sink.write(records)
            except Exception as error:
                self._count_dropped(len(records), name, repr(error))
        with self._written:
            self._busy = False
            self._written.notify_all()

    def _count_failed(self, name: str, number: int, error: BaseException) -> None:
        if number:
            self._count_dropped(number, name, repr(error))
        else:
            self._log_once(name, f"closing failed: {error!r}")

    def count_unmade(self, error: Exception) -> None:
        """Count a record as dropped whose creation raised an exception, and log that once."""
        self._count_dropped(1, "record", f"a record could not be made: {error!r}")

    def _count_dropped(self, number: int, what: str, why: str) -> None:
        with self._counting:
            self.dropped += number
        self._on_drop(number)
        self._log_once(what, why)

    def _log_once(self, what: str, why: str) -> None:
        if what not in self._logged:
            # Once for each sink: a broken one would fill the log.
            self._logged.add(what)
            _log.warning("trace records are dropped (%s): %s; further drops are only counted", what, why)


class _Lines:
    """Passes records as lines to a sink with ``write_lines``."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.close = sink.close

    def write(self, records: Sequence[Item]) -> None:
        self._sink.write_lines(
            [record if isinstance(record, tuple) else line_of(record) for record in records]
        )


class _Records:
    """Passes records to a sink that needs each of them as an object."""

    def __init__(self, sink: TraceSink) -> None:
        self._sink = sink
        self.close = sink.close

    def write(self, records: Sequence[Item]) -> None:
        self._sink.write(list(unfold_records(_parse_records(records))))


def input_of(sink: TraceSink) -> Sink[Item]:
    """Return an adapter that gives a sink what it takes: lines, or records."""
    return _Lines(sink) if hasattr(sink, "write_lines") else _Records(sink)


def line_of(record: TraceRecord) -> TraceLine:
    """Encode a record as a line, after the id of its run."""
    return record.run_id, record.to_bytes() + b"\n"


def _parse_records(records: Sequence[Item]) -> Iterator[TraceRecord]:
    for record in records:
        yield TraceRecord.from_json(record[1]) if isinstance(record, tuple) else record
