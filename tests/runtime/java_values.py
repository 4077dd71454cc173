"""Stands for values of Java, as a worker in thread mode makes and reads them, and for types of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

from flink_agents.runtime.flink.values.rows import ColumnReader

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ROOTS = {
    "STRING": "VARCHAR",
    "BYTES": "VARBINARY",
    "INT": "INTEGER",
    "TIME": "TIME_WITHOUT_TIME_ZONE",
    "TIMESTAMP": "TIMESTAMP_WITHOUT_TIME_ZONE",
    "TIMESTAMP_LTZ": "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
}
_TOKEN = re.compile(r"`(?:[^`]|``)*`|\w+|[<>,]")


class JavaTime:
    """Stands for a time of Java.

    Args:
        text: What its ``toString`` returns.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def toString(self) -> str:
        return self._text


class JavaRow:
    """Stands for a row of Java.

    Args:
        cells: Its values.
    """

    def __init__(self, *cells: Any) -> None:
        self._cells = cells

    def getField(self, index: int) -> Any:
        return self._cells[index]


class StandInValues:
    """Makes what :class:`~flink_agents.runtime.flink.values.cells.JavaValues` makes, without Java."""

    def row(self, cells: tuple[Any, ...]) -> JavaRow:
        return JavaRow(*cells)

    def instant(self, seconds: int, nanoseconds: int) -> JavaTime:
        at = EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
        return JavaTime(f"{at.replace(tzinfo=None).isoformat()}Z")

    def timestamp(self, at: datetime) -> JavaTime:
        return JavaTime(at.isoformat())

    def date(self, days: int) -> JavaTime:
        return JavaTime(date.fromordinal(EPOCH.toordinal() + days).isoformat())

    def time(self, nanoseconds: int) -> JavaTime:
        return JavaTime((EPOCH + timedelta(microseconds=nanoseconds // 1000)).time().isoformat())


def reader_of(sql: str) -> ColumnReader:
    """Return the reader of a column.

    Args:
        sql: The column's type in SQL.
    """
    return _read_type(iter(_TOKEN.findall(re.sub(r"\(.*?\)", "", sql))))


def _read_type(tokens: Iterator[str]) -> ColumnReader:
    name = next(tokens)
    if name not in ("ROW", "ARRAY", "MAP"):
        return ColumnReader(_ROOTS.get(name, name))
    names: list[str] = []
    inner: list[ColumnReader] = []
    while next(tokens) != ">":  # "<" or ","
        if name == "ROW":
            names.append(next(tokens)[1:-1].replace("``", "`"))
        inner.append(_read_type(tokens))
        if name == "ARRAY" or (name == "MAP" and len(inner) == 2):
            assert next(tokens) == ">"
            break
    return ColumnReader(name, tuple(names), tuple(inner))
