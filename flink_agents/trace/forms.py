"""Checks the types of fields and attributes of records: a line of a trace can have any origin."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since the epoch."""

MOST_SECONDS = 1e15

_CONTEXT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-")
"""The start of a W3C Trace Context."""


def is_text(value: Any) -> bool:
    """Return True for a string, the only form of names, keys and ids in records."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return True for a finite number below :data:`MOST_SECONDS`, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_SECONDS


def is_count(value: Any) -> bool:
    """Return True for an integer of 0 or more that fits into 64 bits, as databases and exporters need it.

    Numbers of runs are large: with ``state.idle-key-ttl``, they begin at about 2**50.
    """
    return type(value) is int and 0 <= value < 2**63


def is_time(value: Any) -> bool:
    """Return True for seconds since the epoch that the calendar has."""
    return is_number(value) and 0 <= value <= LAST_SECOND


def _is_wait(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    wait = cast("Mapping[str, Any]", value)
    deadline = wait.get("deadline")
    return (
        (wait.get("name") is None or is_text(wait["name"]))
        and (deadline is None or (is_number(deadline) and is_time(deadline / 1000)))
        and all(is_text(wait[field]) for field in ("id", "kind") if field in wait)
    )


def _is_error(value: Any) -> bool:
    if isinstance(value, Mapping):
        error = cast("Mapping[str, Any]", value)
        return is_text(error.get("error")) and all(is_text(part) for part in error.values())
    return is_text(value)


def _is_numbered(value: Any) -> bool:
    """Return True for a mapping from names to numbers, such as calls to their attempts."""
    if not isinstance(value, Mapping):
        return False
    named = cast("Mapping[Any, Any]", value)
    return all(is_text(name) for name in named) and all(map(is_number, named.values()))


def error_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error in the attributes of a record; empty if there is none."""
    error = attributes.get("error")
    if isinstance(error, str):
        return attributes
    return error if isinstance(error, Mapping) else {}


FORMS: dict[str, Callable[[Any], bool]] = {
    "error": _is_error,
    "message": is_text,
    "where": is_text,
    "for": is_text,
    "since": is_time,
    "waits": lambda value: isinstance(value, list),
    "calls": lambda value: is_number(value) or _is_numbered(value),
    "phases": _is_numbered,
    "sent": _is_numbered,
    "memory": _is_numbered,
    "replayed": is_number,
    "attempt": is_number,
    "retries": is_number,
    "model": is_text,
    "provider": is_text,
    "operation": is_text,
    "target": is_text,
    "finish_reason": is_text,
    "input_tokens": is_number,
    "output_tokens": is_number,
    "cache_read_tokens": is_number,
    "cache_write_tokens": is_number,
    "cost": is_number,
    "action": is_text,
    "parent": is_text,
    "traceparent": lambda value: is_text(value) and _CONTEXT.match(value) is not None,
}
"""The forms of known attributes. Others can have any form: they are only shown."""


def well_formed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes without those whose values have an unexpected form."""
    valid_attributes: dict[str, Any] = {}
    for name, value in attributes.items():
        form = FORMS.get(name)
        if form is None or form(value):
            valid_attributes[name] = value
    if "waits" in valid_attributes:
        valid_attributes["waits"] = [wait for wait in valid_attributes["waits"] if _is_wait(wait)]
    return valid_attributes


def check_fields(values: Mapping[str, Any]) -> None:
    """Check the types of the fields of a record.

    Raises:
        TypeError: A field has another type.
        KeyError: A field is missing.
    """
    for name in ("kind", "name", "outcome", "job", "agent", "key", "run_id", "span_id"):
        if not is_text(values[name]):
            raise TypeError(f"the field {name} is not a string")
    if not is_number(values["time"]):
        raise TypeError("the field time is not a number")
    for name in ("sequence_number", "subtask", "attempt"):
        if not is_count(values[name]):
            raise TypeError(f"the field {name} is not a number from 0")
    for name in ("parent_id", "trace"):
        if not (values.get(name) is None or is_text(values[name])):
            raise TypeError(f"the field {name} is not a string")
    if not (values.get("seconds") is None or is_number(values["seconds"])):
        raise TypeError("the field seconds is not a number")
    if not isinstance(values.get("attributes"), Mapping):
        raise TypeError("the field attributes is not an object")
