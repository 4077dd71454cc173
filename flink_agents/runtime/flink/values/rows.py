"""Rows: outputs as rows of tables with the cells of Java, rows as inputs, and rows as answers of chat models.

Models import :func:`described_row` by the name in ``api.models.output_types``, since only this package
imports PyFlink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pyflink.common import Row, RowKind, TypeInformation
from pyflink.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    RowTypeInfo,
    Types,
)

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import AgentConfigurationError, UnsupportedTableError
from flink_agents.api.models.output_types import DescribedType
from flink_agents.api.tables import ChangeKind, TableChange
from flink_agents.runtime.flink.compat import basic_type_of, inner_types_of, names_of_row
from flink_agents.runtime.flink.values.cells import (
    MISSING,
    Cell,
    JavaValues,
    UnfitCellError,
    convert_value,
    read_field,
)
from flink_agents.runtime.flink.values.types import ColumnType, quote_name
from flink_agents.runtime.serde.typenames import shorten

MAX_ERROR = 2000
"""The largest length of a message about an invalid row."""

CHANGES: dict[RowKind, ChangeKind] = {
    RowKind.INSERT: "insert",
    RowKind.UPDATE_BEFORE: "update-before",
    RowKind.UPDATE_AFTER: "update-after",
    RowKind.DELETE: "delete",
}


def rowtime_schema(name: str) -> Any:
    """Return the schema of a table with an additional column: event time, with the stream's watermarks.

    Args:
        name: Name of that column.
    """
    from pyflink.table import DataTypes, Schema

    builder = Schema.new_builder().column_by_metadata(name, DataTypes.TIMESTAMP_LTZ(3), "rowtime")
    return builder.watermark(name, "SOURCE_WATERMARK()").build()


def with_types(table: Any, columns: Mapping[str, ColumnType], *unchanged_columns: str) -> Any:
    """Return a table with the declared types, where Python sends wider ones.

    Args:
        table: The table.
        columns: Its columns.
        unchanged_columns: Columns that stay as they are.
    """
    if all(column.sql == column.sent for column in columns.values()):
        return table
    from pyflink.table.expressions import call_sql, col

    cast = [
        call_sql(f"CAST({quote_name(name)} AS {column.sql})").alias(name) for name, column in columns.items()
    ]
    return table.select(*cast, *map(col, unchanged_columns))


class Column:
    """Returns the key of a row: its value in a column.

    Args:
        name: Name of the column.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: Any) -> Any:
        """Return the value in the column, of a row or of the object that was made from it."""
        if isinstance(row, TableChange):
            row = row.value
        return row[self._name] if isinstance(row, Row | dict) else getattr(row, self._name)


class ToRow:
    """Converts an output to a row: a model, a dict, an object with attributes, or a single cell.

    Args:
        columns: The columns.
        place: The author's line that declares them, for errors.
    """

    def __init__(self, columns: Mapping[str, ColumnType], place: str | None = None) -> None:
        self._cells: dict[str, Cell] = {name: column.cell for name, column in columns.items()}
        self._place = place
        self._java: JavaValues | None = None

    def open(self, java: JavaValues) -> None:
        """Get what makes values of Java, before the first output."""
        self._java = java

    def __call__(self, value: Any) -> Row:
        """Return the row for ``value``.

        Raises:
            UnsupportedTableError: It lacks a column, or a column cannot hold its value.
        """
        java: Any = self._java
        row: list[Any] = []
        for name, cell in self._cells.items():
            item = self._read_column(value, name)
            try:
                row.append(None if item is None else convert_value(cell, item, java, name))
            except UnfitCellError as error:
                raise UnsupportedTableError(
                    f"an output has a value that the column {error.path!r} cannot hold",
                    expected=error.expected,
                    found=error.found,
                    fix=error.fix,
                    where=self._place,
                ) from None
        return Row(*row)

    def _read_column(self, value: Any, name: str) -> Any:
        item = read_field(value, name)
        if item is not MISSING:
            return item
        if len(self._cells) == 1 and not isinstance(value, dict):
            return value
        raise UnsupportedTableError(
            f"an output has no column {name!r}",
            expected=", ".join(self._cells),
            found=shorten(value),
            fix="emit a value that has it, if only None, or remove the column: to_table(schema={...})",
            where=self._place,
        )


class ColumnReader(NamedTuple):
    """Reads the values of a column's type.

    Attributes:
        root: The type's ``LogicalTypeRoot`` in Java.
        names: The fields of a row.
        inner: The readers of its fields or items.
    """

    root: str
    names: tuple[str, ...] = ()
    inner: tuple[ColumnReader, ...] = ()


_TIMES: dict[str, Callable[[str], Any]] = {
    "TIMESTAMP_WITHOUT_TIME_ZONE": datetime.fromisoformat,
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE": datetime.fromisoformat,
    "DATE": date.fromisoformat,
    "TIME_WITHOUT_TIME_ZONE": time.fromisoformat,
}

_PLAIN = frozenset(
    "CHAR VARCHAR BOOLEAN DECIMAL TINYINT SMALLINT INTEGER BIGINT FLOAT DOUBLE VARBINARY".split()
)
_CONTAINERS = ("ROW", "ARRAY", "MAP")
_MICROSECONDS = 6


def readers_of(row_type: Any) -> dict[str, ColumnReader]:
    """Return the readers of a table's columns.

    Args:
        row_type: Java's type of its rows.

    Raises:
        UnsupportedTableError: A column has a type without an equivalent in Python.
    """
    readers: dict[str, ColumnReader] = {}
    for name, kind in zip(row_type.getFieldNames(), row_type.getChildren(), strict=True):
        cast = _cast_of(kind)
        if cast is not None:
            raise UnsupportedTableError(
                f"column {name!r} of a table has a type that Python does not have",
                expected="strings, numbers, bools, BYTES, dates, times, timestamps in microseconds, "
                "and rows, arrays and maps of these",
                found=kind.asSummaryString(),
                fix=f"cast it in the query: CAST({quote_name(name)} AS {cast}) AS {quote_name(name)}",
                where=authors_place(),
            )
        readers[name] = _reader_of(kind)
    return readers


def _reader_of(kind: Any) -> ColumnReader:
    root = kind.getTypeRoot().name()
    if root in _TIMES or root in _PLAIN:
        return ColumnReader(root)
    names = tuple(kind.getFieldNames()) if root == "ROW" else ()
    return ColumnReader(root, names, tuple(_reader_of(child) for child in kind.getChildren()))


def _cast_of(kind: Any) -> str | None:
    """Return the type, in SQL, that a column can be cast to; None if it needs no cast."""
    root = kind.getTypeRoot().name()
    text = kind.copy(True).asSummaryString()
    if root == "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
        return "TIMESTAMP_LTZ(6)" if kind.getPrecision() > _MICROSECONDS else None
    if root == "BINARY" or (root == "VARBINARY" and text != "BYTES"):
        return "BYTES"
    if root in _PLAIN or root in _TIMES:
        return None
    return _replace_types(kind, _cast_of) if root in _CONTAINERS else "STRING"


def _wide_type_of(kind: Any) -> str | None:
    """Return the type without ``SMALLINT``, if it has one: Pemja crashes on a ``Short``."""
    if kind.getTypeRoot().name() == "SMALLINT":
        return "INT"
    return _replace_types(kind, _wide_type_of)


def _replace_types(kind: Any, replace: Callable[[Any], str | None]) -> str | None:
    """Return the text of a type with other types inside it; None if ``replace`` has no other type."""
    children = list(kind.getChildren())
    replacements = [replace(child) for child in children]
    if not any(replacements):
        return None
    root = kind.getTypeRoot().name()
    inner = [
        replacement or child.asSummaryString()
        for replacement, child in zip(replacements, children, strict=True)
    ]
    if root == "ROW":
        fields = zip(map(quote_name, kind.getFieldNames()), inner, strict=True)
        return f"ROW<{', '.join(map(' '.join, fields))}>"
    return f"{root}<{', '.join(inner)}>"


def with_wide_types(table: Any, row_type: Any) -> Any:
    """Return a table whose columns of ``SMALLINT`` are cast to wider ones: Pemja crashes on a ``Short``.

    Args:
        table: The table.
        row_type: Java's type of its rows.
    """
    kinds = zip(row_type.getFieldNames(), row_type.getChildren(), strict=True)
    types = {name: _wide_type_of(kind) for name, kind in kinds}
    if not any(types.values()):
        return table
    from pyflink.table.expressions import call_sql, col

    return table.select(
        *(
            call_sql(f"CAST({quote_name(name)} AS {kind})").alias(name) if kind else col(name)
            for name, kind in types.items()
        )
    )


def read_value(value: Any, reader: ColumnReader) -> Any:
    """Return a value of Java as one of Python.

    Args:
        value: The value, with Java's objects for times and for rows inside other values.
        reader: Its type.

    Raises:
        UnsupportedTableError: Python has no value for it.
    """
    if value is None or reader.root in _PLAIN:
        return value
    parse = _TIMES.get(reader.root)
    if parse is not None:
        return _read_time(value, parse)
    if reader.root == "ROW":
        fields = (
            read_value(value.getField(index), field_reader) for index, field_reader in enumerate(reader.inner)
        )
        row = Row(*fields)
        row.set_field_names(list(reader.names))
        return row
    if reader.root == "ARRAY":
        return [read_value(item, reader.inner[0]) for item in value]
    keys, values = reader.inner
    return {read_value(key, keys): read_value(item, values) for key, item in value.items()}


def _read_time(value: Any, parse: Callable[[str], Any]) -> Any:
    text = str(value.toString())
    _, _, fraction = text.rstrip("Z").partition(".")
    try:
        if fraction[_MICROSECONDS:].strip("0"):
            raise ValueError(text)
        return parse(text)
    except ValueError as error:
        raise UnsupportedTableError(
            "a row of a table has a value that Python does not support",
            expected="dates and times of the years 1 to 9999, in microseconds",
            found=text,
            fix="cast the column in the query: CAST(... AS STRING), or CAST(... AS TIMESTAMP(6))",
        ) from error


def _plain_value(value: Any) -> Any:
    """Return a value as Pydantic reads it: with dicts in place of rows, and tuples for those of a tuple."""
    if isinstance(value, Row):
        fields = value.as_dict()
        if list(fields) == [f"f{index}" for index in range(len(fields))]:
            return tuple(map(_plain_value, value))
        return {name: _plain_value(item) for name, item in fields.items()}
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return {key: _plain_value(item) for key, item in value.items()} if isinstance(value, dict) else value


class ReadRows:
    """Converts the rows of a table to inputs.

    Args:
        readers: The columns.
        value: The type of the inputs: any type that Pydantic supports; None for rows with names.
        changes: The policy for changes of rows: ``latest`` leaves out rows that are gone, and ``all`` makes
            each input a ``TableChange``.
    """

    def __init__(self, readers: Mapping[str, ColumnReader], value: Any, changes: str) -> None:
        self._names = list(readers)
        self._readers = list(readers.values())
        self._value = value
        self._changes = changes
        self._adapter: TypeAdapter[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_adapter": None}

    def open(self, java: JavaValues) -> None:
        """Do nothing: rows are read without it."""

    def __call__(self, row: Any) -> list[Any]:
        """Return the inputs for ``row``: one or none.

        Raises:
            UnsupportedTableError: It does not have the declared type, or Python has no equivalent for a
                value.
        """
        kind = row.get_row_kind()
        if self._changes == "latest" and kind not in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            return []
        value: Any = Row(*map(read_value, row, self._readers))
        value.set_field_names(self._names)
        value.set_row_kind(kind)
        if self._value is not None:
            value = self._validate_row(value)
        return [TableChange(CHANGES[kind], value) if self._changes == "all" else value]

    def _validate_row(self, row: Any) -> Any:
        if self._adapter is None:
            self._adapter = TypeAdapter(self._value)
        try:
            return self._adapter.validate_python({name: _plain_value(row[name]) for name in self._names})
        except ValidationError as error:
            raise UnsupportedTableError(
                "a row of a table does not have the declared type",
                expected=getattr(self._value, "__qualname__", None) or str(self._value),
                found=str(error)[:MAX_ERROR],
                fix="declare another type for its columns: from_table(..., value=...)",
                where=authors_place(),
            ) from error


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


_FLINK_TIMES: tuple[tuple[TypeInformation, type], ...] = (
    (Types.SQL_DATE(), date),
    (Types.SQL_TIME(), time),
    (Types.SQL_TIMESTAMP(), datetime),
)
_LISTS = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo)


class _RowModel(BaseModel):
    """A row that a model returns, with its fields in their order."""

    model_config = ConfigDict(extra="forbid")


def described_row(kind: Any) -> DescribedType:
    """Return the Pydantic model of a row type, and the function that makes a row of its instance.

    Args:
        kind: A ``RowTypeInfo`` with names of fields.

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
    for flink, python in _FLINK_TIMES:
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
    """Return a value with rows in place of model instances, nested ones included."""
    if isinstance(value, _RowModel):
        fields = type(value).model_fields
        row = Row(*(_to_row(getattr(value, name)) for name in fields))
        row.set_field_names([field.alias for field in fields.values()])
        return row
    if isinstance(value, list):
        return [_to_row(nested_value) for nested_value in value]
    if isinstance(value, dict):
        return {name: _to_row(nested_value) for name, nested_value in value.items()}
    return value


def _refused_error(what: str, expected: str, found: str) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a chat model cannot return {what}",
        expected=expected,
        found=found,
        fix="use such a type, or a pydantic model, as output_type",
    )
