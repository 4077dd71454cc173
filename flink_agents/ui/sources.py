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
    """New lines.

    Attributes:
        place: File or topic of the lines.
        lines: The lines.
    """

    place: str
    lines: list[bytes]


@dataclass
class Removed:
    """A file that was removed.

    Attributes:
        place: The file.
    """

    place: str


class Source(Protocol):
    """Returns new lines since the last read."""

    def read(self) -> Iterator[Lines | Removed]:
        """Yield new lines in batches."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@dataclass
class _Position:
    inode: int
    offset: int = 0


@dataclass
class TraceFiles:
    """Follows the files of a directory, or one file. It reads each byte once.

    Attributes:
        place: The directory or file.
    """

    place: Path
    _positions: dict[Path, _Position] = field(default_factory=dict[Path, _Position])

    def read(self) -> Iterator[Lines | Removed]:
        """Yield appended lines. An incomplete last line waits for its end."""
        files = sorted(self.place.rglob(f"*{SUFFIX}")) if self.place.is_dir() else [self.place]
        for gone in self._positions.keys() - set(files):
            del self._positions[gone]
            yield Removed(str(gone))
        for file in files:
            try:
                yield from self._file(file)
            except OSError:
                # The sink removed it meanwhile, or it is not there yet.
                continue

    def _file(self, file: Path) -> Iterator[Lines | Removed]:
        """Yield the complete lines of a file after the position up to which it was read."""
        with file.open("rb") as opened:
            status = file.stat()
            position = self._positions.get(file)
            # Another file has its name now, or it was truncated.
            if position is not None and (position.inode != status.st_ino or status.st_size < position.offset):
                position = None
                yield Removed(str(file))
            if position is None:
                position = self._positions[file] = _Position(status.st_ino)
            opened.seek(position.offset)
            rest = b""
            while chunk := opened.read(CHUNK):
                data = rest + chunk
                complete, newline, rest = data.rpartition(b"\n")
                if newline:
                    position.offset += len(complete) + 1
                    yield Lines(str(file), complete.split(b"\n"))

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
        """Yield the records that were appended."""
        consumer = self._consumer or self._open()
        while polled := consumer.poll(timeout_ms=100):
            for partition, records in polled.items():
                lines = [one.value for one in records if one.value is not None]
                yield Lines(f"{self._topic}/{partition.partition}", lines)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Any:
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        from flink_agents.connectors.kafka.client import check_topic, made_client, reaching

        with reaching():
            check_topic(self._topic, self._client, "the topic that the sink kafka of the trace writes")
            consumer = made_client(KafkaConsumer, group_id=None, enable_auto_commit=False, **self._client)
            numbers = consumer.partitions_for_topic(self._topic) or ()
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
        self._consumer = consumer
        return consumer
