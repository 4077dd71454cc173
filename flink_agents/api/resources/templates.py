"""Templates of prompts: texts with variables in braces, as in ``str.format``."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from typing import Any

from flink_agents.api.errors import AgentDefinitionError

_FIELD = re.compile(r"(?P<name>[^\W\d][^.\[\]{}]*)(?:\.[^.\[\]{}]+|\[[^\[\]{}]+\])*")


def template_variables(text: str, what: str = "a prompt", where: str | None = None) -> set[str]:
    """Return the names of the variables in a template.

    Args:
        text: The template.
        what: The owner of the template, for the error.
        where: Its place in the code, if known.

    Raises:
        AgentDefinitionError: The template cannot be filled in with any values.
    """
    names: set[str] = set()
    try:
        for field in _fields(text):
            match = _FIELD.fullmatch(field)
            if match is None:
                raise ValueError(f"the variable {{{field}}}")
            names.add(match["name"])
    except ValueError as error:
        raise AgentDefinitionError(
            f"{what} has a template that cannot be filled in",
            expected="variables such as {order}, {order.total}, {tags[0]} or {total:>10}, "
            "and {{ and }} for braces",
            found=f"{error} in {text!r}",
            fix="name the variable, or double the braces",
            where=where,
        ) from None
    return names


def _fields(text: str, depth: int = 2) -> Iterator[str]:
    """Yield the fields in braces, also those inside a format such as ``{total:>{width}}``."""
    for _, field, spec, conversion in string.Formatter().parse(text):
        if field is None:
            continue
        if depth == 0:
            raise ValueError("braces in the format of a format")
        if conversion not in (None, "a", "r", "s"):
            raise ValueError(f"the conversion !{conversion}")
        yield field
        yield from _fields(spec or "", depth - 1)


def fill_template(text: str, variables: Mapping[str, Any], what: str) -> str:
    """Return a template with values in place of its variables.

    Raises:
        AgentDefinitionError: The values lack attributes or entries that the template uses.
    """
    try:
        return text.format(**variables)
    except Exception as error:  # an attribute or a __format__ of a value can raise anything
        raise AgentDefinitionError(
            f"{what} cannot be filled in with these values",
            expected="values with the attributes, entries and formats that the template uses",
            found=f"{type(error).__name__}: {error} in {text!r}",
            fix="pass other values, or change the template",
        ) from error
