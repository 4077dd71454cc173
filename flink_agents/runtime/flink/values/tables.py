"""Streams through Flink's tables: rows that PyFlink does not convert, and outputs with a timestamp.

In thread mode, Python calls Java in its own process. PyFlink's conversions lose values (see ``cells``), so
rows pass in both directions as Java has them, and Python makes and reads the values in them.

If an agent holds event time, each output needs the timestamp of its input, while PyFlink gives it that of the
timer or none; and no Python function can emit a watermark. So an output leaves in an envelope with its
timestamp and the low watermark of its subtask (``operator.low_watermark``). A table turns them into the row's
timestamp and the stream's watermark, and drops envelopes without an output. Outputs without a timestamp use a
side output, to which PyFlink gives none.
"""

from __future__ import annotations

import datetime as dt
import importlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyflink.common import Row, TypeInformation, Types
from pyflink.datastream import DataStream, FlatMapFunction, MapFunction, OutputTag, RuntimeContext
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.services.service import Emission

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
        """Return an instant, from seconds since the epoch and the nanoseconds after them."""
        return self._instant.ofEpochSecond(seconds, nanoseconds)

    def timestamp(self, at: dt.datetime) -> Any:
        """Return a date and time without a zone."""
        nanoseconds = at.microsecond * 1000
        return self._timestamp.of(at.year, at.month, at.day, at.hour, at.minute, at.second, nanoseconds)

    def date(self, days: int) -> Any:
        """Return a date, from days since the epoch."""
        return self._date.ofEpochDay(days)

    def time(self, nanoseconds: int) -> Any:
        """Return a time of day, from nanoseconds since midnight."""
        return self._time.ofNanoOfDay(nanoseconds)


class RowFunction(Protocol):
    """Converts a stream's values to rows, or rows to values."""

    def open(self, java: WorkerValues) -> None:
        """Get what makes values of Java, before the first row."""
        ...

    def __call__(self, value: Any, /) -> Any:
        """Convert a value to a row, or a row to values."""
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
    flink_compat.transformation_of(rows).setOutputType(external)
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


# -- timestamps ---------------------------------------------------------------------------


def envelope_type() -> TypeInformation:
    """Return the type of an envelope: a pickled value, its timestamp, and an output watermark.

    Created each time: a type that was used cannot be pickled.
    """
    return Types.ROW_NAMED(
        ["pickled", "stamp", "low"], [Types.PICKLED_BYTE_ARRAY(), Types.LONG(), Types.LONG()]
    )


def untimed_tag(tag: str = "") -> str:
    """Return the tag for values without a timestamp, in place of ``tag`` or of the main output."""
    return f"untimed/{tag}"


class Envelopes:
    """Makes the envelopes that leave the operator."""

    def __init__(self, low: LowWatermark) -> None:
        self._low = low

    def wrap_outputs(self, emission: Emission) -> Emission:
        """Put each output with a timestamp into an envelope; others use the tag of :func:`untimed_tag`.

        Empty envelopes follow, which carry the watermarks that are due.
        """
        rows = Emission()
        for (tag, value), at in zip(emission.side_outputs, emission.side_timestamps, strict=True):
            self._add_value(rows, tag, value, at)
        for value, at in zip(emission.outputs, emission.timestamps, strict=True):
            self._add_value(rows, "", value, at)
        for tag in self._low.due():
            self._put_row(rows, tag, Row(None, None, self._low.take_for_row(tag)))
        return rows

    def _add_value(self, rows: Emission, tag: str, value: Any, at: int | None) -> None:
        if at is None:
            rows.side_outputs.append((untimed_tag(tag), value))
        else:
            self._put_row(rows, tag, Row(value, at, self._low.take_for_row(tag)))

    def _put_row(self, rows: Emission, tag: str, row: Row) -> None:
        if tag:
            rows.side_outputs.append((tag, row))
        else:
            rows.outputs.append(row)


def _open_envelope(row: Any) -> Any:
    return None if row[0] is None else pickle.loads(row[0])


def restamp(tables: Any, stream: DataStream, tag: str, kind: TypeInformation) -> DataStream:
    """Return the values of an operator's output, each with its timestamp, and the watermark.

    Args:
        tables: A table environment whose sources become idle after the agent's idle time-out.
        stream: The main output of the operator.
        tag: The side output; empty for the main output.
        kind: Type of the values.
    """
    from pyflink.table import DataTypes, Schema
    from pyflink.table.expressions import col

    schema = (
        Schema.new_builder()
        .column("pickled", DataTypes.BYTES())
        .column("stamp", DataTypes.BIGINT())
        .column("low", DataTypes.BIGINT())
        # A row without a time would fail the job, before it is dropped.
        .column_by_expression("event_time", "TO_TIMESTAMP_LTZ(COALESCE(stamp, 0), 3)")
        .column_by_expression("low_watermark", "TO_TIMESTAMP_LTZ(low, 3)")
        .watermark("event_time", "low_watermark")
        .build()
    )
    envelopes = stream.get_side_output(OutputTag(tag, envelope_type())) if tag else stream
    table = tables.from_data_stream(envelopes, schema)
    values = table.filter(col("stamp").is_not_null).select(col("pickled"), col("event_time"))
    # A metadata column costs no conversion to Python.
    timed = (
        Schema.new_builder()
        .column("pickled", DataTypes.BYTES())
        .column_by_metadata("event_time", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
        .build()
    )
    rows = tables.to_changelog_stream(values, timed)
    parallelism = flink_compat.parallelism_of(stream)
    values = rows.map(ShippedFunction(_open_envelope), output_type=kind).set_parallelism(parallelism)
    untimed_values = stream.get_side_output(OutputTag(untimed_tag(tag), kind)).set_parallelism(parallelism)
    return values.union(untimed_values)
