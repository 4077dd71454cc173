"""Converts Java values in the rows of a table to Python values.

PyFlink's thread mode only converts the classes of ``java.sql``. SQL columns have those of ``java.time``.
For these, Python gets a handle that belongs to the interpreter of its task, and can neither be stored nor
sent on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pyflink.common import Row

from flink_agents.api.errors import UnsupportedTableError

_PLAIN = frozenset({int, str, float, bool, bytes, type(None), Decimal, datetime, date, time})


def _duration(java: Any) -> timedelta:
    return timedelta(seconds=java.getSeconds(), microseconds=java.getNano() // 1000)


_READ: dict[str, Callable[[Any], Any]] = {
    # Python supports microseconds, and drops further digits.
    "java.time.LocalDateTime": lambda java: datetime.fromisoformat(str(java.toString())),
    "java.time.Instant": lambda java: datetime.fromisoformat(str(java.toString())),
    "java.time.LocalDate": lambda java: date.fromisoformat(str(java.toString())),
    "java.time.LocalTime": lambda java: time.fromisoformat(str(java.toString())),
    "java.time.Duration": _duration,
}


def read_row(row: Row) -> None:
    """Replace Java values in a row and its nested values with Python values.

    Raises:
        UnsupportedTableError: Python has no value for one of them.
    """
    for index, value in enumerate(row):
        if type(value) not in _PLAIN:
            row[index] = _read(value)


def _read(value: Any) -> Any:
    """Return a value with Python values in place of Java values. A row is changed in place."""
    if isinstance(value, Row):
        read_row(value)
    elif isinstance(value, list):
        return [_read(each) for each in value]
    elif isinstance(value, tuple):
        return tuple(_read(each) for each in value)
    elif isinstance(value, dict):
        return {_read(key): _read(each) for key, each in value.items()}
    elif type(value).__name__ == "PyJObject":
        return _of_java(value)
    return value


def _of_java(java: Any) -> Any:
    name = str(java.getClass().getName())
    if name not in _READ:
        raise _refused(name, str(java.toString()))
    try:
        return _READ[name](java)
    except (ValueError, OverflowError) as error:
        raise _refused(name, str(java.toString())) from error


def _refused(name: str, text: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "a row of a table has a value that Python does not support",
        expected="dates and times of the years 1 to 9999, durations, and other types that Flink converts",
        found=f"{text[:200]}, of the class {name}",
        fix="cast the column in the query: CAST(... AS STRING)",
    )
