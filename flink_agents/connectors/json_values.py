"""Values as JSON that every reader accepts: numbers that JSON lacks are strings, and each text is UTF-8.

JSON has no NaN. It is written as ``"NaN"``, and infinities as ``"Infinity"`` and ``"-Infinity"``, which
Pydantic reads as numbers again where a ``float`` is declared. Half of a surrogate pair becomes U+FFFD.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from flink_agents.api.resources.sendable_text import NUMBERS, sendable, with_number_texts

_ANY = TypeAdapter[Any](Any)
_MASK = "**********"
"""The text that Pydantic writes in place of a secret."""

_SIGNS = (b"null", b"NaN", b"Infinity", _MASK.encode())
"""Pydantic's JSON contains one of these if the value has a number that JSON lacks, or a secret."""


def write_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8.

    Raises:
        PydanticSerializationError: Pydantic cannot write the value.
        ValueError: The value has a secret, too many levels, or NaN or an infinity that Pydantic writes as
            null.
    """
    try:
        data = to_json(value)
    except PydanticSerializationError:
        # It may have half of a surrogate pair.
        return _write_json(jsonable(value))
    if any(sign in data for sign in _SIGNS) and _count_parts(_ANY.dump_python(value), _is_special):
        return _write_json(jsonable(value))
    return data


def _write_json(plain: Any) -> bytes:
    return json.dumps(plain, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def jsonable(value: Any) -> Any:
    """Convert a value to dicts, lists, strings, numbers, bools and None, which the module ``json`` can write.

    Raises:
        PydanticSerializationError: Pydantic cannot write the value.
        ValueError: The value has a secret, or NaN or an infinity that Pydantic writes as null.
    """
    value = sendable(value)
    plain = to_jsonable_python(value, inf_nan_mode="constants")
    parts = _ANY.dump_python(value)
    if _count_parts(parts, _is_secret) and _count_parts(plain, lambda part: part == _MASK):
        raise ValueError(
            "a secret would be written as asterisks: give its field a serializer that writes it, or leave it "
            "out with exclude=True"
        )
    if _count_parts(parts, _is_no_number) > _count_parts(plain, _is_no_number):
        raise ValueError(
            "NaN or an infinity in a field without the type float would become null: declare it as float, or "
            "as dict[str, float]"
        )
    # Strings of enums and computed fields appear only now.
    written = sendable(with_number_texts(plain))
    _check_types(value)
    return written


def _check_types(value: Any) -> None:
    """Check that no model in a value would read NaN or an infinity back as a string, such as ``float | str``.

    Raises:
        ValueError: A field of a model, or of a dataclass, would.
    """
    if isinstance(value, Mapping):
        value = list(cast("Mapping[Any, Any]", value).values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        for element in cast("Iterable[Any]", value):
            _check_types(element)
    numbers = _count_parts(_ANY.dump_python(value), _is_no_number)
    if not numbers or not (isinstance(value, BaseModel) or dataclasses.is_dataclass(value)):
        return
    adapter = TypeAdapter[Any](type(value))
    try:
        written = json.dumps(with_number_texts(to_jsonable_python(value, inf_nan_mode="constants")))
        restored = read_json(adapter, written)
    except ValidationError:
        # Whatever reads it has another type.
        return
    if _count_parts(_ANY.dump_python(restored), _is_no_number) < numbers:
        raise ValueError(
            f"NaN or an infinity of {type(value).__qualname__} would be read as a string: declare its field "
            "without str"
        )


def read_json(adapter: TypeAdapter[Any], data: bytes | str) -> Any:
    """Parse JSON that :func:`write_json` wrote.

    A strict type rejects a string for a float. So strings such as ``"NaN"`` are replaced by numbers where it
    does.

    Args:
        adapter: The type of the result.
        data: The JSON.

    Raises:
        ValidationError: The JSON does not have the type of the adapter.
    """
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        places = [
            problem["loc"]
            for problem in problems
            if problem["type"] == "float_type" and problem["input"] in NUMBERS
        ]
        if not places:
            raise
        whole = {"": json.loads(data)}
        for place in places:
            _replace_text(whole, ("", *place))
        return adapter.validate_json(json.dumps(whole[""]))


def _replace_text(content: Any, place: Iterable[int | str]) -> None:
    """Replace a string such as ``"NaN"`` by its number, in place.

    Args:
        content: Parsed JSON.
        place: Keys and indexes that lead to the string, from Pydantic's error. Names of union members are
            skipped.
    """
    for part in place:
        try:
            inner = content[part]
        except (TypeError, LookupError):
            # A member of a union.
            continue
        if isinstance(inner, str):
            content[part] = NUMBERS.get(inner, inner)
            return
        content = inner


def _is_no_number(value: Any) -> bool:
    """Return True for NaN and infinities, which JSON does not have."""
    return isinstance(value, float) and not math.isfinite(value)


def _is_secret(value: Any) -> bool:
    return hasattr(value, "get_secret_value")


def _is_special(value: Any) -> bool:
    return _is_no_number(value) or _is_secret(value)


def _count_parts(value: Any, matches: Callable[[Any], bool]) -> int:
    """Count the values in nested mappings and collections for which ``matches`` returns True.

    Keys count as well, except floats: Pydantic writes each key as a string.
    """
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        keys = sum(not isinstance(key, float) and matches(key) for key in entries)
        return keys + sum(_count_parts(part, matches) for part in entries.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return sum(_count_parts(part, matches) for part in cast("Iterable[Any]", value))
    return matches(value)
