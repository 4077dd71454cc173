"""The text that may leave the process.

A string of Python can hold half of a surrogate pair, such as half of an emoji that was cut. UTF-8 has no
bytes for it, so no service accepts it. Text that is sent has U+FFFD, the replacement character, in its place.
State and the journal keep the string as it is. JSON has no NaN and no infinities: they are sent as texts.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, cast

_DEEPEST = 64
"""Maximum depth of the search in lists, dicts and dataclasses."""

_LEAVES = (int, float, bytes, type(None))
_COLLECTIONS = (list, tuple, deque, set, frozenset)

_EXTRA = "__pydantic_extra__"
"""The attribute of a model with fields that its class does not declare."""


def sendable(value: Any) -> Any:
    """Return ``value`` with U+FFFD in place of each half of a surrogate pair.

    Args:
        value: A string, or collections, dataclasses and Pydantic models with strings.

    Returns:
        The same object, if there is nothing to replace. Collections of other classes that change become lists
        and dicts.
    """
    if isinstance(value, str):
        return _sendable_text(value)
    return _sendable_parts(value, {}, _DEEPEST) if _has_half_characters(value) else value


def _has_half_characters(value: Any) -> bool:
    """Return True if a text in a value has to change. Almost none has, and this search is cheap."""
    # It holds the objects: another object could get the id of one that ended here.
    seen: dict[int, Any] = {}
    parts: deque[Any] = deque([value])
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            if not part.isascii() and _sendable_text(part) is not part:
                return True
        elif not isinstance(part, _LEAVES) and id(part) not in seen:
            seen[id(part)] = part
            kind = cast("Any", type(part))
            if issubclass(kind, dict):
                parts += part
                parts += part.values()
            elif issubclass(kind, _COLLECTIONS):
                parts += part
            elif (names := _field_names(kind)) is not None:
                parts += [getattr(part, name, None) for name in names]
            elif hasattr(kind, "__pydantic_fields__"):
                parts.append(_fields_of(part, kind))
    return False


def _sendable_parts(value: Any, seen: dict[int, tuple[Any, Any]], depth: int) -> Any:
    """Return ``value`` with all strings inside replaced by sendable ones.

    Args:
        value: Any value.
        seen: The objects so far, each with its replacement, by their ids: many may refer to one object.
        depth: Number of levels to search; values below them stay as they are.
    """
    if isinstance(value, str):
        return _sendable_text(value)
    if not depth or isinstance(value, _LEAVES):
        return value
    if id(value) not in seen:
        # It may contain itself.
        seen[id(value)] = value, value
        replaced = _replace_parts(value, type(value), partial(_sendable_parts, seen=seen, depth=depth - 1))
        # An object that a property made would end here, and another one could get its id.
        seen[id(value)] = value, replaced
    return seen[id(value)][1]


def _replace_parts(value: Any, kind: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a value of class ``kind`` with its parts replaced; the same object if no part changes."""
    if issubclass(kind, dict):
        pairs = {replace(name): replace(item) for name, item in value.items()}
        has_same_parts = _are_identical(pairs, value) and _are_identical(pairs.values(), value.values())
        return value if has_same_parts else pairs
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return cast("Any", kind)._make(map(replace, value))
    if issubclass(kind, (list, tuple, deque)):
        items = list(map(replace, value))
        if _are_identical(items, value):
            return value
        return tuple(items) if kind is tuple else items
    if kind in (set, frozenset):
        return cast("Any", kind)(map(replace, value))
    fields = _fields_of(value, kind)
    replaced = {name: replace(item) for name, item in fields.items()}
    return _change_copy(value, {name: item for name, item in replaced.items() if item is not fields[name]})


@lru_cache(maxsize=1000)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass; None for other classes."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _fields_of(value: Any, kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass or a Pydantic model; none for another value."""
    if (names := _field_names(kind)) is not None:
        return {name: getattr(value, name, None) for name in names}
    if not hasattr(kind, "__pydantic_fields__"):
        return {}
    extra = getattr(value, _EXTRA, None)
    return {**value.__dict__, _EXTRA: extra} if extra else {**value.__dict__}


def _are_identical(parts: Iterable[object], other_parts: Iterable[object]) -> bool:
    """Return True if both have the same objects, in order."""
    return all(map(operator.is_, parts, other_parts))


def _sendable_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two halves that belong together become one character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _change_copy(value: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of an object with other values of attributes; the object itself without changes."""
    if not changes:
        return value
    changed = copy.copy(value)
    for name, item in changes.items():
        # It may be frozen, and a model would validate the field again.
        object.__setattr__(changed, name, item)
    return changed


NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The numbers that JSON lacks, by the texts that are written in their place."""


def with_number_texts(value: Any) -> Any:
    """Return a value of dicts, lists and plain values with texts in place of the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in NUMBERS.items() if repr(number) == repr(value))
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {with_number_texts(name): with_number_texts(item) for name, item in entries}
    if isinstance(value, list | tuple):
        return [with_number_texts(item) for item in cast("Iterable[Any]", value)]
    return value
