"""What a record of Kafka is to a job: its value with key, headers and place, or why it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flink_agents.api.lineage import OutputLineage
from flink_agents.connectors.kafka.headers import ID, TRACEPARENT, read_lineage

T = TypeVar("T")


@dataclass(frozen=True)  # with slots, KafkaRecord[int](...) would fail
class KafkaRecord(Generic[T]):
    """A record of a topic, read by ``kafka_source(..., records=True)`` or written by ``kafka_sink``.

    A sink takes value, key, headers and timestamp of it; the topic is the sink's own.

    Attributes:
        value: The value; None for a deletion (a record without a value).
        key: The key, or None.
        headers: Headers by name. Of several headers with one name, the last one is there.
        timestamp: Milliseconds since 1970. None for a sink: the timestamp that the stream's record has.
        topic: Where it was read from.
        partition: Number of the partition that it was read from.
        offset: Its place in that partition.
    """

    value: T
    key: Any = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @property
    def place(self) -> str | None:
        """Where it was read from: ``topic/partition/offset``; None if it was not read."""
        return None if self.topic is None else f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def message_id(self) -> str | None:
        """The id that an agent gave it, else its place; what outputs name as their parent."""
        given = self.headers.get(ID)
        return self.place if given is None else given.decode("utf-8", "replace")

    @property
    def traceparent(self) -> str | None:
        """The header ``traceparent``, whoever wrote it; runs that the record begins continue its trace."""
        given = self.headers.get(TRACEPARENT)
        return None if given is None else given.decode("ascii", "replace").strip()

    @property
    def lineage(self) -> OutputLineage | None:
        """The run that put it out; None if no agent with ``lineage=True`` did."""
        return read_lineage(self.headers)


@dataclass(frozen=True, slots=True)
class KafkaDeadLetter:
    """A record whose key or value does not have the declared type, as it lies in Kafka.

    Attributes:
        record: The record; key and value are bytes, or None.
        error_type: Class of the error.
        error: What is wrong.
    """

    record: KafkaRecord[bytes | None]
    error_type: str
    error: str
