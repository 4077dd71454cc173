"""Rows as answers of chat models: converts a row type to a Pydantic model, and its values to rows.

Models import this by the name in ``api.models.output_types``, since only this package imports PyFlink.
"""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pyflink.common import Row, TypeInformation
from pyflink.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    RowTypeInfo,
    Types,
)

from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.models.output_types import DescribedType
from flink_agents.runtime.flink.compat import basic_type_of, inner_types_of, names_of_row


def _bounded_integer(bits: int) -> Any:
    return Annotated[int, Field(ge=-(2 ** (bits - 1)), lt=2 ** (bits - 1))]


_BASIC: dict[BasicType, Any] = {
    BasicType.STRING: str,
    BasicType.BOOLEAN: bool,
    BasicType.BYTE: _bounded_integer(8),
    BasicType.SHORT: _bounded_integer(16),
    BasicType.INT: _bounded_integer(32),
    BasicType.LONG: _bounded_integer(64),
    BasicType.FLOAT: float,
    BasicType.DOUBLE: float,
    BasicType.BIG_INT: int,
    BasicType.BIG_DEC: Decimal,
}


_TIMES: tuple[tuple[TypeInformation, type], ...] = (
    (Types.SQL_DATE(), date),
    (Types.SQL_TIME(), time),
    (Types.SQL_TIMESTAMP(), datetime),
)
_LISTS = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo)


class _RowModel(BaseModel):
    """A row that a model returns, with its fields in their order."""

    model_config = ConfigDict(extra="forbid")


def described_row(kind: Any) -> DescribedType:
    """Describe the type of a row.

    Raises:
        AgentConfigurationError: It is not a type of rows with names, or has a field that no model can fill
            in.
    """
    if not isinstance(kind, RowTypeInfo) or not names_of_row(kind):
        raise _refused_error("an answer of a type of PyFlink", "Types.ROW_NAMED([...], [...])", repr(kind))
    return DescribedType(_model_of(kind, "Row"), _to_row)


def _model_of(kind: RowTypeInfo, title: str) -> type[BaseModel]:
    # By alias: fields of rows may have the names of model methods.
    fields: dict[str, Any] = {
        f"field{number}": (_python_type(field_type, name), Field(alias=name))
        for number, (name, field_type) in enumerate(
            zip(names_of_row(kind), kind.get_field_types(), strict=True)
        )
    }
    return create_model(title, __base__=_RowModel, **fields)


def _python_type(kind: TypeInformation, name: str) -> Any:
    basic = basic_type_of(kind)
    if basic is not None and basic in _BASIC:
        return _BASIC[basic]
    for flink, python in _TIMES:
        if flink == kind:
            return python
    if isinstance(kind, RowTypeInfo) and names_of_row(kind):
        return _model_of(kind, name)
    inner = [_python_type(inner_type, name) for inner_type in inner_types_of(kind)]
    if isinstance(kind, _LISTS):
        return list[inner[0]]
    if isinstance(kind, MapTypeInfo) and inner[0] is str:
        return dict[str, inner[1]]
    raise _refused_error(
        f"an answer with a field {name!r}",
        "strings, numbers, bools, dates and times, rows, and lists and maps of these",
        repr(kind),
    )


def _to_row(value: Any) -> Any:
    """Return a model instance as a row, nested ones included."""
    if isinstance(value, _RowModel):
        fields = type(value).model_fields
        row = Row(*(_to_row(getattr(value, name)) for name in fields))
        row.set_field_names([field.alias for field in fields.values()])
        return row
    if isinstance(value, list):
        return [_to_row(nested_value) for nested_value in value]
    return (
        {name: _to_row(nested_value) for name, nested_value in value.items()}
        if isinstance(value, dict)
        else value
    )


def _refused_error(what: str, expected: str, found: str) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a chat model cannot return {what}",
        expected=expected,
        found=found,
        fix="use such a type, or a pydantic model, as output_type",
    )
