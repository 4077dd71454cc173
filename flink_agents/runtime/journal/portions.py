"""Splits records into appends that a store accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flink_agents.api.action_state import Record, check_records

FRAME = 64
"""An upper bound for the bytes that a store uses for a record besides its data and its step."""


def portions(records: list[Record], limit: int) -> Sequence[list[Record]]:
    """Return records in portions of about ``limit`` bytes, in order. Usually there is one.

    Failures that go with a success come before it. If all of it is too large, they are in an earlier portion:
    then their history is stored first, in the order in which it happened.

    Args:
        records: The records.
        limit: The most bytes of a record.

    Raises:
        RecordTooLargeError: One of them is too large. It is raised before the first portion.
    """
    if len(records) == 1 or sum([len(record.data) + len(record.step) + FRAME for record in records]) <= limit:
        return (records,)
    check_records(records, limit)
    return list(_split(records, limit))


def _split(records: list[Record], limit: int) -> Iterator[list[Record]]:
    portion = list[Record]()
    size = 0
    for record in records:
        if portion and size + _size(record) > limit:
            yield portion
            portion = []
            size = 0
        portion.append(record)
        size += _size(record)
    yield portion


def _size(record: Record) -> int:
    return len(record.data) + len(record.step) + FRAME
