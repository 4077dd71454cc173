"""Cells of tables: converts the values of outputs to the values of Java that a column takes.

PyFlink's own conversions drop the zone of a datetime, the fraction of a time and digits of a decimal, and
reuse one row for all rows of a list. So a cell is built here, in Java, and checked before: it holds the same
value, or the output is rejected with the name of its column.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Integral
from typing import Any, Protocol

from pyflink.common import Row

from flink_agents.runtime.serde.declared_types import Carry, NotCarriedError
from flink_agents.runtime.serde.typenames import shorten

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_OTHER_TYPE = "emit such a value, or declare another type for the column"


class UnfitCellError(Exception):
    """A value that a column cannot hold.

    Args:
        expected: The values that it can hold.
        found: The value.
        fix: What the author can do.

    Attributes:
        path: The place of the value inside the column.
    """

    def __init__(self, expected: str, found: Any, fix: str = _OTHER_TYPE) -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = found if isinstance(found, str) else f"{type(found).__qualname__} {shorten(found)}"
        self.fix = fix
        self.path = ""

    def inside_container(self, place: str) -> UnfitCellError:
        """Return the error with the place of the value's container in front."""
        self.path = place + self.path
        return self


class JavaValues(Protocol):
    """Makes values of Java in a worker."""

    def row(self, cells: tuple[Any, ...]) -> Any:
        """Return a row of Java that has these cells."""
        ...

    def instant(self, seconds: int, nanoseconds: int) -> Any:
        """Return an instant, from seconds since the epoch and the nanoseconds after them."""
        ...

    def timestamp(self, at: dt.datetime) -> Any:
        """Return a date and time without a zone."""
        ...

    def date(self, days: int) -> Any:
        """Return a date, from days since the epoch."""
        ...

    def time(self, nanoseconds: int) -> Any:
        """Return a time of day, from nanoseconds since midnight."""
        ...


Cell = Callable[[Any, JavaValues], Any]
"""Returns the value of Java for a value that is not None, or raises ``UnfitCellError``."""


class CarriedCell:
    """A number, string or bool.

    Args:
        expected: A description of the values, for errors.
        carry: Returns the value, or raises ``NotCarriedError``.
    """

    def __init__(self, expected: str, carry: Carry) -> None:
        self._expected = expected
        self._carry = carry

    def __call__(self, value: Any, java: JavaValues) -> Any:
        """Return the value. SQL compares NaN differently in each operator, so no column holds it."""
        try:
            cell = self._carry(value)
        except NotCarriedError as error:
            raise UnfitCellError(self._expected, str(error)) from None
        if cell != cell:
            raise UnfitCellError(f"{self._expected}, not NaN", value, "emit None if there is no number")
        return cell


def bytes_cell(value: Any, java: JavaValues) -> bytes:
    """Return bytes, or what has their buffer, as bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UnfitCellError("bytes", value)
    return bytes(value)


class DecimalCell:
    """A decimal number of a fixed size.

    Args:
        precision: The number of digits.
        scale: How many of them follow the point.
    """

    def __init__(self, precision: int, scale: int) -> None:
        self._precision = precision
        self._scale = scale

    def __call__(self, value: Any, java: JavaValues) -> Decimal:
        """Return the number, if no digit is lost."""
        precision = self._precision
        scale = self._scale
        expected = f"a decimal of at most {precision - scale} digits before the point and {scale} after it"
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = Decimal(int(value))
        if not isinstance(value, Decimal) or not value.is_finite():
            raise UnfitCellError(expected, value)
        _, digits, exponent = value.as_tuple()
        text = "".join(map(str, digits)).lstrip("0")
        fraction = max(0, -int(exponent) - (len(text) - len(text.rstrip("0"))))
        whole = max(0, len(text) + int(exponent))
        if not text:
            return Decimal(0)
        if whole > precision - scale or fraction > scale:
            raise UnfitCellError(
                expected,
                f"{shorten(value)}, with {whole} digits before the point and {fraction} after it",
                "round it, or declare its size, at most 38 digits in all: Annotated[Decimal, "
                "Field(max_digits=..., decimal_places=...)]",
            )
        return Decimal(value)


def _datetime(value: Any, expected: str) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise UnfitCellError(expected, value)
    if getattr(value, "nanosecond", 0):
        raise UnfitCellError(f"{expected}, in microseconds", value)
    return value


def timestamp_cell(value: Any, java: JavaValues) -> Any:
    """Return a date and time without a zone."""
    at = _datetime(value, "a datetime without a zone")
    if at.utcoffset() is not None:
        raise UnfitCellError(
            "a datetime without a zone",
            at.isoformat(),
            "declare the column as pydantic.AwareDatetime, which becomes TIMESTAMP_LTZ, or emit "
            "value.astimezone(UTC).replace(tzinfo=None)",
        )
    return java.timestamp(at)


def instant_cell(value: Any, java: JavaValues) -> Any:
    """Return the instant of a datetime with a zone."""
    at = _datetime(value, "a datetime with a zone")
    if at.utcoffset() is None:
        raise UnfitCellError(
            "a datetime with a zone",
            at.isoformat(),
            "emit one with a zone, such as datetime.now(UTC), or declare the column as datetime",
        )
    passed = at - _EPOCH
    return java.instant(passed.days * 86400 + passed.seconds, passed.microseconds * 1000)


def date_cell(value: Any, java: JavaValues) -> Any:
    """Return Java's date for a ``date`` that is not a ``datetime``."""
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise UnfitCellError("a date", value)
    return java.date(value.toordinal() - _EPOCH.toordinal())


def time_cell(value: Any, java: JavaValues) -> Any:
    """Return a time of day. Flink's times have milliseconds."""
    expected = "a time without a zone, in whole milliseconds"
    if not isinstance(value, dt.time):
        raise UnfitCellError(expected, value)
    if value.tzinfo is not None or value.microsecond % 1000:
        fix = "round it: value.replace(microsecond=..., tzinfo=None); or declare the column as str"
        raise UnfitCellError(expected, value.isoformat(), fix)
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return java.time((seconds * 1_000_000 + value.microsecond) * 1000)


class ArrayCell:
    """A list.

    Args:
        item: Converts its items.
    """

    def __init__(self, item: Cell) -> None:
        self._item = item

    def __call__(self, value: Any, java: JavaValues) -> tuple[Any, ...]:
        """Return the converted items. A tuple becomes an array of Java."""
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
            raise UnfitCellError("a list", value)
        return tuple(
            None if item is None else convert_value(self._item, item, java, f"[{index}]")
            for index, item in enumerate(value)
        )


class MapCell:
    """A dict.

    Args:
        key: Converts its keys.
        value: Converts its values.
    """

    def __init__(self, key: Cell, value: Cell) -> None:
        self._key = key
        self._value = value

    def __call__(self, value: Any, java: JavaValues) -> dict[Any, Any]:
        """Return the items as a dict, which becomes a map of Java."""
        if not isinstance(value, Mapping):
            raise UnfitCellError("a dict", value)
        cells: dict[Any, Any] = {}
        for key, item in value.items():
            place = f"[{shorten(key)}]"
            if key is None:
                raise UnfitCellError("keys that are not None", value)
            cells[convert_value(self._key, key, java, place)] = (
                None if item is None else convert_value(self._value, item, java, place)
            )
        return cells


MISSING = object()
"""The value of a field that an object lacks."""


def read_field(value: Any, name: str) -> Any:
    """Return the field of a dict or of an object; ``MISSING`` if it has none."""
    if isinstance(value, Mapping):
        return value.get(name, MISSING)
    item = getattr(value, name, MISSING)
    # A string has a method `title`, a list `count`: these are no fields.
    return MISSING if inspect.isroutine(item) else item


def _is_without_names(value: Any) -> bool:
    """Return True for a tuple or a row whose items have only places. Those with names have ``_fields``."""
    return isinstance(value, tuple | Row) and not hasattr(value, "_fields")


class RowCell:
    """A model, a dataclass, a dict, a row, or a tuple.

    Args:
        fields: Converts the value of each field, by its name.
        is_tuple: True if the fields are the items of a tuple.
    """

    def __init__(self, fields: Mapping[str, Cell], is_tuple: bool = False) -> None:
        self._fields = dict(fields)
        self._is_tuple = is_tuple

    def __call__(self, value: Any, java: JavaValues) -> Any:
        """Return the row."""
        return java.row(self.cells(value, java))

    def cells(self, value: Any, java: JavaValues) -> tuple[Any, ...]:
        """Return the cells of the row."""
        if self._is_tuple or _is_without_names(value):
            is_sequence = isinstance(value, Sequence | Row) and not isinstance(value, str)
            if not is_sequence or len(value) != len(self._fields):
                names = ", ".join(self._fields)
                raise UnfitCellError(f"a tuple of {len(self._fields)} items: {names}", value)
            value = dict(zip(self._fields, value, strict=True))
        return tuple(self._convert_cell(name, cell, value, java) for name, cell in self._fields.items())

    def _convert_cell(self, name: str, cell: Cell, value: Any, java: JavaValues) -> Any:
        item = read_field(value, name)
        if item is MISSING:
            raise UnfitCellError(f"a value with {', '.join(self._fields)}", value).inside_container(
                f".{name}"
            )
        return None if item is None else convert_value(cell, item, java, f".{name}")


def convert_value(cell: Cell, value: Any, java: JavaValues, place: str) -> Any:
    """Return the value of Java for a value inside a column.

    Raises:
        UnfitCellError: The column cannot hold it.
    """
    try:
        return cell(value, java)
    except UnfitCellError as error:
        raise error.inside_container(place) from None
