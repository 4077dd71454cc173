"""Sources of this package."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pyflink.common import WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents.runtime.flink.shipping.main_module import ShippedFunction


class _Lookup:
    """Returns the record of an index."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = [pickle.dumps(record) for record in records]

    def __call__(self, index: int) -> Any:
        return pickle.loads(self._records[index])


def list_source(env: StreamExecutionEnvironment, records: Sequence[Any], check: bool) -> DataStream:
    """Return a bounded stream of ``records``, in order, that resumes from its position in a checkpoint.

    PyFlink's ``from_collection`` starts over after a failure; a number sequence does not.

    Args:
        env: PyFlink's environment.
        records: The records.
        check: True if workers compare the modules of the records' classes.
    """
    last = max(len(records) - 1, 0)
    numbers = env.from_source(
        NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "list"
    ).set_parallelism(1)
    if not records:
        numbers = numbers.filter(lambda number: False).set_parallelism(1)
    uses = {type(record) for record in records} if check else ()
    return numbers.map(ShippedFunction(_Lookup(records), uses)).set_parallelism(1)
