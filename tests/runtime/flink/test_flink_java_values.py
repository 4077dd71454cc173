"""Values of Java in rows of tables become values of Python, or are refused by name."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from pyflink.common import Row

from flink_agents.api.errors import UnsupportedTableError
from flink_agents.runtime.flink.values.rows import read_row


class PyJObject:
    """Stands for a handle of Java, as thread mode makes them.

    Args:
        name: The class.
        text: What its ``toString`` gives.
        seconds: Of a duration.
    """

    def __init__(self, name: str, text: str, seconds: int = 0) -> None:
        self._name = name
        self._text = text
        self._seconds = seconds

    def getClass(self) -> PyJObject:
        return self

    def getName(self) -> str:
        return self._name

    def toString(self) -> str:
        return self._text

    def getSeconds(self) -> int:
        return self._seconds

    def getNano(self) -> int:
        return 500_000_999


VALUES = [
    (PyJObject("java.time.LocalDateTime", "2024-02-29T12:30"), datetime(2024, 2, 29, 12, 30)),
    (
        PyJObject("java.time.LocalDateTime", "2024-02-29T12:30:15.123456789"),
        datetime(2024, 2, 29, 12, 30, 15, 123456),
    ),
    (
        PyJObject("java.time.Instant", "2024-02-29T12:30:15.5Z"),
        datetime(2024, 2, 29, 12, 30, 15, 500000, tzinfo=UTC),
    ),
    (PyJObject("java.time.LocalDate", "2024-02-29"), date(2024, 2, 29)),
    (PyJObject("java.time.LocalTime", "06:30"), time(6, 30)),
    (PyJObject("java.time.Duration", "PT-0.5S", -1), timedelta(seconds=-0.5)),
]


@pytest.mark.parametrize(("java", "value"), VALUES, ids=lambda value: str(value)[:30])
def test_times_become_those_of_python(java: Any, value: Any) -> None:
    row = Row(1, java, [java], {"x": java}, Row(java, (java,)))
    read_row(row)
    assert list(row)[:4] == [1, value, [value], {"x": value}]
    assert list(row[4]) == [value, (value,)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("java.time.Period", "P1Y"),
        ("java.time.LocalDateTime", "+12024-02-29T12:30"),
        ("java.time.LocalDate", "-0044-03-15"),
    ],
)
def test_what_python_has_not_is_refused(name: str, text: str) -> None:
    with pytest.raises(UnsupportedTableError, match="a value that Python does not support") as raised:
        read_row(Row(PyJObject(name, text)))
    assert name in str(raised.value) and text in str(raised.value)
