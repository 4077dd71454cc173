"""Rows as answers of chat models: the type of a row as a model of pydantic, and its values as rows.

Models reach this by its name in ``flink_agents.api.output_types``, since only this room imports PyFlink.
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
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    RowTypeInfo,
    Types,
)

from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.output_types import DescribedType


def _whole(bits: int) -> Any:
    return Annotated[int, Field(ge=-(2 ** (bits - 1)), lt=2 ** (bits - 1))]


_BASIC: dict[BasicType, Any] = {
    BasicType.STRING: str,
    BasicType.BOOLEAN: bool,
    BasicType.BYTE: _whole(8),
    BasicType.SHORT: _whole(16),
    BasicType.INT: _whole(32),
    BasicType.LONG: _whole(64),
    BasicType.FLOAT: float,
    BasicType.DOUBLE: float,
    BasicType.BIG_INT: int,
    BasicType.BIG_DEC: Decimal,
}


class _RowModel(BaseModel):
    """A row that a model gives, with its fields in their order."""

    model_config = ConfigDict(extra="forbid")


def described_row(kind: Any) -> DescribedType:
    """Describe the type of a row.

    Raises:
        AgentConfigurationError: It is no type of rows with names, or has a field that no model can fill in.
    """
    if not isinstance(kind, RowTypeInfo) or not kind._field_names:  # pyright: ignore[reportPrivateUsage]
        raise _refused("an answer of a type of PyFlink", "Types.ROW_NAMED([...], [...])", repr(kind))
    return DescribedType(_model_of(kind, "Row"), _to_row)


def _model_of(kind: RowTypeInfo, title: str) -> type[BaseModel]:
    # By alias: fields of rows may be called as methods of models are.
    fields: dict[str, Any] = {
        f"field{number}": (_python_type(each, name), Field(alias=name))
        for number, (name, each) in enumerate(
            zip(kind.get_field_names(), kind.get_field_types(), strict=True)
        )
    }
    return create_model(title, __base__=_RowModel, **fields)


def _python_type(kind: TypeInformation, name: str) -> Any:
    if isinstance(kind, BasicTypeInfo) and kind._basic_type in _BASIC:  # pyright: ignore[reportPrivateUsage]
        return _BASIC[kind._basic_type]  # pyright: ignore[reportPrivateUsage]
    for flink, python in (
        (Types.SQL_DATE(), date),
        (Types.SQL_TIME(), time),
        (Types.SQL_TIMESTAMP(), datetime),
    ):
        if flink == kind:
            return python
    if isinstance(kind, RowTypeInfo):
        return _model_of(kind, name)
    if isinstance(kind, ListTypeInfo):
        return list[_python_type(kind.elem_type, name)]
    if isinstance(kind, BasicArrayTypeInfo | ObjectArrayTypeInfo):
        return list[_python_type(kind._element_type, name)]  # pyright: ignore[reportPrivateUsage]
    if isinstance(kind, MapTypeInfo) and _python_type(kind._key_type_info, name) is str:  # pyright: ignore[reportPrivateUsage]
        return dict[str, _python_type(kind._value_type_info, name)]  # pyright: ignore[reportPrivateUsage]
    raise _refused(
        f"an answer with a field {name!r}",
        "texts, numbers, truth values, dates and times, rows, and lists and maps of these",
        repr(kind),
    )


def _to_row(value: Any) -> Any:
    """A value of such a model as a row; what is inside of it as well."""
    if isinstance(value, _RowModel):
        fields = type(value).model_fields
        row = Row(*(_to_row(getattr(value, name)) for name in fields))
        row.set_field_names([field.alias for field in fields.values()])
        return row
    if isinstance(value, list):
        return [_to_row(each) for each in value]
    return {name: _to_row(each) for name, each in value.items()} if isinstance(value, dict) else value


def _refused(what: str, expected: str, found: str) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a chat model is asked for {what}, which it cannot be told of",
        expected=expected,
        found=found,
        fix="describe the answer by such a type, or by a pydantic model",
    )
