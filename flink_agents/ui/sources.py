"""Sources of records: files of the sink ``jsonl``, or a topic of the sink ``kafka``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flink_agents.trace.sinks.jsonl import SUFFIX

CHUNK = 1 << 20


@dataclass
class Lines:
    """Lines that were added to a source.

    Attributes:
        place: The file, or topic and partition, that they came from.
        lines: The lines, without line breaks.
    """

    place: str
    lines: list[bytes]


@dataclass
class Removed:
    """A file that was removed or rewritten, so that its records no longer count.

    Attributes:
        place: The path of the file.
    """

    place: str


class Source(Protocol):
    """A place with records; each read continues where the last one ended."""

    def read(self) -> Iterator[Lines | Removed]:
        """Yield the lines since the last call, in batches, and the files that were removed."""
        ...

    def close(self) -> None:
        """Close what stays open between two reads."""
        ...


@dataclass
class _Position:
    inode: int
    offset: int = 0
    size: int = -1
    changed: int = 0


@dataclass
class TraceFiles:
    """Follows the files of a directory, or one file. Each byte is read once.

    Attributes:
        place: The directory or file.
    """

    place: Path
    _positions: dict[Path, _Position] = field(default_factory=dict[Path, _Position])

    def read(self) -> Iterator[Lines | Removed]:
        """Yield added lines and removed files. A last line without a line break waits for its end."""
        files = sorted(self.place.rglob(f"*{SUFFIX}")) if self.place.is_dir() else [self.place]
        for removed_file in self._positions.keys() - set(files):
            del self._positions[removed_file]
            yield Removed(str(removed_file))
        for file in files:
            try:
                yield from self._read_file(file)
            except OSError:
                # The sink removed it meanwhile, or it is not there yet.
                continue

    def _read_file(self, file: Path) -> Iterator[Lines | Removed]:
        """Yield the complete lines that were added to a file; all of them if the file was replaced."""
        with file.open("rb") as opened:
            status = file.stat()
            position = self._positions.get(file)
            if position is not None and (status.st_size, status.st_mtime_ns) == (
                position.size,
                position.changed,
            ):
                # A line whose end was never written is read once.
                return
            # Another file has its name now, it was truncated, or a key was erased in it.
            if position is not None and (
                position.inode != status.st_ino
                or status.st_size < position.offset
                or (status.st_size == position.size and position.changed)
            ):
                position = None
                yield Removed(str(file))
            if position is None:
                position = self._positions[file] = _Position(status.st_ino)
            opened.seek(position.offset)
            line_parts: list[bytes] = []
            while chunk := opened.read(CHUNK):
                complete, newline, after = chunk.rpartition(b"\n")
                if newline:
                    complete = b"".join([*line_parts, complete])
                    position.offset += len(complete) + 1
                    yield Lines(str(file), complete.split(b"\n"))
                    line_parts = []
                line_parts.append(after)
            position.size = position.offset + sum(map(len, line_parts))
            # If it grew meanwhile, the time of the change is not known.
            position.changed = status.st_mtime_ns if position.size == status.st_size else 0

    def close(self) -> None:
        """Do nothing: no file stays open between two reads."""


class TraceTopic:
    """Follows a topic of records from its start.

    Args:
        topic: The topic.
        client: Options of kafka-python for the connection.
    """

    def __init__(self, topic: str, client: Mapping[str, Any]) -> None:
        self._topic = topic
        self._client = client
        self._consumer: Any = None

    def read(self) -> Iterator[Lines | Removed]:
        """Yield the records that were added to the topic since the last call."""
        from flink_agents.connectors.kafka.client import translate_client_errors

        consumer = self._consumer or self._open_consumer()
        while True:
            with translate_client_errors():
                polled = consumer.poll(timeout_ms=100)
            if not polled:
                return
            for partition, records in polled.items():
                lines = [record.value for record in records if record.value is not None]
                yield Lines(f"{self._topic}/{partition.partition}", lines)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open_consumer(self) -> Any:
        from kafka.structs import TopicPartition

        from flink_agents.connectors.kafka.client import check_topic, create_consumer, translate_client_errors

        with translate_client_errors():
            check_topic(self._topic, self._client, "the topic that the sink kafka of the trace writes")
            consumer = create_consumer(group_id=None, enable_auto_commit=False, **self._client)
            numbers = consumer.partitions_for_topic(self._topic) or ()
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
        self._consumer = consumer
        return consumer
