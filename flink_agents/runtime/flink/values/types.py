"""Python types of outputs as PyFlink's types.

Only types whose values survive Flink's own serialization unchanged are mapped; all other
values travel as pickled Python objects.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from pyflink.common import TypeInformation, Types

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import UnsupportedTableError
from flink_agents.runtime.flink.compat import without_jvm

_STREAM_TYPES: dict[Any, Any] = {
    str: Types.STRING,
    int: Types.LONG,
    float: Types.DOUBLE,
    bool: Types.BOOLEAN,
}

_COLUMN_TYPES: dict[Any, Any] = {
    **_STREAM_TYPES,
    bytes: lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    Decimal: Types.BIG_DEC,
    datetime: Types.SQL_TIMESTAMP,
    date: Types.SQL_DATE,
    time: Types.SQL_TIME,
}


def stream_type(output_type: Any) -> TypeInformation:
    """Return the type of a stream of ``output_type`` values.

    Args:
        output_type: A Python type, a PyFlink ``TypeInformation``, or None for any object.
    """
    if isinstance(output_type, TypeInformation):
        # The user's object is shipped to workers with the agent, and could not be once Flink has used it.
        return without_jvm(output_type)
    make = _STREAM_TYPES.get(output_type)
    return make() if make is not None else Types.PICKLED_BYTE_ARRAY()


def columns_of(schema: Any) -> dict[str, TypeInformation]:
    """Return the column names and types of a table.

    Args:
        schema: A pydantic model class, a mapping of names to Python types or PyFlink
            ``TypeInformation``, or one plain Python type (a column ``output``).

    Raises:
        UnsupportedTableError: There are no columns, or one has a type that tables do not support.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = {name: field.annotation for name, field in schema.model_fields.items()}
    elif not isinstance(schema, Mapping) and schema in _COLUMN_TYPES:
        schema = {"output": schema}
    if not isinstance(schema, Mapping) or not schema:
        raise UnsupportedTableError(
            "the columns of the table are unknown",
            expected="a pydantic model, or a mapping of names to types",
            found=repr(schema),
            fix="set output_type on the agent, or call to_table(schema={'name': str})",
            where=authors_place(),
        )
    return {name: _column_type(name, kind) for name, kind in schema.items()}


def _column_type(name: str, kind: Any) -> TypeInformation:
    if isinstance(kind, TypeInformation):
        return kind
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        if len(inner) == 1:
            return _column_type(name, inner[0])
    if origin is list and arguments:
        return Types.LIST(_column_type(name, arguments[0]))
    if origin is dict and len(arguments) == 2:
        return Types.MAP(_column_type(name, arguments[0]), _column_type(name, arguments[1]))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return row_type(columns_of(kind))
    make = _COLUMN_TYPES.get(kind)
    if make is None:
        raise UnsupportedTableError(
            f"column {name!r} has a type that Flink's tables do not have",
            expected=", ".join(each.__name__ for each in _COLUMN_TYPES) + ", list, dict, nested models",
            found=repr(kind),
            fix="set the column's PyFlink type: to_table(schema={'name': Types.STRING()})",
            where=authors_place(),
        )
    return make()


def row_type(columns: Mapping[str, TypeInformation]) -> TypeInformation:
    """Return the type of rows with these columns."""
    return Types.ROW_NAMED(list(columns), list(columns.values()))
