"""Reads prompts from files: a text or Markdown file is one message, a YAML file has messages with roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

from flink_agents.api.errors import AgentDefinitionError

_TEXTS = frozenset({".txt", ".md", ".markdown", ".prompt"})
_YAML = frozenset({".yaml", ".yml"})
ROLES = ("system", "user", "assistant")
"""Roles of messages to a chat model."""

Messages = list[tuple[str, str]]
"""Role and text of each message."""


def read_prompt_file(path: str | Path, role: str, where: str | None = None) -> Messages:
    """Return the messages in a file.

    Args:
        path: The file.
        role: The role of a text file's message.
        where: The author's place in the code, for errors.

    Raises:
        AgentDefinitionError: The file cannot be read, or is not a prompt.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in _TEXTS | _YAML:
        raise _wrong(file, f"a file with the ending {kind or '(none)'}", where)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, f"{type(error).__name__}: {error}", where) from None
    # The last line break belongs to the file, not to its message.
    return [(role, text.removesuffix("\n"))] if kind in _TEXTS else _of_yaml(file, text, where)


def _of_yaml(file: Path, text: str, where: str | None) -> Messages:
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _wrong(file, str(error), where) from None
    if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"messages"}:
        value = cast("dict[str, Any]", value)["messages"]
    if not isinstance(value, list) or not value:
        raise _wrong(file, f"not a list of messages, but {type(cast(object, value)).__name__}", where)
    found: Messages = []
    for number, one in enumerate(cast("list[Any]", value), 1):
        said = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        role, content = said.get("role"), said.get("content")
        if set(said) != {"role", "content"} or role not in ROLES or not isinstance(content, str):
            raise _wrong(file, f"message {number}: {one!r}"[:300], where)
        found.append((str(role), content))
    return found


def _wrong(file: Path, found: str, where: str | None) -> AgentDefinitionError:
    return AgentDefinitionError(
        f"the file {file} is not a prompt",
        expected="a text (.txt, .md), or a YAML file with messages, each with a role "
        f"({', '.join(ROLES)}) and content",
        found=found,
        fix="correct the file or its path, which is relative to the working directory",
        where=where,
    )
