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
    """Return the canonical text of a signal's key.

    Raises:
        KeyEncodingError: No run has such a key.
    """
    text = _named_text(key)
    if text is None:
        return encode_key(_convert_arrays(key))
    if not _OF_CLASS.match(text) and not text.startswith("t"):
        _decode_text(text)
    return text


def key_as_json(key: Any) -> Any:
    """Return a signal's key as its JSON has it.

    Raises:
        KeyEncodingError: No run has such a key.
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
    """Return the key that a person has entered: its JSON value, or the text itself.

    Raises:
        KafkaValueError: The text is that of a key of another type, so that it may not mean a string.
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
    """Return the text to enter for the key of a canonical text; empty if that text is of no key."""
    try:
        return json.dumps(key_as_json(_decode_text(canonical)))
    except KeyEncodingError:
        return json.dumps({CANONICAL: canonical}) if _OF_CLASS.match(canonical) else ""


@dataclass(frozen=True)
class KeyReader:
    """Reads the keys of signals.

    Attributes:
        modules: Modules that may be imported to find the class of a key. A signal can arrive before the
            agent's code, which would import them.
    """

    modules: tuple[str, ...] = ()

    def read(self, key: Any) -> Any:
        """Return the key of a signal's JSON. An array becomes a tuple.

        Raises:
            KeyEncodingError: No run has the key, or its class is not known.
        """
        text = _named_text(key)
        if text is not None:
            return self.decode(text)
        key = _convert_arrays(key)
        encode_key(key)
        return key

    def decode(self, text: str) -> Any:
        """Return the key of a canonical text.

        Raises:
            KeyEncodingError: It is not a canonical text, or names a class that is not known.
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
    """Return the canonical text that an object names; None if it names none."""
    if not isinstance(key, Mapping):
        return None
    named = cast("Mapping[Any, Any]", key)
    text = named.get(CANONICAL)
    return text if isinstance(text, str) and len(named) == 1 else None


def _other_reading(text: str) -> str | None:
    """Return the canonical text of the key that a text may mean instead of a string; None for no other."""
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
