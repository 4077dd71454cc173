"""Rows of tables: field names and Java values of inputs, and cells of outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pyflink.common import Row, RowKind, TypeInformation
from pyflink.common.typeinfo import ListTypeInfo, ObjectArrayTypeInfo, RowTypeInfo

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import UnsupportedTableError
from flink_agents.api.tables import ChangeKind, TableChange
from flink_agents.runtime.serde.typenames import shorten

Namer = Callable[[Any], None]

MAX_ERROR = 2000
"""The largest length of a message about an invalid row."""


class NameFields:
    """Gives rows the field names of their type, including nested rows.

    A table passes its rows to Python with or without names, depending on the plan that its
    optimizer chose.

    Args:
        kind: The type of the stream.
    """

    def __init__(self, kind: TypeInformation) -> None:
        self._name = _namer(kind)

    def __call__(self, row: Any) -> Any:
        """Name the fields of ``row`` in place and return it."""
        if self._name is not None:
            self._name(row)
        return row


def _namer(kind: Any) -> Namer | None:
    if isinstance(kind, RowTypeInfo):
        return _RowNamer(kind.get_field_names(), [_namer(each) for each in kind.get_field_types()])
    if isinstance(kind, ListTypeInfo):
        return _EachNamer.of(_namer(kind.elem_type))
    if isinstance(kind, ObjectArrayTypeInfo):
        return _EachNamer.of(_namer(kind._element_type))
    return None


class _RowNamer:
    def __init__(self, names: Sequence[str], namers: Sequence[Namer | None]) -> None:
        self._names = list(names)
        self._inner = [(index, namer) for index, namer in enumerate(namers) if namer is not None]

    def __call__(self, row: Any) -> None:
        if row is None:
            return
        row.set_field_names(self._names)
        for index, namer in self._inner:
            namer(row[index])


class _EachNamer:
    def __init__(self, namer: Namer) -> None:
        self._namer = namer

    @classmethod
    def of(cls, namer: Namer | None) -> _EachNamer | None:
        return None if namer is None else cls(namer)

    def __call__(self, items: Any) -> None:
        for item in items or ():
            self._namer(item)


CHANGES: dict[RowKind, ChangeKind] = {
    RowKind.INSERT: "insert",
    RowKind.UPDATE_BEFORE: "update-before",
    RowKind.UPDATE_AFTER: "update-after",
    RowKind.DELETE: "delete",
}


def is_latest(row: Any) -> bool:
    """Return True if a row still exists after a change of a table."""
    return row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)


class ReadRows:
    """Converts the rows of a table to inputs.

    Args:
        kind: The type of the stream of rows.
        value: The type of the inputs: any type that Pydantic supports; None for rows with names.
        changes: True if each input is a ``TableChange``.
    """

    def __init__(self, kind: TypeInformation, value: Any, changes: bool) -> None:
        self._name = NameFields(kind)
        self._value = value
        self._changes = changes
        self._adapter: TypeAdapter[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_adapter": None}

    def __call__(self, row: Any) -> Any:
        """Return the input for ``row``.

        Raises:
            UnsupportedTableError: It does not have the declared type, or Python has no equivalent for a
                value.
        """
        value = self._name(row)
        read_row(value)
        if self._value is not None:
            value = self._validated(value)
        return TableChange(CHANGES[row.get_row_kind()], value) if self._changes else value

    def _validated(self, row: Any) -> Any:
        if self._adapter is None:
            self._adapter = TypeAdapter(self._value)
        columns = row.as_dict(recursive=True)
        try:
            return self._adapter.validate_python(columns)
        except ValidationError as error:
            raise UnsupportedTableError(
                "a row of a table does not have the declared type",
                expected=getattr(self._value, "__qualname__", None) or str(self._value),
                found=str(error)[:MAX_ERROR],
                fix="declare another type for its columns: from_table(..., value=...)",
                where=authors_place(),
            ) from error


def rowtime_schema(name: str) -> Any:
    """Return the schema of a table with an additional column: event time, with the stream's watermarks.

    Args:
        name: Name of that column.
    """
    from pyflink.table import DataTypes, Schema

    made = Schema.new_builder().column_by_metadata(name, DataTypes.TIMESTAMP_LTZ(3), "rowtime")
    return made.watermark(name, "SOURCE_WATERMARK()").build()


class Column:
    """Key selector by column name.

    Args:
        name: The column.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: Any) -> Any:
        """Return the row's value in the column; also for an object made from the row."""
        if isinstance(row, TableChange):
            row = row.value
        return row[self._name] if isinstance(row, Row | dict) else getattr(row, self._name)


class ToRow:
    """Converts an output to a row: a model, a dict, an object with attributes, or a single cell.

    Args:
        names: The columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def __call__(self, value: Any) -> Row:
        """Return the row for ``value``.

        Raises:
            UnsupportedTableError: It lacks a column.
        """
        return Row(*(_cell(self._read(value, name)) for name in self._names))

    def _read(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            if name in value:
                return value[name]
        elif hasattr(value, name):
            return getattr(value, name)
        elif len(self._names) == 1:
            return value
        raise UnsupportedTableError(
            f"an output has no column {name!r}",
            expected=", ".join(self._names),
            found=shorten(value),
            fix="emit a value that has it, if only None, or remove the column: to_table(schema={...})",
            where=authors_place(),
        )


def _cell(value: Any) -> Any:
    fields = getattr(type(value), "model_fields", None)
    if fields is not None:
        return Row(*(_cell(getattr(value, name)) for name in fields))
    if isinstance(value, list):
        return [_cell(item) for item in value]
    return value


_PLAIN = frozenset({int, str, float, bool, bytes, type(None), Decimal, datetime, date, time})


def _duration(java: Any) -> timedelta:
    return timedelta(seconds=java.getSeconds(), microseconds=java.getNano() // 1000)


_READ: dict[str, Callable[[Any], Any]] = {
    # Python supports microseconds, and drops further digits.
    "java.time.LocalDateTime": lambda java: datetime.fromisoformat(str(java.toString())),
    "java.time.Instant": lambda java: datetime.fromisoformat(str(java.toString())),
    "java.time.LocalDate": lambda java: date.fromisoformat(str(java.toString())),
    "java.time.LocalTime": lambda java: time.fromisoformat(str(java.toString())),
    "java.time.Duration": _duration,
}


def read_row(row: Row) -> None:
    """Replace Java values in a row and its nested values with Python values.

    Raises:
        UnsupportedTableError: Python has no value for one of them.
    """
    for index, value in enumerate(row):
        if type(value) not in _PLAIN:
            row[index] = _read(value)


def _read(value: Any) -> Any:
    """Return a value with Python values in place of Java values. A row is changed in place."""
    if isinstance(value, Row):
        read_row(value)
    elif isinstance(value, list):
        return [_read(each) for each in value]
    elif isinstance(value, tuple):
        return tuple(_read(each) for each in value)
    elif isinstance(value, dict):
        return {_read(key): _read(each) for key, each in value.items()}
    elif type(value).__name__ == "PyJObject":
        return _of_java(value)
    return value


def _of_java(java: Any) -> Any:
    name = str(java.getClass().getName())
    if name not in _READ:
        raise _refused(name, str(java.toString()))
    try:
        return _READ[name](java)
    except (ValueError, OverflowError) as error:
        raise _refused(name, str(java.toString())) from error


def _refused(name: str, text: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        "a row of a table has a value that Python does not support",
        expected="dates and times of the years 1 to 9999, durations, and other types that Flink converts",
        found=f"{text[:200]}, of the class {name}",
        fix="cast the column in the query: CAST(... AS STRING)",
    )
