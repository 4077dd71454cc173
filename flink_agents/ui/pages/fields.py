"""Fields of a form for the arguments of a request, by the types of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from flink_agents.api.errors.console import RejectedAnswerError
from flink_agents.ui.outside import json_of
from flink_agents.ui.rendering import as_json

LONG = 80
"""Number of characters from which a text has several lines."""

_DECIMAL = re.compile(r"-?\d+\.\d+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")


@dataclass(frozen=True)
class Field:
    """A field of the form that answers a request.

    Attributes:
        name: Name of the argument.
        kind: ``number``, ``bool``, ``decimal``, ``date``, ``time``, ``text``, ``optional`` or ``json``.
        text: The text that the field shows.
        previous_value: The value of the request, as JSON.
        problem: Why the text is no value of that kind; empty if it is one.
    """

    name: str
    kind: str
    text: str
    previous_value: str
    problem: str = ""

    @property
    def is_long(self) -> bool:
        """True if it needs several lines."""
        return self.kind in ("text", "json") and (len(self.text) > LONG or "\n" in self.text)


def kind_of(value: Any) -> str:
    """Return the kind of the field for a value; see :class:`Field`."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "optional"
    if not isinstance(value, str):
        return "json"
    for kind, pattern in (("decimal", _DECIMAL), ("date", _DATE), ("time", _TIME)):
        if pattern.fullmatch(value):
            return kind
    # Of a text with invisible characters, a form shows and returns the escapes.
    return "text" if all(character.isprintable() or character in "\n\t" for character in value) else "json"


def text_of(value: Any) -> str:
    """Return a value as its field shows it: a text as it is, another value as JSON."""
    kind = kind_of(value)
    if kind in ("text", "decimal", "date", "time"):
        return value
    return "" if value is None else as_json(value)


def fields_of(arguments: Mapping[str, Any]) -> list[Field]:
    """Return a field for each argument of a request."""
    return [Field(name, kind_of(value), text_of(value), as_json(value)) for name, value in arguments.items()]


def parse_field(name: str, text: str, previous_value: Any) -> Any:
    """Return the value that a person entered in a field.

    Args:
        name: Name of the argument.
        text: What the field contains.
        previous_value: The value of the request, which decides the kind of the field.

    Raises:
        RejectedAnswerError: The text is no value of that kind.
    """
    text = text.replace("\r\n", "\n")
    if text == text_of(previous_value):
        return previous_value
    kind = kind_of(previous_value)
    if kind == "text":
        return text
    text = text.strip()
    if kind == "optional":
        return _of_optional(text)
    if kind in ("decimal", "date", "time"):
        return _format_like(name, text, kind)
    return _parse_json(name, text, previous_value, kind)


def _of_optional(text: str) -> Any:
    """Return the value that was entered for an argument of None: JSON, or the text itself."""
    try:
        return json_of(text, "") if text else None
    except RejectedAnswerError:
        return text


_EXAMPLES = {
    "decimal": "a number, such as 12.50",
    "date": "a date, such as 2026-05-31",
    "time": "a time, such as 2026-05-31T12:00:00+00:00",
}


def _format_like(name: str, text: str, kind: str) -> str:
    """Return the text of a decimal, date or time, which JSON has as strings.

    Raises:
        RejectedAnswerError: The text is none.
    """
    try:
        if kind == "decimal" and not _NUMBER.fullmatch(text):
            raise ValueError(text)
        if kind == "date":
            date.fromisoformat(text)
        if kind == "time":
            datetime.fromisoformat(text)
    except ValueError:
        raise _invalid_field_error(name, _EXAMPLES[kind], text) from None
    return text


def _parse_json(name: str, text: str, previous_value: Any, kind: str) -> Any:
    if kind == "bool":
        if text not in ("true", "false"):
            raise _invalid_field_error(name, "true or false", text)
        return text == "true"
    what = "a number, such as 80"
    if kind == "json":
        what = {dict: "a JSON object", list: "a JSON list"}.get(type(previous_value), "JSON text in quotes")
    try:
        value = json_of(text, f"the argument {name}")
    except RejectedAnswerError as error:
        raise _invalid_field_error(name, what, text, f": {error.message}" if kind == "json" else "") from None
    fits = isinstance(value, int | float) if kind == "number" else isinstance(value, type(previous_value))
    if not fits or (kind == "number" and isinstance(value, bool)):
        raise _invalid_field_error(name, what, text)
    return value


def _invalid_field_error(name: str, what: str, text: str, why: str = "") -> RejectedAnswerError:
    return RejectedAnswerError(
        f"{name} takes {what}{why}",
        expected=what,
        found=text[:100],
        fix="correct the field",
    )
