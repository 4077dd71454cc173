"""Templates of prompts, with variables in braces as in ``str.format``, and prompts in files.

In a file, text or Markdown is one message; YAML has messages with roles.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from flink_agents.api.common.places import short_path
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.settings.yaml_source import RepeatedKey, YamlProblem, YamlSource

_FIELD = re.compile(r"(?P<name>[^\W\d][^.\[\]{}]*)(?:\.[^.\[\]{}]+|\[[^\[\]{}]+\])*")
"""A variable, perhaps with attributes and entries: ``order.tags[0]``."""


def template_variables(text: str, what: str = "a prompt", where: str | None = None) -> set[str]:
    """Return the names of the variables in a template.

    Args:
        text: The template, with variables in braces.
        what: The owner of the template in words, for the error.
        where: Its place in the author's code, for the error; None if unknown.

    Raises:
        AgentDefinitionError: The template is malformed, so no values can fill it in.
    """
    names: set[str] = set()
    try:
        for field in _template_fields(text):
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


def _template_fields(text: str, depth: int = 2) -> Iterator[str]:
    """Yield the fields in braces, also those inside a format such as ``{total:>{width}}``.

    Args:
        text: The template, or the format of a field.
        depth: Number of levels of braces that may follow, as in ``str.format``.

    Raises:
        ValueError: The braces do not match, are too deep, or a conversion is unknown.
    """
    for _, field, spec, conversion in string.Formatter().parse(text):
        if field is None:
            continue
        if depth == 0:
            raise ValueError("braces in the format of a format")
        if conversion not in (None, "a", "r", "s"):
            raise ValueError(f"the conversion !{conversion}")
        yield field
        yield from _template_fields(spec or "", depth - 1)


def fill_template(text: str, variables: Mapping[str, Any], what: str) -> str:
    """Return a template with values in place of its variables.

    Args:
        text: The template.
        variables: A value for each variable, by name.
        what: The owner of the template in words, for the error.

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


_TEXT_ENDINGS = frozenset({".txt", ".md", ".markdown", ".prompt"})
_YAML_ENDINGS = frozenset({".yaml", ".yml"})
ROLES = ("system", "user", "assistant")
"""Roles of messages to a chat model."""

Messages = list[tuple[str, str]]
"""Role and text of each message."""


def read_prompt_file(path: str | Path, role: str, where: str | None = None) -> Messages:
    """Return the messages in a text file, which is one message, or in a YAML file.

    Args:
        path: The file, relative to the working directory. Its ending decides its form.
        role: The role of a text file's message.
        where: The place in the author's code, for errors; None if unknown.

    Raises:
        AgentDefinitionError: The file cannot be read, or is not a prompt.
    """
    file = Path(path)
    ending = file.suffix.lower()
    if ending not in _TEXT_ENDINGS | _YAML_ENDINGS:
        raise _template_error(file, f"a file with the ending {ending or '(none)'}", where)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _template_error(file, f"{type(error).__name__}: {error}", where) from None
    # The last line break belongs to the file, not to its message.
    return [(role, text.removesuffix("\n"))] if ending in _TEXT_ENDINGS else _read_yaml(file, text, where)


def _read_yaml(file: Path, text: str, where: str | None) -> Messages:
    """Return the messages in a YAML text: a list of them, or a mapping with the only key ``messages``."""
    try:
        value: Any = YamlSource(text).value
    except RepeatedKey as error:
        raise _template_error(file, error.message, f"{short_path(str(file))}:{error.line}") from None
    except YamlProblem as error:
        raise _template_error(file, str(error.__cause__ or error), where) from None
    if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"messages"}:
        value = cast("dict[str, Any]", value)["messages"]
    if not isinstance(value, list) or not value:
        raise _template_error(
            file, f"not a list of messages, but {type(cast(object, value)).__name__}", where
        )
    messages: Messages = []
    for number, message in enumerate(cast("list[Any]", value), 1):
        fields = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        role = fields.get("role")
        content = fields.get("content")
        if set(fields) != {"role", "content"} or role not in ROLES or not isinstance(content, str):
            raise _template_error(file, f"message {number}: {message!r}"[:300], where)
        messages.append((str(role), content))
    return messages


def _template_error(file: Path, found: str, where: str | None) -> AgentDefinitionError:
    return AgentDefinitionError(
        f"the file {file} is not a prompt",
        expected="a text (.txt, .md), or a YAML file with messages, each with a role "
        f"({', '.join(ROLES)}) and content",
        found=found,
        fix="correct the file or its path, which is relative to the working directory",
        where=where,
    )
