"""Filters of documents, checked and in one form, for stores to translate.

``{"author": "Ada", "year": {"$gte": 2020}}`` means documents whose metadata has both. A text and a truth
value can be equal or not; numbers can be compared, whole ones with others. A document without the field is
unequal to everything, and is not less or more than anything.
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
"""Operators that compare numbers, and what they mean."""

_SETS = ("$in", "$nin")
_OPERATORS = ("$eq", "$ne", *ORDER, *_SETS)
_EXAMPLE = "{'author': 'Ada'}, {'year': {'$gte': 2020}} or {'$or': [{...}, {...}]}"
MAX_CONDITIONS = 200
"""How many conditions a filter may have: stores make a statement of them."""
MAX_DEPTH = 20
"""How deep ``$and`` and ``$or`` may stand within each other."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one field.

    Attributes:
        field: Name of the field.
        operator: How it is compared: ``$eq``, ``$ne``, or one of :data:`ORDER`.
        value: With what.
    """

    field: str
    operator: str
    value: Scalar


@dataclass(frozen=True)
class AllOf:
    """What all parts mean; all documents where there is none."""

    parts: tuple[Parsed, ...] = ()


@dataclass(frozen=True)
class AnyOf:
    """What one of the parts means, at least; no document where there is none."""

    parts: tuple[Parsed, ...] = ()


Parsed = Condition | AllOf | AnyOf


def parse_filter(filter: Mapping[str, Any] | None) -> Parsed:
    """A filter as conditions.

    Raises:
        VectorFilterError: It is none.
    """
    parsed = AllOf() if filter is None else _parse(filter)
    if _size(parsed) > MAX_CONDITIONS:
        raise _wrong(f"at most {MAX_CONDITIONS} conditions", f"{_size(parsed)} conditions")
    return parsed


def matches(parsed: Parsed, metadata: Mapping[str, Scalar]) -> bool:
    """Whether a filter means a document with this metadata: what it says, in Python."""
    if isinstance(parsed, AllOf):
        return all(matches(part, metadata) for part in parsed.parts)
    if isinstance(parsed, AnyOf):
        return any(matches(part, metadata) for part in parsed.parts)
    value = metadata.get(parsed.field)
    if parsed.operator in ORDER:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return ORDER[parsed.operator](value, cast(float, parsed.value))
    # True is 1 in Python; in JSON it is not.
    same = value == parsed.value and isinstance(value, bool) == isinstance(parsed.value, bool)
    return same if parsed.operator == "$eq" else not same


def both(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The filter that means what both mean."""
    return {"$and": [first, second]} if first and second else first or second


def _parse(filter: object, depth: int = 0) -> Parsed:
    if depth > MAX_DEPTH:
        raise _wrong(f"$and and $or at most {MAX_DEPTH} deep", "more")
    if not isinstance(filter, Mapping):
        raise _wrong(f"a mapping such as {_EXAMPLE}", repr(filter))
    entries = cast("Mapping[object, object]", filter)
    parts = tuple(_entry(name, value, depth + 1) for name, value in entries.items())
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _entry(name: object, value: object, depth: int) -> Parsed:
    if name in ("$and", "$or"):
        parts = tuple(_parse(one, depth) for one in _sequence(str(name), value))
        return AllOf(parts) if name == "$and" else AnyOf(parts)
    if not isinstance(name, str) or not name or name.startswith("$"):
        raise _wrong("the name of a field, $and, or $or", repr(name))
    if not isinstance(value, Mapping):
        return _condition(name, "$eq", value)
    conditions = cast("Mapping[str, object]", value)
    parts = tuple(_condition(name, operator, bound) for operator, bound in conditions.items())
    if not parts:
        raise _wrong(f"an operator at {name!r}: one of {', '.join(_OPERATORS)}", "an empty mapping")
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _condition(name: str, operator: str, value: object) -> Parsed:
    if operator not in _OPERATORS:
        raise _wrong(f"at {name!r} one of {', '.join(_OPERATORS)}", repr(operator))
    if operator in _SETS:
        values = _sequence(f"{operator} at {name!r}", value)
        one = "$eq" if operator == "$in" else "$ne"
        parts = tuple(_condition(name, one, each) for each in values)
        return AnyOf(parts) if operator == "$in" else AllOf(parts)
    if not is_scalar(value):
        raise _wrong(f"at {name!r} a text, a finite number or a truth value", repr(value))
    if operator in ORDER and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _wrong(f"a number behind {operator} at {name!r}", repr(value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(f"at {name!r} a text that UTF-8 can write", repr(value)) from None
    return Condition(name, operator, cast(Scalar, value))


def _sequence(what: str, value: object) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(f"a list behind {what}", repr(value))
    return cast("Sequence[object]", value)


def _size(parsed: Parsed) -> int:
    return 1 if isinstance(parsed, Condition) else sum(map(_size, parsed.parts))


def _wrong(expected: str, found: str) -> VectorFilterError:
    return VectorFilterError(
        "a filter of documents cannot be understood",
        expected=expected,
        found=found[:300],
        fix=f"write {_EXAMPLE}",
    )
