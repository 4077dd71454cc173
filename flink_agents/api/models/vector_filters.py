"""Filters of documents, validated and in one form, which stores translate.

``{"author": "Ada", "year": {"$gte": 2020}}`` matches documents whose metadata satisfies both. Strings and
bools can only be equal or unequal; numbers can also be ordered, integers with floats. A document without the
field is unequal to each value, and neither less nor greater.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from flink_agents.api.errors import VectorFilterError
from flink_agents.api.vector_store import Scalar, is_scalar

Operator = Literal["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin"]

ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "$gt": lambda value, bound: value > bound,
    "$gte": lambda value, bound: value >= bound,
    "$lt": lambda value, bound: value < bound,
    "$lte": lambda value, bound: value <= bound,
}
"""Operators that compare numbers; each function gets the value of a document and the bound of the filter."""

_SETS = ("$in", "$nin")
_OPERATORS = ("$eq", "$ne", *ORDER, *_SETS)
_EXAMPLE = "{'author': 'Ada'}, {'year': {'$gte': 2020}} or {'$or': [{...}, {...}]}"
MAX_CONDITIONS = 200
"""Maximum number of conditions in a filter: stores translate them to one statement."""
MAX_DEPTH = 20
"""Maximum depth of nested ``$and`` and ``$or``."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one field.

    Attributes:
        field: Name of the field.
        operator: The operator: ``$eq``, ``$ne``, or one of :data:`ORDER`.
        value: The value to compare with.
    """

    field: str
    operator: str
    value: Scalar


@dataclass(frozen=True)
class AllOf:
    """Matches documents that match all parts; without parts, all documents."""

    parts: tuple[Parsed, ...] = ()


@dataclass(frozen=True)
class AnyOf:
    """Matches documents that match at least one part; without parts, no document."""

    parts: tuple[Parsed, ...] = ()


Parsed = Condition | AllOf | AnyOf
"""A valid filter, as a tree of conditions."""


def parse_filter(filter: Mapping[str, Any] | None) -> Parsed:
    """Check an author's filter, and return it as a tree of conditions.

    Args:
        filter: A filter such as ``{"author": "Ada", "year": {"$gte": 2020}}``; None matches all documents.

    Raises:
        VectorFilterError: The filter is invalid, too deep, or has more than :data:`MAX_CONDITIONS`.
    """
    parsed = AllOf() if filter is None else _parse_filter(filter)
    if _filter_size(parsed) > MAX_CONDITIONS:
        raise _filter_error(f"at most {MAX_CONDITIONS} conditions", f"{_filter_size(parsed)} conditions")
    return parsed


def matches(parsed: Parsed, metadata: Mapping[str, Scalar]) -> bool:
    """Return True if a filter matches a document with this metadata: the reference implementation."""
    if isinstance(parsed, AllOf):
        return all(matches(part, metadata) for part in parsed.parts)
    if isinstance(parsed, AnyOf):
        return any(matches(part, metadata) for part in parsed.parts)
    value = metadata.get(parsed.field)
    if parsed.operator in ORDER:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return ORDER[parsed.operator](value, cast(float, parsed.value))
    # True equals 1 in Python, but not in JSON.
    is_equal = value == parsed.value and isinstance(value, bool) == isinstance(parsed.value, bool)
    return is_equal if parsed.operator == "$eq" else not is_equal


def both_filters(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the filter of documents that both filters match; None or empty matches all documents."""
    return {"$and": [first, second]} if first and second else first or second


def _parse_filter(filter: object, depth: int = 0) -> Parsed:
    """Parse a mapping, all entries of which have to match; ``depth`` is the number of ``$and`` around it."""
    if depth > MAX_DEPTH:
        raise _filter_error(f"$and and $or at most {MAX_DEPTH} deep", "more")
    if not isinstance(filter, Mapping):
        raise _filter_error(f"a mapping such as {_EXAMPLE}", repr(filter))
    entries = cast("Mapping[object, object]", filter)
    parts = tuple(_parse_entry(name, value, depth + 1) for name, value in entries.items())
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _parse_entry(name: object, value: object, depth: int) -> Parsed:
    """Parse an entry of a filter: ``$and`` or ``$or`` and a list, or a field and its conditions."""
    if name in ("$and", "$or"):
        parts = tuple(_parse_filter(operand, depth) for operand in _check_sequence(str(name), value))
        return AllOf(parts) if name == "$and" else AnyOf(parts)
    if not isinstance(name, str) or not name or name.startswith("$"):
        raise _filter_error("the name of a field, $and, or $or", repr(name))
    if not isinstance(value, Mapping):
        return _parse_condition(name, "$eq", value)
    conditions = cast("Mapping[str, object]", value)
    parts = tuple(_parse_condition(name, operator, bound) for operator, bound in conditions.items())
    if not parts:
        raise _filter_error(f"an operator at {name!r}: one of {', '.join(_OPERATORS)}", "an empty mapping")
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _parse_condition(name: str, operator: str, value: object) -> Parsed:
    """Parse a comparison of the field ``name``; ``$in`` and ``$nin`` become one comparison per value."""
    if operator not in _OPERATORS:
        raise _filter_error(f"at {name!r} one of {', '.join(_OPERATORS)}", repr(operator))
    if operator in _SETS:
        values = _check_sequence(f"{operator} at {name!r}", value)
        single_operator = "$eq" if operator == "$in" else "$ne"
        parts = tuple(_parse_condition(name, single_operator, operand) for operand in values)
        return AnyOf(parts) if operator == "$in" else AllOf(parts)
    if not is_scalar(value):
        raise _filter_error(f"at {name!r} a string, a finite number or a bool", repr(value))
    if operator in ORDER and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _filter_error(f"a number after {operator} at {name!r}", repr(value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _filter_error(f"at {name!r} a string that UTF-8 can encode", repr(value)) from None
    return Condition(name, operator, cast(Scalar, value))


def _check_sequence(what: str, value: object) -> Sequence[object]:
    """Return ``value`` if it is a list; ``what`` is the operator before it, for the error."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _filter_error(f"a list after {what}", repr(value))
    return cast("Sequence[object]", value)


def _filter_size(parsed: Parsed) -> int:
    """Return the number of conditions in a filter."""
    return 1 if isinstance(parsed, Condition) else sum(map(_filter_size, parsed.parts))


def _filter_error(expected: str, found: str) -> VectorFilterError:
    return VectorFilterError(
        "invalid filter of documents",
        expected=expected,
        found=found[:300],
        fix=f"write {_EXAMPLE}",
    )
