"""A Kafka record as a job sees it: its value with key, headers and place, or the reason why it is invalid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flink_agents.api.lineage import OutputLineage
from flink_agents.connectors.kafka.headers import ID, TRACEPARENT, read_lineage
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders

T = TypeVar("T")


@dataclass(frozen=True)  # With slots, KafkaRecord[int](...) would fail.
class KafkaRecord(Generic[T]):
    """A record of a topic, read by ``kafka_source(..., records=True)`` or written by ``kafka_sink``.

    A sink uses its value, key, headers and timestamp; the sink decides the topic.

    Attributes:
        value: The value; None for a deletion (a record without a value).
        key: The key; None if it has none.
        headers: Its headers by name, :class:`KafkaHeaders` if it was read. A sink also takes a dictionary.
        timestamp: Milliseconds since the epoch. None for a sink: use the timestamp that the stream has.
        topic: The topic that it was read from; None for a record to write.
        partition: Number of its partition; None for a record to write.
        offset: Its offset in that partition; None for a record to write.
    """

    value: T
    key: Any = None
    headers: Mapping[str, bytes | None] = KafkaHeaders()
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @property
    def place(self) -> str | None:
        """``topic/partition/offset``; None if it was not read from Kafka."""
        return None if self.topic is None else f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def message_id(self) -> str | None:
        """The id that an agent gave to the message, else its place.

        Outputs of a run name it as their parent.
        """
        header = self.headers.get(ID)
        return self.place if header is None else header.decode("utf-8", "replace")

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context in its headers, whose trace its runs continue; None if there is none."""
        header = self.headers.get(TRACEPARENT)
        return None if header is None else header.decode("ascii", "replace").strip()

    @property
    def lineage(self) -> OutputLineage | None:
        """The run that emitted it; None if no agent applied with ``lineage=True`` did."""
        return read_lineage(self.headers)


@dataclass(frozen=True, slots=True)
class KafkaDeadLetter:
    """A record whose key or value does not have the declared type, with its original bytes.

    Attributes:
        record: The record, with key and value as bytes.
        error_type: Class name of the error.
        error: Message of the error.
    """

    record: KafkaRecord[bytes | None]
    error_type: str
    error: str
