"""Sets the timestamps and watermarks of an agent's outputs if it holds event time, through Flink's tables.

Each output needs the timestamp of its input, while PyFlink gives it that of the timer or none; and no
Python function can emit a watermark. So an output leaves in an envelope with its timestamp and the low
watermark of its subtask (``operator.low_watermark``). A table turns them into the row's timestamp and
the stream's watermark, and drops envelopes without an output. Outputs without a timestamp use a side output,
to which PyFlink gives none.
"""

from __future__ import annotations

import pickle
from typing import Any

from pyflink.common import Row, TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.low_watermark import LowWatermark


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
