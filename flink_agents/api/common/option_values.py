"""An option, and the forms of its value: in code, YAML, the environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from flink_agents.api.common.durations import duration_text
from flink_agents.api.errors import OptionError
from flink_agents.api.errors.base import suggest

T = TypeVar("T")

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)\s*\Z")
_EXAMPLES: dict[type[Any], str] = {timedelta: "5 min", int: "100", bool: "true"}
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

NAME_RULE = "more than dots, slashes and blanks"
"""The rule of :func:`is_name` in words, for errors."""


def is_name(text: object) -> bool:
    """Return True if ``text`` is a string that can name a job.

    Dots, slashes and blanks alone cannot: they would be a folder that exists, or nothing that you can see.
    """
    return isinstance(text, str) and any(
        char not in "./\\" and char.isprintable() and not char.isspace() for char in text
    )


@dataclass(frozen=True)
class ConfigOption(Generic[T]):
    """The declaration of one option of a job, a store or a sink.

    Attributes:
        key: Its name, with dots between groups and dashes inside words: ``run.max-in-flight``.
        type: The Python type of its value.
        default: Its value if it is not set.
        doc: Its meaning, with unit, for the documentation and errors.
        minimum: The lowest valid value; None for no limit.
        is_name: True if the value has to be a name in the sense of :func:`is_name`.

    An option of the type ``dict`` has entries, whose keys start with the option's key and a dot.
    """

    key: str
    type: type[T]
    default: T | None
    doc: str
    minimum: T | None = None
    is_name: bool = False

    def parse(self, value: object) -> T:
        """Return ``value`` converted to this option's type.

        Args:
            value: The value itself, or its text in YAML or the environment.

        Raises:
            OptionError: The value has another type, is below the minimum, or is no name.
        """
        try:
            parsed = _convert_value(self.type, value)
            if self.minimum is not None and parsed < self.minimum:
                raise ValueError(value)
            if self.is_name and not is_name(parsed):
                raise ValueError(value)
            return cast(T, parsed)
        except (ValueError, TypeError, OverflowError) as error:
            least = "" if self.minimum is None else f", at least {write_value(self.minimum)}"
            raise OptionError(
                f"invalid value of option {self.key!r}",
                expected=describe_type(self.type) + (f", {NAME_RULE}" if self.is_name else least),
                found=repr(value),
                fix=self._example_fix(value),
            ) from error

    def written(self, value: object, text: str | None) -> object:
        """Return a value of a YAML file: its text, unless this option takes a bool or values of any type.

        YAML reads ``off``, ``010`` or ``null`` as another type.

        Args:
            value: The value that YAML read.
            text: The text of that value in the file; None if it is a list or a mapping.
        """
        return value if text is None or self.type in (bool, object, dict) else text

    def _example_fix(self, value: object) -> str:
        """Return a fix for an invalid ``value``: an example, and the option's meaning."""
        if issubclass(self.type, Enum):
            near = suggest(str(value), [str(member.value) for member in self.type], "", cutoff=0.75)
            if near:
                return near
        shown = _EXAMPLES.get(self.type, "") if self.default is None else write_value(self.default)
        return f"write a value such as {shown!r}, or omit the option: {self.doc}" if shown else self.doc


def option(
    key: str,
    kind: type[T],
    default: T | str | None = None,
    *,
    minimum: T | str | None = None,
    is_name: bool = False,
) -> Callable[[str], ConfigOption[T]]:
    """Return a function that makes an option from its meaning.

    For example ``PAUSE = option("a.pause", timedelta, "5 s")("Pause between two requests.")``.

    Args:
        key: The option's key.
        kind: The type of its value.
        default: Its default; also as text, as users write it.
        minimum: Its lowest valid value, in the same forms; None for no limit.
        is_name: True if its value has to be a name in the sense of :func:`is_name`.
    """

    def convert(value: T | str | None) -> Any:
        return None if value is None else _convert_value(kind, value)

    def declare(doc: str) -> ConfigOption[T]:
        return ConfigOption(key, kind, convert(default), doc, convert(minimum), is_name)

    return declare


def describe_type(kind: type[Any]) -> str:
    """Return the form of an option's value of type ``kind`` in words, for errors and documentation."""
    if kind is timedelta:
        return "a duration such as '200 ms', '5 s', '2 min', '1 h' or '7 d'"
    if issubclass(kind, Enum):
        return "one of " + ", ".join(repr(str(member.value)) for member in kind)
    names: dict[type[Any], str] = {
        bool: "true or false",
        dict: "entries",
        int: "an integer",
        str: "a string",
    }
    return names.get(kind, kind.__name__)


def write_value(value: object) -> str:
    """Return the text of an option's value, as users write it in YAML or the environment."""
    if isinstance(value, timedelta):
        is_below_second = timedelta() < value < timedelta(seconds=1)
        milliseconds = value / timedelta(milliseconds=1)
        return f"{milliseconds:g} ms" if is_below_second else duration_text(value.total_seconds())
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _convert_value(kind: type, value: object) -> Any:
    """Return a value, or its text, as type ``kind``; TypeError or ValueError if it has another form."""
    if kind is bool:
        return _convert_bool(value)
    if kind is timedelta:
        return _convert_duration(value)
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError(value)
        return int(value)
    if issubclass(kind, Enum):
        return kind(value)
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _convert_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(value)


def _convert_duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(value)
    return timedelta(seconds=float(match.group(1)) * _UNITS[match.group(2)])
