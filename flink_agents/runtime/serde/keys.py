"""Canonical text of a key: equal keys give equal texts, different keys different ones.

Flink partitions and finds state by this text. The first character names the type, so that
``1``, ``"1"``, ``1.0``, ``True``, ``b"1"`` and ``("1",)`` are six keys; tuples carry the
length of each item, so that no choice of items makes two tuples alike. The text is printable
ASCII, since it passes through Java, and :func:`decode_key` gives the key back.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from flink_agents.api.errors import KeyEncodingError, UnserializableValueError
from flink_agents.api.places import place_of
from flink_agents.runtime.serde.tracebacks import innermost_place, text_of
from flink_agents.runtime.serde.typenames import resolve_type, shorten, type_name, type_that_is_there

_MANY_DIGITS = 10**640
_PLAIN = "a plain value that tells keys apart: its text is the same on each machine"
_FIX = "return a str, int, bool, float, bytes, None, UUID, date, datetime, Decimal, Enum, or a tuple of them"


def escape(text: str) -> str:
    """Return ``text`` as printable ASCII; reversed by :func:`unescape`."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    # Not JSON, which makes one character of two surrogates.
    return text.encode("unicode_escape").decode("ascii")


def unescape(text: str) -> str:
    """Return the text that :func:`escape` was given."""
    return text if "\\" not in text else text.encode("ascii").decode("unicode_escape")


def encode_key(key: Any) -> str:
    """Return the canonical text of ``key``.

    Raises:
        KeyEncodingError: The key is of a type that has none, or is not a number.
    """
    kind = type(key)
    if kind is str:
        return "s" + (key if key.isascii() and key.isprintable() and "\\" not in key else escape(key))
    if kind is int:
        # Hexadecimal where Python refuses to write so many decimal digits.
        return f"i{key}" if -_MANY_DIGITS < key < _MANY_DIGITS else f"i{key:#x}"
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(key)
    if isinstance(key, Enum):
        return _encode_enum(key)
    raise KeyEncodingError(
        f"a key of type {kind.__module__}.{kind.__qualname__} has no canonical encoding",
        expected=_PLAIN,
        found=shorten(key),
        fix=_FIX,
    )


def _not_a_number(key: object) -> KeyEncodingError:
    return KeyEncodingError(
        "a key is not a number", expected=_PLAIN, found=repr(key), fix="NaN equals nothing: drop it"
    )


def _encode_float(key: float) -> str:
    if math.isnan(key):
        raise KeyEncodingError(
            "a key is not a number", expected=_PLAIN, found=repr(key), fix="NaN equals nothing: drop it"
        )
    return f"f{key + 0.0!r}"


def _encode_decimal(key: Decimal) -> str:
    if key.is_nan():
        raise KeyEncodingError(
            "a key is not a number", expected=_PLAIN, found=repr(key), fix="NaN equals nothing: drop it"
        )
    if key.is_infinite():
        return f"d{key}"
    # Not normalize(), which rounds to the precision of the context.
    sign, digits, exponent = key.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return "d0"
    return f"d{'-' * sign}{short}E{int(exponent) + len(text) - len(short)}"


def _encode_datetime(key: datetime) -> str:
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
    items = [encode_key(item) for item in key]
    return "t" + "".join(f"{len(item)}:{item}" for item in items)


def _encode_enum(key: Enum) -> str:
    if key.name not in type(key).__members__:
        raise KeyEncodingError(
            "a key is a combination of flags", expected=_PLAIN, found=repr(key), fix="use key.value"
        )
    try:
        return f"e{escape(type_name(type(key)))}:{escape(key.name)}"
    except UnserializableValueError as error:
        raise KeyEncodingError(
            "a key is of a class that cannot be imported", expected=_PLAIN, found=repr(key), fix=_FIX
        ) from error


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
    """Return the key of which ``text`` is the canonical text.

    Args:
        text: The text.
        from_outside: Whether anybody may have written it, so that no module is imported for it.

    Raises:
        KeyEncodingError: ``text`` is no canonical text, or comes from outside and names an enumeration that
            is not there.
        UnknownTypeNameError: It names a class that this program does not have.
    """
    kind, body = text[:1], text[1:]
    try:
        if kind == "t":
            return _decode_tuple(body, from_outside)
        if kind == "e":
            return _decode_enum(body, from_outside)
        return _DECODERS[kind](body)
    except (ValueError, KeyError, ArithmeticError, RecursionError) as error:
        raise KeyEncodingError("this is no canonical text of a key", found=shorten(text)) from error


def _decode_tuple(body: str, from_outside: bool) -> tuple[Any, ...]:
    items: list[Any] = []
    at = 0
    while at < len(body):
        colon = body.index(":", at)
        end = colon + 1 + int(body[at:colon])
        if not colon < end - 1 < len(body):
            raise ValueError(body)
        items.append(decode_key(body[colon + 1 : end], from_outside=from_outside))
        at = end
    return tuple(items)


def _decode_enum(body: str, from_outside: bool) -> Any:
    module, name, member = body.split(":", 2)
    full = unescape(f"{module}:{name}")
    found = type_that_is_there(full) if from_outside else resolve_type(full)
    if found is None or not issubclass(found, Enum):
        raise ValueError(body)
    return found[unescape(member)]


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
        selector: Gives the key of a record.
    """

    def __init__(self, selector: Callable[[Any], Any]) -> None:
        self.selector = selector

    def __call__(self, record: Any) -> str:
        """Return the canonical text of the record's key.

        Raises:
            KeyEncodingError: The selector raised, or its key has no canonical text.
        """
        try:
            return encode_key(self.selector(record))
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
