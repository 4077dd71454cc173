"""Partitions in memory that are compacted at moments that the test chooses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest
from kafka.structs import TopicPartition

from flink_agents.connectors.action_state.kafka.garbage import Garbage
from flink_agents.connectors.action_state.kafka.layout import pack_batch, pack_entry, pack_key
from flink_agents.connectors.action_state.kafka.scan import Scanner
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import Topic

POLLED = 3
"""So few records come at once that the end of a part lies anywhere."""


class Message(NamedTuple):
    """A record of Kafka."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int = 0


class Log:
    """A topic in memory.

    Attributes:
        between: Called whenever somebody has read a few records.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions: list[list[Message]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.begins = [0] * partitions
        self.between: Callable[[], None] = lambda: None

    def append(self, partition: int, key: bytes, value: bytes | None) -> int:
        """Append a record; returns its offset."""
        offset = self.ends[partition]
        self.partitions[partition].append(Message(offset, key, value))
        self.ends[partition] += 1
        return offset

    def compact(self, partition: int, through: int, and_removals: bool) -> None:
        """Do as the log cleaner does for what lies before an offset."""
        messages = self.partitions[partition]
        last = {message.key: message.offset for message in messages if message.offset < through}
        self.partitions[partition] = [
            message
            for message in messages
            if message.offset >= through
            or (last[message.key] == message.offset and not (and_removals and message.value is None))
        ]

    def bytes(self) -> int:
        """What it takes."""
        return sum(
            len(message.key) + len(message.value or b"") for part in self.partitions for message in part
        )


class LogConsumer:
    """Reads a log as a consumer of kafka-python does, as far as it is asked here."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._at: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._at = dict.fromkeys(partitions, 0)

    def resume(self, *_: TopicPartition) -> None:
        self._paused.clear()

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused |= set(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._at[partition] = offset

    def position(self, partition: TopicPartition, timeout_ms: int = 0) -> int:
        return self._at[partition]

    def beginning_offsets(self, asked: list[TopicPartition], timeout_ms: int) -> Mapping[TopicPartition, int]:
        return {partition: self._log.begins[partition.partition] for partition in asked}

    def end_offsets(self, asked: list[TopicPartition], timeout_ms: int) -> Mapping[TopicPartition, int]:
        return {partition: self._log.ends[partition.partition] for partition in asked}

    def poll(self, _: int) -> dict[TopicPartition, list[Message]]:
        polled_messages: dict[TopicPartition, list[Message]] = {}
        for partition in self._at.keys() - self._paused:
            messages = self._log.partitions[partition.partition]
            polled_messages[partition] = [
                message for message in messages if message.offset >= self._at[partition]
            ][:POLLED]
            whole = not polled_messages[partition] or polled_messages[partition][-1] is messages[-1]
            self._at[partition] = (
                self._log.ends[partition.partition] if whole else polled_messages[partition][-1].offset + 1
            )
        self._log.between()
        return polled_messages

    def close(self) -> None: ...


class AllCount:
    """Claims of which none was ever outranked."""

    def refresh(self) -> None: ...

    def knows(self, _: str) -> bool:
        return True

    def void_from(self, _: str) -> dict[int, int]:
        return {}

    def is_undecided(self, _: str) -> bool:
        return False


def scanner_of(
    monkeypatch: pytest.MonkeyPatch, log: Log, garbage: Garbage, token: str | None, claims: Any = None
) -> Scanner:
    """A scanner that reads a log in memory."""
    monkeypatch.setattr(KafkaSettings, "create_consumer", lambda _: LogConsumer(log))
    read_by: Any = claims or AllCount()
    topic = Topic("journals", uuid.UUID(int=1), len(log.partitions))
    return Scanner(KafkaSettings("nowhere:1"), topic, read_by, garbage, token)


def packed(entries: Iterable[Any]) -> bytes:
    """The value of a batch."""
    return pack_batch([pack_entry(entry) for entry in entries])


__all__ = ["AllCount", "Log", "LogConsumer", "Message", "pack_key", "packed", "scanner_of"]
