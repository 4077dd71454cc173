"""Canonical strings of keys: equal keys have equal strings, different keys different ones.

Flink partitions and finds state by this string. The first character names the type, so that
``1``, ``"1"``, ``1.0``, ``True``, ``b"1"`` and ``("1",)`` are six keys; tuples carry the
length of each item, so that different tuples never have the same string. The string is printable
ASCII, since it passes through Java, and :func:`decode_key` returns the key.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from flink_agents.api.common.current import DECIMALS
from flink_agents.api.common.places import place_of, place_of_class
from flink_agents.api.errors import KeyEncodingError, UnknownTypeNameError, UnserializableValueError
from flink_agents.runtime.serde.changed import remake_dataclass, remake_model
from flink_agents.runtime.serde.raised_texts import innermost_place, text_of
from flink_agents.runtime.serde.typenames import (
    Kind,
    kind_of,
    resolve_type,
    shorten,
    type_name,
    type_that_is_there,
)

_MANY_DIGITS = 10**640
"""The least integer that is written as hexadecimal: Python limits decimal digits, to 640 at least."""
_PLAIN = "a plain value that distinguishes keys: its canonical string is the same on each machine"
_FIX = (
    "return a str, int, bool, float, bytes, None, UUID, date, datetime, Decimal, Enum, a tuple of them, or a "
    "frozen dataclass or frozen pydantic model of them"
)
_COLON = "\\x3a"
"""A colon in the name of a class, such as one of an argument of a parametrized model."""


def escape(text: str) -> str:
    """Return ``text`` as printable ASCII; reversed by :func:`unescape`."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    # Not JSON, which combines two surrogates into one character.
    return text.encode("unicode_escape").decode("ascii")


def unescape(text: str) -> str:
    """Return the string that :func:`escape` got."""
    return text if "\\" not in text else text.encode("ascii").decode("unicode_escape")


def encode_key(key: Any) -> str:
    """Return the canonical string of a key.

    Raises:
        KeyEncodingError: The key's type is not supported, or it is NaN.
    """
    kind = type(key)
    if kind is str:
        return "s" + (key if key.isascii() and key.isprintable() and "\\" not in key else escape(key))
    if kind is int:
        # Hexadecimal if Python refuses to write that many decimal digits.
        return f"i{key}" if -_MANY_DIGITS < key < _MANY_DIGITS else f"i{key:#x}"
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(key)
    if isinstance(key, Enum):
        return _encode_enum(key)
    if kind_of(kind) in (Kind.DATACLASS, Kind.MODEL):
        return _encode_fields(key)
    raise KeyEncodingError(
        f"a key of type {kind.__module__}.{kind.__qualname__} has no canonical encoding",
        expected=_PLAIN,
        found=shorten(key),
        fix=_FIX,
    )


def _not_a_number(key: object) -> KeyEncodingError:
    return KeyEncodingError(
        "a key is NaN", expected=_PLAIN, found=repr(key), fix="NaN equals nothing: drop it"
    )


def _encode_float(key: float) -> str:
    if math.isnan(key):
        raise _not_a_number(key)
    return f"f{key + 0.0!r}"


def _encode_decimal(key: Decimal) -> str:
    """Return the string of a decimal: equal for ``1``, ``1.0`` and ``1.00``, which are equal keys."""
    if key.is_nan():
        raise _not_a_number(key)
    if key.is_infinite():
        return f"d{key}"
    # Not normalize(), which rounds to the precision of the context.
    sign, digits, exponent = key.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return "d0"
    return f"d{'-' * sign}{significant}E{int(exponent) + len(text) - len(significant)}"


def _encode_datetime(key: datetime) -> str:
    """Return the string of a datetime: local without a zone, else in UTC, as equal keys are one moment."""
    if key.tzinfo is None:
        return f"L{key.replace(fold=0).isoformat()}"
    try:
        return f"Z{key.astimezone(UTC).isoformat()}"
    except OverflowError as error:
        raise KeyEncodingError(
            "a key is a time that UTC cannot express",
            expected=_PLAIN,
            found=repr(key),
            fix="use times within the years 1 to 9999",
        ) from error


def _encode_tuple(key: tuple[Any, ...]) -> str:
    return "t" + _framed([encode_key(item) for item in key])


def _framed(items: list[str]) -> str:
    """Return strings as one, each after its length, so that no two lists look alike."""
    return "".join(f"{len(item)}:{item}" for item in items)


def _name_of(kind: type) -> str:
    """Return the escaped name of a class, with one colon."""
    module, _, name = type_name(kind).partition(":")
    return f"{escape(module)}:{escape(name).replace(':', _COLON)}"


def _encode_enum(key: Enum) -> str:
    if key.name not in type(key).__members__:
        raise KeyEncodingError(
            "a key is a combination of flags", expected=_PLAIN, found=repr(key), fix="use key.value"
        )
    try:
        return f"e{_name_of(type(key))}:{escape(key.name)}"
    except UnserializableValueError as error:
        raise KeyEncodingError(
            "a key is of a class that cannot be imported", expected=_PLAIN, found=repr(key), fix=_FIX
        ) from error


def _encode_fields(key: Any) -> str:
    """Return the string of a frozen dataclass or model: its class, and its fields as a tuple of strings."""
    kind = type(key)
    names = key_fields(kind)
    values = _values_of_model(key) if isinstance(key, BaseModel) else [getattr(key, name) for name in names]
    parts: list[str] = []
    for name, value in zip(names, values, strict=True):
        try:
            parts.append(encode_key(value))
        except KeyEncodingError as error:
            raise KeyEncodingError(
                f"the field {name!r} of a key of type {kind.__qualname__}: {error.message}",
                expected=error.expected,
                found=error.found,
                fix=error.fix,
            ) from None
    try:
        class_name = _name_of(kind)
    except UnserializableValueError as error:
        raise KeyEncodingError(
            "a key is of a class that cannot be imported", expected=_PLAIN, found=shorten(key), fix=error.fix
        ) from error
    return f"c{class_name}:{','.join(map(escape, names))}:" + _framed(parts)


def _values_of_model(key: BaseModel) -> list[Any]:
    """Return the values of a model's fields; reject a model with values besides its fields."""
    if key.model_extra or key.__pydantic_private__:
        raise KeyEncodingError(
            f"a key of type {type(key).__qualname__} has values besides its fields",
            expected="fields only, without extra fields and private attributes",
            found=shorten(key),
            fix="declare them as fields, or return a tuple",
        )
    return [key.__dict__[name] for name in type(key).__pydantic_fields__]


@lru_cache(maxsize=1024)
def key_fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or model whose instances can be keys.

    Raises:
        KeyEncodingError: Its values are mutable, or are not equal if their fields are.
    """

    def refuse(message: str, fix: str) -> KeyEncodingError:
        return KeyEncodingError(
            f"a key of type {kind.__module__}.{kind.__qualname__} {message}",
            expected="a frozen class whose values are equal if all their fields are",
            found=place_of_class(kind),
            fix=f"{fix}; or return a tuple of the fields",
        )

    if issubclass(kind, BaseModel):
        if not kind.model_config.get("frozen"):
            raise refuse("can change", f"write class {kind.__qualname__}(BaseModel, frozen=True)")
        return tuple(kind.__pydantic_fields__)
    parameters: Any = getattr(kind, "__dataclass_params__")  # noqa: B009 - of dataclasses only
    if not parameters.frozen:
        raise refuse("can change", f"write @dataclass(frozen=True) above {kind.__qualname__}")
    fields = dataclasses.fields(kind)
    if not parameters.eq or not all(field.compare for field in fields):
        raise refuse("is not compared by all its fields", "remove eq=False and compare=False")
    return tuple(field.name for field in fields)


_ENCODERS: dict[type, Callable[[Any], str]] = {
    bool: lambda key: "b1" if key else "b0",
    float: _encode_float,
    bytes: lambda key: "x" + key.hex(),
    type(None): lambda key: "n",
    tuple: _encode_tuple,
    uuid.UUID: lambda key: f"u{key}",
    date: lambda key: f"D{key.isoformat()}",
    datetime: _encode_datetime,
    Decimal: _encode_decimal,
}


def decode_key(text: str, *, from_outside: bool = False) -> Any:
    """Return the key that :func:`encode_key` encoded.

    Args:
        text: The canonical string.
        from_outside: True if the string is untrusted, so that no module is imported for it.

    Raises:
        KeyEncodingError: ``text`` is not a canonical string, or is untrusted and names an enumeration
            that is not loaded.
        UnknownTypeNameError: It names a class that this program does not have.
    """
    kind = text[:1]
    body = text[1:]
    try:
        if kind == "t":
            return _decode_tuple(body, from_outside)
        if kind == "e":
            return _decode_enum(body, from_outside)
        if kind == "c":
            return _decode_fields(body, from_outside)
        return _DECODERS[kind](body)
    except (ValueError, KeyError, ArithmeticError, RecursionError) as error:
        raise KeyEncodingError("this is not the canonical string of a key", found=shorten(text)) from error


def _class_of_key(name: str, from_outside: bool) -> type[Any] | None:
    """Return the class of a key; for an untrusted string, None if it is not loaded."""
    if from_outside:
        return type_that_is_there(name)
    try:
        return resolve_type(name)
    except UnknownTypeNameError as error:
        raise UnknownTypeNameError(
            f"a stored key is of class {shorten(name)}, which this program does not have",
            expected="the class under the name that it had: the name is part of the key",
            found=error.found,
            fix="restore the class under that name; or import its module in the agent's module",
        ) from None


def _decode_fields(body: str, from_outside: bool) -> Any:
    """Return the dataclass or model for the string of its class, field names and values."""
    module, name, names, values = body.split(":", 3)
    type_text = unescape(f"{module}:{name}")
    cls: Any = _class_of_key(type_text, from_outside)
    fields = dict(
        zip(map(unescape, filter(None, names.split(","))), _decode_tuple(values, from_outside), strict=True)
    )
    if cls is None or kind_of(cls) not in (Kind.DATACLASS, Kind.MODEL):
        raise ValueError(body)
    if key_fields(cls) != tuple(fields):
        raise KeyEncodingError(
            f"a stored key of type {type_text} no longer fits its class",
            expected=f"the fields {', '.join(fields)}",
            found=f"the fields {', '.join(key_fields(cls))}",
            fix="restore the former fields of the class: they form the key",
            where=place_of_class(cls),
        )
    if kind_of(cls) is Kind.MODEL:
        return remake_model(cls, fields, ())
    return remake_dataclass(cls, fields)


def _decode_tuple(body: str, from_outside: bool) -> tuple[Any, ...]:
    items: list[Any] = []
    start = 0
    while start < len(body):
        colon = body.index(":", start)
        end = colon + 1 + int(body[start:colon])
        if not colon < end - 1 < len(body):
            raise ValueError(body)
        items.append(decode_key(body[colon + 1 : end], from_outside=from_outside))
        start = end
    return tuple(items)


def _decode_enum(body: str, from_outside: bool) -> Any:
    module, name, member = body.split(":", 2)
    cls = _class_of_key(unescape(f"{module}:{name}"), from_outside)
    if cls is None or not issubclass(cls, Enum):
        raise ValueError(body)
    return cls[unescape(member)]


_DECODERS: dict[str, Callable[[str], Any]] = {
    "s": unescape,
    "i": lambda body: int(body, 16 if "x" in body else 10),
    "b": lambda body: {"0": False, "1": True}[body],
    "f": float,
    "x": bytes.fromhex,
    "n": lambda body: None,
    "u": uuid.UUID,
    "D": date.fromisoformat,
    "L": datetime.fromisoformat,
    "Z": datetime.fromisoformat,
    "d": Decimal,
}


class KeyEncoder:
    """The key selector that Flink calls: the user's selector, then :func:`encode_key`.

    Args:
        selector: Returns the key of a record.
    """

    def __init__(self, selector: Callable[[Any], Any]) -> None:
        self.selector = selector

    def __call__(self, record: Any) -> str:
        """Return the canonical string of the record's key.

        Raises:
            KeyEncodingError: The selector raised, or its key has no canonical string.
        """
        context = copy_context()
        if DECIMALS in context:
            context.run(DECIMALS.set, context[DECIMALS].copy())
        try:
            return encode_key(context.run(self.selector, record))
        except KeyEncodingError as error:
            raise KeyEncodingError(
                error.message,
                expected=error.expected,
                found=f"{error.found} of record {shorten(record)}",
                fix=error.fix,
                where=place_of(self.selector),
            ) from None
        except Exception as error:
            raise KeyEncodingError(
                f"the key selector raised {type(error).__name__}: {text_of(error)}",
                expected="a key for each record of the stream",
                found=f"record {shorten(record)}",
                fix="make the selector handle every record, or filter the stream before the agent",
                where=innermost_place(error) or place_of(self.selector),
            ) from error
