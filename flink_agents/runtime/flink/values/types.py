"""Python types of outputs as Flink's types: of streams, and of the columns of tables.

A stream has Flink's own serializer only for types whose values it does not change; all other values travel
as pickled Python objects.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import typing_extensions
from pydantic import AwareDatetime, BaseModel, NaiveDatetime
from pydantic.fields import FieldInfo
from pyflink.common import TypeInformation, Types
from pyflink.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
)

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import OutputTypeError, UnsupportedTableError
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.values import cells
from flink_agents.runtime.flink.values.cells import Cell
from flink_agents.runtime.serde.declared_types import (
    CARRIED,
    NotCarriedError,
    carry_of,
    integers,
    short_float,
)

_STREAM_TYPES: dict[Any, Any] = {
    str: Types.STRING,
    int: Types.LONG,
    float: Types.DOUBLE,
    bool: Types.BOOLEAN,
}

_MOST_DIGITS = 38
_DEFAULT_SCALE = 18

_QUALIFIERS = (typing.Final, typing.Required, typing.NotRequired, typing_extensions.ReadOnly)


class ColumnType(NamedTuple):
    """The type of a column.

    Attributes:
        sql: Its name in SQL.
        cell: Converts its values.
        sent: The name in SQL of what Python sends, if that is wider.
    """

    sql: str
    cell: Cell
    sent: str


def _make_column(sql: str, cell: Cell, sent: str = "") -> ColumnType:
    return ColumnType(sql, cell, sent or sql)


def _make_decimal(precision: int, scale: int) -> ColumnType:
    return _make_column(f"DECIMAL({precision}, {scale})", cells.DecimalCell(precision, scale))


_TIMESTAMP = _make_column("TIMESTAMP(6)", cells.timestamp_cell)
_INSTANT = _make_column("TIMESTAMP_LTZ(6)", cells.instant_cell)
_DATE = _make_column("DATE", cells.date_cell)
_TIME = _make_column("TIME(3)", cells.time_cell)
_STRING = _make_column("STRING", cells.CarriedCell("a string", CARRIED[str]))
_BIGINT = _make_column("BIGINT", cells.CarriedCell("an integer of 64 bits", CARRIED[int]))
_DOUBLE = _make_column(
    "DOUBLE", cells.CarriedCell("a number that a float represents exactly", CARRIED[float])
)
_BOOLEAN = _make_column("BOOLEAN", cells.CarriedCell("a bool", CARRIED[bool]))
_BYTES = _make_column("BYTES", cells.bytes_cell)


def _make_narrow(sql: str, bits: int) -> ColumnType:
    return _make_column(sql, cells.CarriedCell(f"an integer of {bits} bits", integers(bits)), "BIGINT")


_COLUMN_TYPES: dict[Any, ColumnType] = {
    str: _STRING,
    int: _BIGINT,
    float: _DOUBLE,
    bool: _BOOLEAN,
    bytes: _BYTES,
    datetime: _TIMESTAMP,
    NaiveDatetime: _TIMESTAMP,
    AwareDatetime: _INSTANT,
    date: _DATE,
    time: _TIME,
}

_OF_FLINK: dict[str, ColumnType] = {
    "String": _STRING,
    "Character": _STRING,
    "Boolean": _BOOLEAN,
    "Byte": _make_narrow("TINYINT", 8),
    "Short": _make_narrow("SMALLINT", 16),
    "Integer": _make_narrow("INT", 32),
    "Long": _BIGINT,
    "Float": _make_column("FLOAT", cells.CarriedCell("a float of 32 bits", short_float), "DOUBLE"),
    "Double": _DOUBLE,
    "BigInteger": _make_decimal(_MOST_DIGITS, 0),
    "BigDecimal": _make_decimal(_MOST_DIGITS, _DEFAULT_SCALE),
    "Instant": _INSTANT,
    "DateTypeInfo": _DATE,
    "TimeTypeInfo": _TIME,
    "TimestampTypeInfo": _TIMESTAMP,
    "LocalTimeTypeInfo<LOCAL_DATE>": _DATE,
    "LocalTimeTypeInfo<LOCAL_TIME>": _TIME,
    "LocalTimeTypeInfo<LOCAL_DATE_TIME>": _TIMESTAMP,
}


def stream_type(output_type: Any) -> TypeInformation:
    """Return the type of a stream of ``output_type`` values.

    Args:
        output_type: A Python type, a PyFlink ``TypeInformation``, or None for any object.
    """
    if isinstance(output_type, TypeInformation):
        # The user's object is shipped to workers with the agent, and could not be once Flink has used it.
        return flink_compat.without_jvm(output_type)
    make = _STREAM_TYPES.get(output_type)
    return make() if make is not None else Types.PICKLED_BYTE_ARRAY()


class CarriedValues:
    """Converts outputs to a type that a stream declares for them.

    Args:
        value_of: Returns the value of an output.
        kind: The type.
        place: The author's line that declares it.
    """

    def __init__(self, value_of: Callable[[Any], Any], kind: Any, place: str) -> None:
        self._value_of = value_of
        self._carry = carry_of(kind)
        self._kind = str(getattr(kind, "__name__", kind))
        self._place = place

    def __call__(self, output: Any) -> Any:
        """Return the value.

        Raises:
            OutputTypeError: It does not have the type.
        """
        value = self._value_of(output)
        if self._carry is None:
            return value
        try:
            return self._carry(value)
        except NotCarriedError as error:
            raise OutputTypeError(
                "an output is not of the stream's type",
                expected=f"a value of the type {self._kind}, as declared",
                found=str(error),
                fix="make the value of that type, or correct to_datastream(output_type=...)",
                where=self._place,
            ) from None


def columns_of(schema: Any) -> dict[str, ColumnType]:
    """Return the column names and types of a table.

    Args:
        schema: A class with fields (a Pydantic model, a dataclass), a mapping of names to Python types or
            PyFlink ``TypeInformation``, or one plain Python type (a column ``output``).

    Raises:
        UnsupportedTableError: There are no columns, or one has a type that tables do not support.
    """
    if isinstance(schema, RowTypeInfo):
        schema = dict(zip(schema.get_field_names(), schema.get_field_types(), strict=True))
    fields = _fields_of(schema)
    if fields:
        return {name: _column_type(name, kind, data) for name, (kind, data) in fields.items()}
    if not isinstance(schema, Mapping):
        column = None if schema is None else _find_type("output", schema, (), ())
        schema = {} if column is None else {"output": schema}
    if not schema:
        raise UnsupportedTableError(
            "the columns of the table are unknown",
            expected="a pydantic model, or a mapping of names to types",
            found=repr(schema),
            fix="set output_type on the agent, or call to_table(schema={'name': str})",
            where=authors_place(),
        )
    return {name: _column_type(name, kind) for name, kind in schema.items()}


def _fields_of(kind: Any) -> dict[str, tuple[Any, Sequence[Any]]] | None:
    """Return the types of a class's fields with the metadata of each; None if it has no fields."""
    generic: Any = typing.get_origin(kind)
    if isinstance(generic, type) and vars(generic).get("__parameters__"):
        arguments = dict(zip(generic.__parameters__, typing.get_args(kind), strict=False))
        fields = _fields_of(generic) or {}
        return {
            name: (_with_arguments(field_type, arguments), data)
            for name, (field_type, data) in fields.items()
        }
    if not isinstance(kind, type):
        return None
    if issubclass(kind, BaseModel):
        return {name: (field.annotation, field.metadata) for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind):
        names: Iterable[str] = [field.name for field in dataclasses.fields(kind)]
    elif typing_extensions.is_typeddict(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        names = typing_extensions.get_type_hints(kind)
    else:
        return None
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    described: dict[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    return {name: (hints[name], described[name].metadata if name in described else ()) for name in names}


def _with_arguments(kind: Any, arguments: Mapping[Any, Any]) -> Any:
    """Return the type of a field of a generic class, with arguments in place of type variables."""
    if isinstance(kind, typing.TypeVar):
        return arguments.get(kind, kind)
    variables = getattr(kind, "__parameters__", ())
    return kind[tuple(arguments.get(variable, variable) for variable in variables)] if variables else kind


def _column_type(
    name: str, kind: Any, metadata: Sequence[Any] = (), outer: tuple[Any, ...] = ()
) -> ColumnType:
    column = _find_type(name, kind, metadata, outer)
    if column is None:
        raise UnsupportedTableError(
            f"column {name!r} has a type that Flink's tables do not have",
            expected=", ".join(python_type.__name__ for python_type in _COLUMN_TYPES)
            + ", Decimal, list, tuple, dict, models and dataclasses",
            found=f"{kind!r} inside itself" if kind in outer else repr(kind),
            fix="set the column's PyFlink type: to_table(schema={'name': Types.STRING()})",
            where=authors_place(),
        )
    return column


def _find_type(name: str, kind: Any, metadata: Sequence[Any], outer: tuple[Any, ...]) -> ColumnType | None:
    """Return the type of a column, or None.

    Args:
        name: The column, for errors about types inside it.
        kind: Its Python type.
        metadata: What ``Annotated`` or a field of a model says of it.
        outer: The classes with fields around it.
    """
    if isinstance(kind, TypeInformation):
        return _flink_type(name, kind)
    kind, metadata = _plain_type(kind, metadata)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return _find_type(name, inner[0], metadata, outer) if len(inner) == 1 else None
    if origin is typing.Literal:
        classes = {type(argument) for argument in arguments} - {type(None)}
        return _find_type(name, classes.pop(), (), outer) if len(classes) == 1 else None
    if kind is Decimal:
        return _decimal_type(metadata)
    fields = _fields_of(kind)
    if fields and kind not in outer:
        inside = {
            field: _column_type(name, field_type, data, (*outer, kind))
            for field, (field_type, data) in fields.items()
        }
        return _row_of(inside)
    if isinstance(origin, type):
        return _container_type(origin, arguments, lambda argument: _column_type(name, argument, (), outer))
    try:
        return _COLUMN_TYPES.get(kind)
    except TypeError:
        return None  # Such a type is not hashable.


def _plain_type(kind: Any, metadata: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return a type without ``Annotated`` and other names for it, and its metadata."""
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            metadata = [*metadata, *kind.__metadata__]
            kind = kind.__origin__
        elif origin in _QUALIFIERS:
            (kind,) = typing.get_args(kind)
        elif isinstance(origin, typing_extensions.TypeAliasType):
            kind = origin.__value__[typing.get_args(kind)]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif isinstance(kind, typing_extensions.TypeAliasType):
            kind = kind.__value__
        else:
            return kind, metadata


def _container_type(
    origin: Any, arguments: Sequence[Any], inner: Callable[[Any], ColumnType]
) -> ColumnType | None:
    if issubclass(origin, Mapping) and len(arguments) == 2:
        return _map_of(inner(arguments[0]), inner(arguments[1]))
    if issubclass(origin, tuple) and arguments and arguments[-1] is not Ellipsis:
        return _row_of(
            {f"f{index}": inner(argument) for index, argument in enumerate(arguments)}, is_tuple=True
        )
    if issubclass(origin, Sequence) and arguments:
        return _array_of(inner(arguments[0]))
    return None


def _decimal_type(metadata: Sequence[Any]) -> ColumnType:
    sizes: dict[str, int | None] = {"max_digits": None, "decimal_places": None}
    for data in metadata:
        for detail in [data, *data.metadata] if isinstance(data, FieldInfo) else [data]:
            sizes |= {key: vars(detail)[key] for key in sizes if key in getattr(detail, "__dict__", {})}
    precision = sizes["max_digits"]
    scale = sizes["decimal_places"]
    precision = _MOST_DIGITS if precision is None else precision
    if scale is None:
        scale = min(_DEFAULT_SCALE, precision)
        if precision < _MOST_DIGITS:
            # Each of the digits may be before the point or after it.
            precision = min(_MOST_DIGITS, precision + scale)
    if precision > _MOST_DIGITS or scale > precision:
        raise UnsupportedTableError(
            "a decimal is larger than Flink's",
            expected=f"at most {_MOST_DIGITS} digits, those after the point included",
            found=f"max_digits={precision}, decimal_places={scale}",
            fix="declare a smaller size, or the column as str",
            where=authors_place(),
        )
    return _make_decimal(precision, scale)


def _flink_type(name: str, kind: TypeInformation) -> ColumnType | None:
    basic = _OF_FLINK.get(repr(kind))
    if basic is not None:
        return basic
    if isinstance(kind, RowTypeInfo):
        return _row_of(
            {
                field: _column_type(name, field_type)
                for field, field_type in zip(kind.get_field_names(), kind.get_field_types(), strict=True)
            }
        )
    if isinstance(kind, TupleTypeInfo):
        items = enumerate(kind.get_field_types())
        return _row_of(
            {f"f{index}": _column_type(name, field_type) for index, field_type in items}, is_tuple=True
        )
    inner = [_column_type(name, inner_type) for inner_type in flink_compat.inner_types_of(kind)]
    if isinstance(kind, PrimitiveArrayTypeInfo) and inner[0].sql == "TINYINT":
        return _BYTES
    if isinstance(kind, MapTypeInfo):
        return _map_of(*inner)
    return _array_of(inner[0]) if len(inner) == 1 or isinstance(kind, ListTypeInfo) else None


def _array_of(item: ColumnType) -> ColumnType:
    return ColumnType(f"ARRAY<{item.sql}>", cells.ArrayCell(item.cell), f"ARRAY<{item.sent}>")


def _map_of(key: ColumnType, value: ColumnType) -> ColumnType:
    return ColumnType(
        f"MAP<{key.sql}, {value.sql}>",
        cells.MapCell(key.cell, value.cell),
        f"MAP<{key.sent}, {value.sent}>",
    )


def _row_of(fields: Mapping[str, ColumnType], is_tuple: bool = False) -> ColumnType:
    cell = cells.RowCell({name: column.cell for name, column in fields.items()}, is_tuple)
    return ColumnType(
        _row_text(fields, [column.sql for column in fields.values()]),
        cell,
        _row_text(fields, [column.sent for column in fields.values()]),
    )


def _row_text(names: Iterable[str], kinds: Sequence[str]) -> str:
    return f"ROW<{', '.join(map(' '.join, zip(map(quote_name, names), kinds, strict=True)))}>"


def quote_name(name: str) -> str:
    """Return a name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def row_type_sent(columns: Mapping[str, ColumnType]) -> str:
    """Return the type in SQL of the rows that Python sends for these columns."""
    return _row_text(columns, [column.sent for column in columns.values()])
