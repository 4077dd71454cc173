"""The base of all errors: its message, and its pickling. The tree is in ``errors``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

E = TypeVar("E", bound="AgentsError")

DOCS_URL = "https://flink-agents-python.readthedocs.io/latest/"
"""The site of ``docs/``; it exists once the package is published."""

_SHOWN_ATTEMPTS = 5
"""Number of attempts that a message lists from the start, and from the end."""


def error_url(code: str) -> str:
    """Return the URL of the documentation of an error by its code, such as ``FA1001``."""
    return f"{DOCS_URL}errors.html#{code.lower()}"


def code_line(code: str) -> str:
    """Return the last line of an error: its code, and where its entry is, offline first."""
    return f"  [{code}] flink-agents explain {code}, or {error_url(code)}"


def suggest(name: str, names: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return the fix for an unknown name: a question with the most similar name, if there is one.

    Args:
        name: The unknown name.
        names: The valid names.
        otherwise: The fix if no name is similar enough.
        cutoff: Minimum similarity, from 0 to 1, as in ``difflib.get_close_matches``.
    """
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


class AgentsError(Exception):
    """Base of all errors of this package.

    Args:
        message: The problem, in one sentence.
        expected: The value or state that would be valid; None omits the line, here and below.
        found: The value or state that was found.
        fix: What you can do about it.
        where: The place in the author's code, ``file:line in name``, which begins the first line.
    """

    code: ClassVar[str] = "FA0000"

    def __init__(
        self,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        fix: str | None = None,
        where: str | None = None,
    ) -> None:
        self.message = message
        self.expected = expected
        self.found = found
        self.fix = fix
        self.where = where
        super().__init__(self._render_text())

    def _render_text(self) -> str:
        lines = [f"{self.where}: {self.message}" if self.where else self.message, *self._detail_lines()]
        for label, text in (("expected", self.expected), ("found", self.found), ("fix", self.fix)):
            if text:
                lines.append(f"  {label}: {text}")
        lines += map(code_line, self._help_codes())
        return "\n".join(lines)

    def _detail_lines(self) -> list[str]:
        """Return the lines of a subclass between the message and the expected value."""
        return []

    def _help_codes(self) -> list[str]:
        """Return the codes of entries with more information; the error's own code is the last one."""
        return [self.code]

    def at(self, where: str | None) -> Self:
        """Return a copy of the error with another place; None leaves the place as it is.

        Args:
            where: The author's line with the problem, ``file:line in name``.
        """
        return _rebuild_error(type(self), {**self.__dict__, "where": where or self.where})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_error, (type(self), self.__dict__.copy()))


def _rebuild_error(cls: type[E], attributes: dict[str, Any]) -> E:
    """Return an error with these attributes, without a call of its constructor, which may need others."""
    error = cls.__new__(cls)
    error.__dict__.update(attributes)
    Exception.__init__(error, error._render_text())  # pyright: ignore[reportPrivateUsage]
    return error


def attempt_lines(attempts: Sequence[object]) -> list[str]:
    """Return one line of text for each attempt; of more than ten, only for the first and last five."""
    lines = [" ".join(str(attempt).split()) for attempt in attempts]
    if len(lines) > 2 * _SHOWN_ATTEMPTS:
        left_out = f"... {len(lines) - 2 * _SHOWN_ATTEMPTS} more attempts ..."
        lines = [*lines[:_SHOWN_ATTEMPTS], left_out, *lines[-_SHOWN_ATTEMPTS:]]
    return lines
