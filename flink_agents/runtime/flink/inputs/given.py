"""Checks the parts that you give to a job: streams, tables and key selectors.

Without these checks, a wrong part would raise somewhere in PyFlink, or fail the job at its first record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyflink.datastream import DataStream

from flink_agents.api.common.places import caller_place, describe
from flink_agents.api.environment import AgentStream
from flink_agents.api.errors import JobDefinitionError

_MAX_SHOWN = 200
_OTHER_CALLERS = 1
"""The number of frames between a check and the user's line: the method that checks."""


def given_stream(called: str, value: Any) -> DataStream:
    """Return ``value``, the stream argument of a method.

    Args:
        called: The method, for messages.
        value: The argument.

    Raises:
        JobDefinitionError: It is not a stream.
    """
    if isinstance(value, DataStream):
        return value
    raise _refused(called, "a DataStream of PyFlink", value, _fix_of_stream(called, value))


def given_table(called: str, value: Any) -> Any:
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
    fix = "give a stream to from_datastream" if isinstance(value, DataStream) else "give a Table of PyFlink"
    raise _refused(called, "a Table of PyFlink", value, fix)


def given_selector(called: str, value: Any) -> Callable[[Any], Any]:
    """Return ``value``, the key selector argument of a method.

    Args:
        called: The method, for messages.
        value: The argument.

    Raises:
        JobDefinitionError: It cannot be called.
    """
    if callable(value):
        return value
    fix = "give a function, such as key_selector=lambda record: record.name; memory and order are by key"
    if value is None:
        raise JobDefinitionError(
            f"{called} needs a key selector",
            expected="a function that gives the key of a record",
            found="no key_selector",
            fix=fix,
            where=caller_place(_OTHER_CALLERS),
        )
    raise _refused(called, "a function that gives the key of a record", value, fix)


def _refused(called: str, expected: str, value: Any, fix: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"{called} is given something else than {expected}",
        expected=expected,
        found=describe(value)[:_MAX_SHOWN],
        fix=fix,
        where=caller_place(_OTHER_CALLERS + 1),
    )


def _fix_of_stream(called: str, value: Any) -> str:
    if isinstance(value, AgentStream):
        return "give its to_datastream(), or one of its side streams"
    if isinstance(value, list | tuple):
        if called == "from_datastream":
            return "call env.from_list(values, key_selector): it resumes from a checkpoint"
        return "make a stream of it: env.stream_env.from_collection([...])"
    return "make a stream of it: of a table by env.table_env.to_data_stream(table), and map its rows"
