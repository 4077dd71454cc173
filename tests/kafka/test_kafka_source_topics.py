"""A source that continues from a savepoint reads its own topics, not all of those that the savepoint has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flink_agents.connectors.kafka.source import ReadRecords, Topics
from flink_agents.connectors.kafka.values import ValueReader
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions


class Context:
    def timestamp(self) -> int:
        return 1


def values_of(topics: Topics, records: list[str]) -> list[str]:
    """Return the values that a source of these topics emits for a record of each of the others."""
    read = ReadRecords(ValueReader(str, "value"), ValueReader(str | None, "key"), False, "fail", topics)
    rows: list[Any] = [(None, topic.encode(), {}, topic, 0, offset) for offset, topic in enumerate(records)]
    return [value for row in rows for value in read.process_element(row, Context())]


@each_case(
    ("topics", "records", "expected"),
    [
        ("a", ["a", "b", "a"], ["a", "a"]),
        ("ab", ["a", "b", "ab"], ["ab"]),
        (["a", "b"], ["a", "b", "c", "c"], ["a", "b"]),
        (("a",), ["b", "b"], []),
        (
            re.compile("orders-.*"),
            ["orders-1", "orders", "my-orders-1", "orders-2"],
            ["orders-1", "orders-2"],
        ),
    ],
)
def test_records_of_other_topics_are_left_out(
    topics: Topics, records: list[str], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    assert values_of(topics, records) == expected
    left_out = {topic for topic in records if topic not in expected}
    assert len(caplog.messages) == len(left_out), "each of them is reported once"
