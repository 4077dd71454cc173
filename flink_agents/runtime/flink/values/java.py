"""Values of Java in a worker, and streams of tables' rows that PyFlink does not convert.

In thread mode, Python calls Java in its own process. PyFlink's conversions lose values (see ``cells``), so
rows pass in both directions as Java has them, and Python makes and reads the values in them.
"""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyflink.common import Types
from pyflink.datastream import DataStream, FlatMapFunction, MapFunction, RuntimeContext
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction

_ROW = "org.apache.flink.types.Row"
_READ = ("java.time.LocalDateTime", "java.time.Instant", "java.time.LocalDate", "java.time.LocalTime")


class WorkerValues:
    """Makes values of Java in a worker.

    Classes are looked up before the first record: a class that Python sees for the first time inside a record
    corrupts the JVM.
    """

    def __init__(self) -> None:
        pemja: Any = importlib.import_module("pemja")  # Only a worker has it.
        row, *times = [pemja.findClass(name) for name in (_ROW, *_READ)]
        self._row = row
        self._timestamp, self._instant, self._date, self._time = times

    def row(self, cells: tuple[Any, ...]) -> Any:
        """Return a row."""
        return self._row.of(cells)

    def instant(self, seconds: int, nanoseconds: int) -> Any:
        """Return a time since the epoch."""
        return self._instant.ofEpochSecond(seconds, nanoseconds)

    def timestamp(self, at: dt.datetime) -> Any:
        """Return a date and time without a zone."""
        nanoseconds = at.microsecond * 1000
        return self._timestamp.of(at.year, at.month, at.day, at.hour, at.minute, at.second, nanoseconds)

    def date(self, days: int) -> Any:
        """Return a date, from days since the epoch."""
        return self._date.ofEpochDay(days)

    def time(self, nanoseconds: int) -> Any:
        """Return a time of day."""
        return self._time.ofNanoOfDay(nanoseconds)


class RowFunction(Protocol):
    """Converts rows."""

    def open(self, java: WorkerValues) -> None:
        """Get what makes values of Java, before the first row."""
        ...

    def __call__(self, value: Any, /) -> Any:
        """Convert a row."""
        ...


class _WriteRows(MapFunction):
    def __init__(self, function: RowFunction) -> None:
        self._shipped = ShippedFunction(function)

    def open(self, runtime_context: RuntimeContext) -> None:
        function: Any = self._shipped.function
        function.open(WorkerValues())

    def map(self, value: Any) -> Any:
        return self._shipped(value)


class _ReadRows(FlatMapFunction):
    def __init__(self, function: RowFunction, uses: Iterable[Any]) -> None:
        self._shipped = ShippedFunction(function, uses)

    def open(self, runtime_context: RuntimeContext) -> None:
        function: Any = self._shipped.function
        function.open(WorkerValues())

    def flat_map(self, value: Any) -> Any:
        return self._shipped(value)


class _OtherType:
    """A stream of Java, and its transformation, with another type for the function that reads it."""

    def __init__(self, java: Any, kind: Any) -> None:
        self._java = java
        self._kind = kind

    def getTransformation(self) -> _OtherType:
        return self

    def getOutputType(self) -> Any:
        return self._kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._java, name)


def _unconverted_type(names: list[str]) -> Any:
    """Return a type whose fields PyFlink converts in neither direction."""
    return Types.ROW_NAMED(names, [Types.PRIMITIVE_ARRAY(Types.BYTE()) for _ in names])


def write_rows(stream: DataStream, function: RowFunction, names: list[str], sql: str) -> DataStream:
    """Return the rows that a function makes of a stream's values, for a table.

    Args:
        stream: The values.
        function: Returns a row whose cells are values of Java.
        names: The columns.
        sql: The type of the rows, in SQL.
    """
    rows = stream.map(_WriteRows(function), output_type=_unconverted_type(names))
    jvm: Any = get_gateway().jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    logical = jvm.org.apache.flink.table.types.logical.utils.LogicalTypeParser.parse(sql, loader)
    data = jvm.org.apache.flink.table.types.utils.TypeConversions.fromLogicalToDataType(logical)
    external = jvm.org.apache.flink.table.runtime.typeutils.ExternalTypeInfo.of(data)
    flink_compat.java_stream(rows).getTransformation().setOutputType(external)
    return rows


def row_type_of(table: Any) -> Any:
    """Return Java's logical type of the rows of a table. No public method has it without a conversion."""
    return table._j_table.getResolvedSchema().toSourceRowDataType().getLogicalType()


def read_rows(
    stream: DataStream, function: RowFunction, names: list[str], uses: Iterable[Callable[..., Any]]
) -> DataStream:
    """Return the values that a function makes of a table's rows.

    Args:
        stream: The rows.
        function: Returns the values for a row whose cells are values of Java.
        names: The columns.
        uses: Classes of the user inside it.
    """
    unconverted = _unconverted_type(names).get_java_type_info()
    untouched: Any = _OtherType(flink_compat.java_stream(stream), unconverted)
    return DataStream(untouched).flat_map(_ReadRows(function, uses))
