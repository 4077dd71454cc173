"""Translates Python's patterns of topics into Java's, which Flink's connector takes.

The same characters mean something else in Java, or nothing: flags, ``(?P<name>...)``, ``&&`` in a set. So
Python parses the pattern, and each part is written with what means the same in both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from re import (
    _constants as codes,  # pyright: ignore[reportAttributeAccessIssue]
    _parser as parser,  # pyright: ignore[reportAttributeAccessIssue]
)
from typing import Any

from flink_agents.api.errors import KafkaStreamError

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
"""Flags that matter once a pattern is parsed, by their letters, which are the same in Java."""

_SETS = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_PLACES = {
    codes.AT_BEGINNING: "^",
    codes.AT_BEGINNING_STRING: r"\A",
    codes.AT_BOUNDARY: r"\b",
    codes.AT_NON_BOUNDARY: r"\B",
    codes.AT_END: "$",
    # Names of topics have no line breaks.
    codes.AT_END_STRING: "$",
}
_REPEATS = {codes.MAX_REPEAT: "", codes.MIN_REPEAT: "?", codes.POSSESSIVE_REPEAT: "+"}
_LOOKS = {codes.ASSERT: "=", codes.ASSERT_NOT: "!"}


def java_pattern(pattern: re.Pattern[str]) -> str:
    """Translate a pattern of topics to the syntax of ``java.util.regex``.

    Args:
        pattern: A pattern for whole names of topics.

    Raises:
        KafkaStreamError: Java has no equivalent for a part of it.
    """
    with warnings.catch_warnings():
        # Python has warned when the author compiled it.
        warnings.simplefilter("ignore")
        parsed = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    letters = _flag_letters(pattern.flags)
    return (f"(?{letters})" if letters else "") + _Translation(pattern.pattern).write_sequence(parsed)


class _Translation:
    """Writes the parsed parts of one pattern in Java's syntax.

    Args:
        pattern: Text of the pattern, for errors.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._writers: Mapping[Any, Callable[[Any, Any], str]] = {
            codes.LITERAL: lambda _, char: _escape_char(char),
            codes.NOT_LITERAL: lambda _, char: f"[^{_escape_char(char)}]",
            codes.ANY: lambda *_: ".",
            codes.IN: lambda _, items: self._write_set(items),
            codes.AT: lambda _, place: _PLACES[place],
            codes.BRANCH: lambda _, branch: f"(?:{'|'.join(map(self.write_sequence, branch[1]))})",
            codes.SUBPATTERN: lambda _, group: self._write_group(*group),
            codes.GROUPREF: lambda _, number: rf"(?:\{number})",
            codes.ATOMIC_GROUP: lambda _, inner: f"(?>{self.write_sequence(inner)})",
            **dict.fromkeys(_REPEATS, self._write_repeat),
            **dict.fromkeys((codes.ASSERT, codes.ASSERT_NOT), self._write_lookaround),
        }

    def write_sequence(self, parts: Iterable[tuple[Any, Any]]) -> str:
        """Return the Java syntax of consecutive parts.

        Args:
            parts: Code and argument of each part, from Python's parser of patterns.

        Raises:
            KafkaStreamError: Java has no equivalent for one of them.
        """
        return "".join(self._write_part(code, argument) for code, argument in parts)

    def _write_part(self, code: Any, argument: Any) -> str:
        writer = self._writers.get(code)
        if writer is None:
            raise KafkaStreamError(
                "a pattern of topics has a part that Java, which matches them, does not have",
                expected="a pattern without conditions (?(1)...)",
                found=self._pattern,
                fix="write the alternatives out: a|b; or list the topics",
            )
        return writer(code, argument)

    def _write_repeat(self, code: Any, argument: tuple[Any, Any, Any]) -> str:
        least, most, inner = argument
        limit = "" if most == codes.MAXREPEAT else most
        return f"(?:{self.write_sequence(inner)}){{{least},{limit}}}{_REPEATS[code]}"

    def _write_lookaround(self, code: Any, argument: tuple[int, Any]) -> str:
        direction, inner = argument
        return f"(?{'<' if direction < 0 else ''}{_LOOKS[code]}{self.write_sequence(inner)})"

    def _write_group(self, number: int | None, added: int, removed: int, inner: Any) -> str:
        if number is not None:
            return f"({self.write_sequence(inner)})"
        off = _flag_letters(removed)
        return f"(?{_flag_letters(added)}{'-' if off else ''}{off}:{self.write_sequence(inner)})"

    def _write_set(self, items: list[tuple[Any, Any]]) -> str:
        negated = items[0][0] is codes.NEGATE
        parts = [self._write_member(code, argument) for code, argument in items[negated:]]
        return f"[{'^' * negated}{''.join(parts)}]"

    def _write_member(self, code: Any, argument: Any) -> str:
        if code is codes.RANGE:
            return f"{_escape_char(argument[0])}-{_escape_char(argument[1])}"
        return _SETS[argument] if code is codes.CATEGORY else _escape_char(argument)


def _flag_letters(flags: int) -> str:
    return "".join(letter for flag, letter in _FLAGS.items() if flags & flag)


def _escape_char(number: int) -> str:
    """Return the Java syntax that matches exactly the character with this code point."""
    char = chr(number)
    return char if char.isalnum() or not char.isascii() else f"\\x{number:02x}"
