"""The parts that you give to a job: checks streams, tables, key selectors and the mode, and reads lists.

Without these checks, a wrong part would raise somewhere in PyFlink, or fail the job at its first record.
In batch mode, Flink handles one key after the other, and forgets the state of a key when the next one comes.
Runs on the event loop are not committed by then, so their outputs would be lost.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from pyflink.common import WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents.api.common.places import authors_place, caller_place, describe
from flink_agents.api.environment import AgentStream
from flink_agents.api.errors import JobDefinitionError, UnsupportedExecutionError
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.graph import is_bounded_job
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction

_MAX_SHOWN = 200
_OTHER_CALLERS = 1
"""The number of frames between a check and the user's line: the method that checks."""


def check_stream(called: str, value: Any) -> DataStream:
    """Return ``value``, the stream argument of a method.

    Args:
        called: The method, for messages.
        value: The argument.

    Raises:
        JobDefinitionError: It is not a stream.
    """
    if isinstance(value, DataStream):
        return value
    raise _refused_error(called, "a DataStream of PyFlink", value, _fix_of_stream(called, value))


def check_table(called: str, value: Any) -> Any:
    """Return ``value``, the table argument of a method.

    Args:
        called: The method, for messages.
        value: The argument.

    Raises:
        JobDefinitionError: It is not a table.
    """
    from pyflink.table import Table

    if isinstance(value, Table):
        return value
    fix = "pass a stream to from_datastream" if isinstance(value, DataStream) else "pass a Table of PyFlink"
    raise _refused_error(called, "a Table of PyFlink", value, fix)


def check_selector(called: str, value: Any) -> Callable[[Any], Any]:
    """Return ``value``, the key selector argument of a method.

    Args:
        called: The method, for messages.
        value: The argument.

    Raises:
        JobDefinitionError: It cannot be called.
    """
    if callable(value):
        return value
    fix = "pass a function, such as key_selector=lambda record: record.name; memory and order are by key"
    if value is None:
        raise JobDefinitionError(
            f"{called} needs a key selector",
            expected="a function that returns the key of a record",
            found="no key_selector",
            fix=fix,
            where=caller_place(_OTHER_CALLERS),
        )
    raise _refused_error(called, "a function that returns the key of a record", value, fix)


def _refused_error(called: str, expected: str, value: Any, fix: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"{called} got a value that is not {expected}",
        expected=expected,
        found=describe(value)[:_MAX_SHOWN],
        fix=fix,
        where=caller_place(_OTHER_CALLERS + 1),
    )


def _fix_of_stream(called: str, value: Any) -> str:
    if isinstance(value, AgentStream):
        return "pass its to_datastream(), or one of its side streams"
    if isinstance(value, list | tuple):
        if called == "from_datastream":
            return "call env.from_list(values, key_selector): it resumes from a checkpoint"
        return "convert it to a stream: env.stream_env.from_collection([...])"
    return "convert it to a stream: a table with env.table_env.to_data_stream(table), and map its rows"


_MOST_GROUPS = 2**15
"""Flink's largest max parallelism."""


def check_parallelism(parallelism: int | None, max_parallelism: int | None) -> None:
    """Check the parallelism of an agent.

    Raises:
        JobDefinitionError: Flink does not accept it.
    """
    most = _MOST_GROUPS if max_parallelism is None else max_parallelism
    for name, value, limit in (
        ("max_parallelism", max_parallelism, _MOST_GROUPS),
        ("parallelism", parallelism, most),
    ):
        if value is not None and not (type(value) is int and 1 <= value <= limit):
            raise JobDefinitionError(
                f"an agent cannot have {name}={value!r}",
                expected=f"a number from 1 to {limit}",
                found=repr(value),
                fix="correct it; max_parallelism is the number of key groups, which subtasks share; "
                "state restores only with the same number",
                where=authors_place(),
            )


class _Lookup:
    """Returns the record at an index of a list, and ships the list to the worker."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = [pickle.dumps(record) for record in records]

    def __call__(self, index: int) -> Any:
        return pickle.loads(self._records[index])


def list_source(
    env: StreamExecutionEnvironment, records: Sequence[Any], check: bool
) -> tuple[DataStream, DataStream]:
    """Return a bounded stream of ``records``, in order, that resumes from its position, and its source.

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
    places = numbers
    if not records:
        places = numbers.filter(lambda number: False).set_parallelism(1)
    uses = {type(record) for record in records} if check else ()
    return places.map(ShippedFunction(_Lookup(records), uses)).set_parallelism(1), numbers


_RUNTIME_MODE = "execution.runtime-mode"
_STREAMING = "STREAMING"


def check_runtime_mode(env: StreamExecutionEnvironment, where: str | None) -> None:
    """Check that a job with agents does not run in batch mode.

    Raises:
        UnsupportedExecutionError: Flink would run it in batch mode.
    """
    mode = flink_compat.configuration_of(env).get(_RUNTIME_MODE, _STREAMING).upper()
    if mode != "AUTOMATIC" or is_bounded_job(env):
        _check_mode(mode, where)


def check_mode_of_tables(tables: Any, where: str | None) -> None:
    """Check that a table environment, which has its own mode, does not run its jobs in batch mode.

    Raises:
        UnsupportedExecutionError: It runs them in batch mode.
    """
    _check_mode(tables.get_config().get(_RUNTIME_MODE, _STREAMING).upper(), where)


def _check_mode(mode: str, where: str | None) -> None:
    if mode != _STREAMING:
        raise UnsupportedExecutionError(
            f"{_RUNTIME_MODE} is {mode}, and agents do not run in batch mode",
            expected=f"{_STREAMING}, which also ends when bounded inputs end",
            found=mode,
            fix=f"remove {_RUNTIME_MODE}, set_runtime_mode(...) or in_batch_mode()",
            where=where,
        )
