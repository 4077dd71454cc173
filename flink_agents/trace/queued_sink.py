"""Gives a sink its own thread and queue, so that a slow sink does not delay other sinks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """Takes batches of records. One thread calls its methods, which may block and raise."""

    def write(self, records: Sequence[T_contra]) -> None:
        """Write a batch of records; an exception means that none of them is written."""
        ...

    def close(self) -> None:
        """Write what is buffered, and release all resources."""
        ...


class QueuedSink(Generic[T]):
    """A sink that queues records immediately, and writes them in its own thread.

    Args:
        name: Name of the sink, for its thread.
        sink: Writes the records.
        most: Maximum number of queued records; a single batch may be larger.
        on_error: Called by the sink's thread with the number of records that it did not write, and the
            error.
    """

    def __init__(
        self, name: str, sink: Sink[T], most: int, on_error: Callable[[int, BaseException], None]
    ) -> None:
        self._name = name
        self._sink = sink
        self._most = most
        self._on_error = on_error
        self._changed = threading.Condition()
        self._batches: deque[Sequence[T]] = deque()
        self._waiting = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, records: Sequence[T]) -> None:
        """Queue a batch of records, without waiting.

        Raises:
            BufferError: The queue is full. Nothing was queued.
        """
        with self._changed:
            if self._waiting and self._waiting + len(records) > self._most:
                raise BufferError("the queue of the sink is full")
            self._batches.append(records)
            self._waiting += len(records)
            self._changed.notify_all()
        if self._thread is None:
            # A daemon: a sink that hangs must not keep the process.
            name = f"flink-agents-trace-{self._name}"
            self._thread = threading.Thread(target=self._write_batches, name=name, daemon=True)
            self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until the sink has all queued records; return False after ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def end(self) -> None:
        """Let the thread close the sink after all queued records. Does not wait."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let the thread close the sink after all queued records, and wait for that."""
        self.end()
        if self._thread is None:
            self._sink.close()
        else:
            self._thread.join()

    def _write_batches(self) -> None:
        while batch := self._next_batch():
            try:
                self._sink.write(batch)
            except Exception as error:
                self._on_error(len(batch), error)
            with self._changed:
                self._waiting -= len(batch)
                self._changed.notify_all()
        try:
            self._sink.close()
        except Exception as error:
            self._on_error(0, error)

    def _next_batch(self) -> Sequence[T]:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closing)
            return self._batches.popleft() if self._batches else ()
