"""Rows of tables: their field names on the way in, their cells on the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyflink.common import Row, TypeInformation
from pyflink.common.typeinfo import ListTypeInfo, ObjectArrayTypeInfo, RowTypeInfo

Namer = Callable[[Any], None]


class NameFields:
    """Gives rows the field names of their type, nested rows too.

    A table hands its rows to Python with names or without, depending on the plan that its
    optimiser chose.

    Args:
        kind: The type of the stream.
    """

    def __init__(self, kind: TypeInformation) -> None:
        self._name = _namer(kind)

    def __call__(self, row: Any) -> Any:
        """Name the fields of ``row`` in place and hand it on."""
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


class Column:
    """Key selector by column name.

    Args:
        name: The column.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: Any) -> Any:
        """Return the row's value in the column."""
        return row[self._name]


class ToRow:
    """Makes a row of an output: a model, a dict, an object with attributes, or the only cell.

    Args:
        names: The columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def __call__(self, value: Any) -> Row:
        """Return the row of ``value``.

        Raises:
            TypeError: It lacks a column.
        """
        return Row(*(_cell(self._read(value, name)) for name in self._names))

    def _read(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return value[name]
        if hasattr(value, name):
            return getattr(value, name)
        if len(self._names) == 1:
            return value
        raise TypeError(f"an output has no column {name!r}: {value!r}")


def _cell(value: Any) -> Any:
    fields = getattr(type(value), "model_fields", None)
    if fields is not None:
        return Row(*(_cell(getattr(value, name)) for name in fields))
    if isinstance(value, list):
        return [_cell(item) for item in value]
    return value
