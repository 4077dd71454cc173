"""Templates. They escape everything and make invisible characters visible."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flink_agents.trace.durations import time_spent
from flink_agents.trace.rendering import (
    decision_text,
    format_duration,
    format_time,
    shorten_name,
    times_row,
    wait_text,
)
from flink_agents.ui.merging import COLUMNS, RunRow, shown_key, storable_text
from flink_agents.ui.settings import CHOSEN_JOB

PACKAGE = "flink_agents.ui"


def show_invisible(value: Any) -> Any:
    """Escape invisible characters and changes of direction in a text; other values are unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if value.isprintable():
        return value
    return "".join(
        character if character.isprintable() or character in "\n\t" else _escape_character(character)
        for character in value
    )


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def format_age(seconds: float, now: float | None = None) -> str:
    """Format the time between ``seconds``, since the epoch, and now, such as ``5 min ago``."""
    passed = (time.time() if now is None else now) - seconds
    return f"in {_format_span(-passed)}" if passed < -0.5 else f"{_format_span(passed)} ago"


def _format_span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(seconds, 0))} s"


def link_to(path: str, **values: Any) -> str:
    """Return a link to a page of the console, which keeps the chosen job. Empty parameters are omitted."""
    values.setdefault("job", CHOSEN_JOB.get())
    pairs = {
        name: storable_text(value) for name, value in values.items() if value not in (None, "", 0, False)
    }
    return path + (f"?{urlencode(pairs)}" if pairs else "")


def format_number(number: float) -> str:
    """Format a number with thousands separators."""
    return f"{number:,.0f}"


MOST_TEXT = 20_000
"""Maximum number of shown characters of a value."""


def format_json(value: Any) -> str:
    """Format a value as indented JSON, and a string as it is; cut it after :data:`MOST_TEXT` characters."""
    text = _format_value(value)
    return (
        text
        if len(text) <= MOST_TEXT
        else f"{text[:MOST_TEXT]} ... {len(text) - MOST_TEXT:,} more characters"
    )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def as_json(value: Any) -> str:
    """Return a value as ASCII JSON: a browser returns that unchanged from a form."""
    return json.dumps(value)


def time_of(seconds: float) -> str:
    """Format seconds since the epoch as UTC, or as a number if the calendar does not have that time."""
    try:
        return format_time(seconds)
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def describe_wait(wait: dict[str, Any]) -> str:
    """Describe what ends a wait; a wait of another form, from a foreign record, does not raise."""
    try:
        return wait_text(wait)
    except (ValueError, OverflowError, OSError, TypeError):
        return format_json(wait)


def times_of(row: Any, now: float) -> dict[str, str]:
    """Return the durations of a run as text by name, from its row in the index."""
    return times_row(time_spent(RunRow(*(row[name] for name in COLUMNS)), now))


def create_environment() -> Environment:
    """Return the Jinja environment of the pages, with its filters."""
    jinja_environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=show_invisible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja_environment.filters.update(
        ago=format_age,
        took=format_duration,
        when=time_of,
        number=format_number,
        pretty=format_json,
        key=shown_key,
        times=times_of,
        short=shorten_name,
        shell=lambda text: shlex.quote(str(text)),
        wait=describe_wait,
        decision=decision_text,
        tojson_text=as_json,
    )
    jinja_environment.globals.update(link=link_to)
    return jinja_environment
