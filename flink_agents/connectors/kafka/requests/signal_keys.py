"""Keys in the JSON of signals: as JSON if a reader gets the same key from it, else as their canonical text.

A UUID or a date would be read as a string, which is another key. JSON objects are no keys, so the object
``{"canonical": text}`` stands for the key of a canonical text, in topics, commands and the console.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from importlib import import_module
from typing import Any, NoReturn, cast

from pydantic import TypeAdapter

from flink_agents.api.errors import KafkaValueError, KeyEncodingError
from flink_agents.api.events.key_requests import CANONICAL
from flink_agents.connectors.json_values import read_json, write_json
from flink_agents.runtime.serde.keys import decode_key, encode_key, escape

_ANY = TypeAdapter[Any](Any)
_PLAIN = (str, int, bool, type(None))
_OF_CLASS = re.compile(r"[ce][\w.]+:[\w.\[\],\\]+:")
"""Start of the canonical text of a key whose class this program may not have."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")


def canonical_text(key: Any) -> str:
    """Return the canonical text of a signal's key: a value, or an object that names that text.

    Raises:
        KeyEncodingError: The key is of a type that no run can have.
    """
    text = _named_text(key)
    if text is None:
        return encode_key(_convert_arrays(key))
    if not _OF_CLASS.match(text) and not text.startswith("t"):
        _decode_text(text)
    return text


def key_as_json(key: Any) -> Any:
    """Return a key for the JSON of a signal: itself, or an object with its canonical text.

    Raises:
        KeyEncodingError: The key is of a type that no run can have.
    """
    text = canonical_text(key)
    if _named_text(key) is not None:
        return key
    if type(key) in _PLAIN and text.isprintable() and "\\" not in text:
        return key
    try:
        is_same = encode_key(_convert_arrays(read_json(_ANY, write_json(key)))) == text
    except Exception:  # whatever Pydantic raises for a type that it cannot write
        is_same = False
    return key if is_same else {CANONICAL: text}


def entered_key(text: str) -> Any:
    """Return the key that a person has typed: its JSON value, else the text as a string.

    Raises:
        KafkaValueError: The text is not JSON, and looks like a UUID, a date or a canonical text.
    """
    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_constant=_refuse_constant)
    canonical = _other_reading(text)
    if canonical is not None:
        raise KafkaValueError(
            "this may be a string, or a key of another type",
            expected="a key as JSON: strings in double quotes, other types by their canonical text",
            found=text[:200],
            fix=f"for the string, enter {json.dumps(text)}; else {json.dumps({CANONICAL: canonical})}",
        )
    return text


def text_to_enter(canonical: str) -> str:
    """Return the text to type for the key with a canonical text; empty if no key has that text."""
    try:
        return json.dumps(key_as_json(_decode_text(canonical)))
    except KeyEncodingError:
        return json.dumps({CANONICAL: canonical}) if _OF_CLASS.match(canonical) else ""


@dataclass(frozen=True)
class KeyReader:
    """Decodes the keys of signals.

    Attributes:
        modules: Modules that may be imported to find the class of a key: a signal can arrive before the
            agent's code.
    """

    modules: tuple[str, ...] = ()

    def read(self, key: Any) -> Any:
        """Return the key for its JSON value.

        Arrays become tuples; an object with a canonical text is decoded.

        Raises:
            KeyEncodingError: The key is of a type that no run can have, or its class is not known.
        """
        text = _named_text(key)
        if text is not None:
            return self.decode(text)
        key = _convert_arrays(key)
        encode_key(key)
        return key

    def decode(self, text: str) -> Any:
        """Return the key with a canonical text; may import one of ``modules`` for its class.

        Raises:
            KeyEncodingError: It is not a canonical text, or its class is not known.
        """
        try:
            return _decode_text(text)
        except KeyEncodingError:
            for module in self.modules:
                if f"{escape(module)}:" in text:
                    # The class is missing then, which is the error.
                    with suppress(Exception):
                        import_module(module)
        return _decode_text(text)


def _decode_text(text: str) -> Any:
    key = decode_key(text, from_outside=True)
    if encode_key(key) != text:
        raise KeyEncodingError("this is not the canonical string of a key", found=text[:200])
    return key


def _named_text(key: Any) -> str | None:
    """Return the canonical text in an object ``{"canonical": text}``; None for any other value."""
    if not isinstance(key, Mapping):
        return None
    named = cast("Mapping[Any, Any]", key)
    text = named.get(CANONICAL)
    return text if isinstance(text, str) and len(named) == 1 else None


def _other_reading(text: str) -> str | None:
    """Return the canonical text of the non-string key that a typed text may mean; None if it means none."""
    if _OF_CLASS.match(text):
        return text
    with suppress(KeyEncodingError):
        return text if isinstance(key_as_json(_decode_text(text)), dict) else None
    with suppress(ValueError):
        if _UUID.fullmatch(text):
            return encode_key(uuid.UUID(text))
        if _TIME.fullmatch(text):
            return encode_key(datetime.fromisoformat(text) if len(text) > 10 else date.fromisoformat(text))
    return None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _convert_arrays(value: Any) -> Any:
    return (
        tuple(map(_convert_arrays, cast("Iterable[Any]", value)))
        if isinstance(value, list | tuple)
        else value
    )
