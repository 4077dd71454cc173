"""Reads a topic until now, of brokers that are slow or that stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kafka.structs import TopicPartition

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.requests import latest
from tests.suite.tables import each_case

ONE = TopicPartition("t", 0)
MARK = -1
"""The mark of a transaction: it has an offset, and a poll returns nothing for it."""


class Consumer:
    """Answers polls as listed: the number of records that come, or a mark; later polls are empty."""

    def __init__(self, polls: Sequence[int], end: int) -> None:
        self._polls = list(polls)
        self._end = end
        self._at = 0

    def end_offsets(self, partitions: Sequence[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self._end)

    def position(self, partition: Any) -> int:
        return self._at

    def poll(self, timeout_ms: int) -> dict[Any, list[int]]:
        number = self._polls.pop(0) if self._polls else 0
        begin = self._at
        self._at = self._at + abs(number)
        return {ONE: list(range(begin, self._at))} if number > 0 else {}


@each_case("polls", [[4], [0, 4], [2, 0, 0, 2], [0, 0, 1, 0, 1, 0, 1], [1, MARK, 2], [MARK, MARK], []])
def test_an_empty_poll_is_not_the_end(polls: list[int]) -> None:
    consumer = Consumer(polls, sum(map(abs, polls)))
    assert len(list(latest.records_until_now(consumer, [ONE]))) == sum(poll for poll in polls if poll > 0)


@each_case("polls", [[], [3], [MARK, 3, MARK]])
def test_brokers_that_stop_are_an_error(monkeypatch: pytest.MonkeyPatch, polls: list[int]) -> None:
    monkeypatch.setattr(latest, "STALLED_SECONDS", 0.0)
    records = list[Any]()
    with pytest.raises(KafkaStreamError, match="stopped sending records: t/0 at offset . of 9"):
        records.extend(latest.records_until_now(Consumer(polls, 9), [ONE]))
