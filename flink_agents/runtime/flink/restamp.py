"""Timestamps and watermarks around an agent that holds event time, by Flink's tables.

In front of the operator, the watermark has to lag by the expected latency. The interval join of
tables holds watermarks back by the width of its interval; one without any records is put in
union with the input, since the watermark of a union is the least of its parts.

Behind it, each output needs the timestamp of its input, while PyFlink gives it the one of the
timer or none. So it leaves in an envelope with its timestamp; a table makes that column the row's
timestamp, and ``SOURCE_WATERMARK()`` lets the watermarks through. What has no timestamp takes a
side output, to which PyFlink gives none.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pyflink.common import Row, TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction
from flink_agents.runtime.operator.event_time import Emission


def envelope_type() -> TypeInformation:
    """A pickled value and its timestamp. Made anew each time: one that was used cannot be pickled."""
    return Types.ROW_NAMED(["pickled", "stamp"], [Types.PICKLED_BYTE_ARRAY(), Types.LONG()])


def untimed(tag: str = "") -> str:
    """Tag of the side output for what has no timestamp, instead of ``tag`` or the main output."""
    return f"untimed/{tag}"


class Envelopes:
    """Makes what leaves the operator; used inside of it.

    Args:
        tags: The side outputs.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        # The operator needs nothing but the names of tags.
        self._tags = {tag: OutputTag(tag, Types.PICKLED_BYTE_ARRAY()) for tag in tags}
        self._untimed = {tag: OutputTag(untimed(tag), Types.PICKLED_BYTE_ARRAY()) for tag in ("", *tags)}

    def of(self, emission: Emission | Run) -> list[Any]:
        """The records in which the values leave."""
        if isinstance(emission, Run):
            main = [self._main(value, emission.timestamp) for value in emission.outputs]
            return [
                *(self._side(tag, value, emission.timestamp) for tag, value in emission.side_outputs),
                *main,
            ]
        side = zip(emission.side_outputs, emission.side_timestamps, strict=True)
        main = zip(emission.outputs, emission.timestamps, strict=True)
        return [
            *(self._side(tag, value, at) for (tag, value), at in side),
            *(self._main(value, at) for value, at in main),
        ]

    def _main(self, value: Any, at: int | None) -> Any:
        return (self._untimed[""], value) if at is None else Row(value, at)

    def _side(self, tag: str, value: Any, at: int | None) -> Any:
        return (self._untimed[tag], value) if at is None else (self._tags[tag], Row(value, at))


def _open_envelope(row: Any) -> Any:
    return None if row[0] is None else pickle.loads(row[0])


def _nothing(record: Any) -> bool:
    return False


def _no_row(record: Any) -> Row:
    return Row(0)


def lag_watermarks(tables: Callable[[], Any], stream: DataStream, lag: timedelta, name: str) -> DataStream:
    """``stream`` with watermarks that are ``lag`` behind its own.

    Args:
        tables: Gives the table environment.
        stream: The stream.
        lag: The lag.
        name: Begin of the names of the new operators.
    """
    milliseconds = lag // timedelta(milliseconds=1)
    if milliseconds == 0:
        return stream
    from pyflink.table.expressions import col, lit

    no_row = Types.ROW_NAMED(["number"], [Types.LONG()])
    empty = flink_compat.empty_branch(stream, no_row)
    if empty is None:
        empty = stream.filter(_nothing).map(_no_row, output_type=no_row)
    left, right = (_events(tables(), empty, suffix) for suffix in ("", "2"))
    width = lit(milliseconds).milli
    joined = left.join(right).where(
        (col("number") == col("number2"))
        & (col("event_time2") >= col("event_time"))
        & (col("event_time2") <= col("event_time") + width)
    )
    nothing = tables().to_data_stream(joined.select(col("number"), col("event_time")))
    nothing = nothing.map(_nothing, output_type=stream.get_type()).name(f"{name} lag")
    # A union takes the parallelism of one of its parts.
    nothing = nothing.set_parallelism(flink_compat.parallelism_of(stream))
    flink_compat.name_branch(nothing, stream, f"{name}-lag")
    return stream.union(nothing)


def _events(tables: Any, stream: DataStream, suffix: str) -> Any:
    from pyflink.table import DataTypes, Schema
    from pyflink.table.expressions import col

    schema = (
        Schema.new_builder()
        .column("number", DataTypes.BIGINT())
        .column_by_metadata("event_time", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
        .watermark("event_time", "SOURCE_WATERMARK()")
        .build()
    )
    table = tables.from_data_stream(stream, schema)
    columns = [col(name).alias(f"{name}{suffix}") for name in ("number", "event_time")]
    return table.select(*columns)


def restamp(tables: Callable[[], Any], stream: DataStream, tag: str, kind: TypeInformation) -> DataStream:
    """The values of an output of the operator, each with its timestamp.

    Args:
        tables: Gives the table environment.
        stream: The main output of the operator.
        tag: Which side output; empty for the main one.
        kind: Type of the values.
    """
    from pyflink.table import DataTypes, Schema

    schema = (
        Schema.new_builder()
        .column("pickled", DataTypes.BYTES())
        .column("stamp", DataTypes.BIGINT())
        .column_by_expression("event_time", "TO_TIMESTAMP_LTZ(stamp, 3)")
        .watermark("event_time", "SOURCE_WATERMARK()")
        .build()
    )
    envelopes = stream.get_side_output(OutputTag(tag, envelope_type())) if tag else stream
    rows = tables().to_data_stream(tables().from_data_stream(envelopes, schema))
    parallelism = flink_compat.parallelism_of(stream)
    values = rows.map(ShippedFunction(_open_envelope), output_type=kind).set_parallelism(parallelism)
    others = stream.get_side_output(OutputTag(untimed(tag), kind)).set_parallelism(parallelism)
    return values.union(others)
