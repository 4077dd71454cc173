"""The text of a request to a model, as its record shows it: what a replay compares if requests differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flink_agents import redaction

MOST_CHARACTERS = 8000
"""Maximum number of characters of the text."""

_SHORTEST = 80
"""Number of characters that each part has at least, unless it is shorter."""

_LABELS = {
    "system-prompt": "system",
    "user-prompt": "user",
    "text": "assistant",
    "tool-return": "result of ",
    "tool-call": "call of ",
    "retry-prompt": "correction",
}


def request_text(messages: Sequence[Mapping[str, Any]], earlier: str = "", **other_parts: Any) -> str:
    """Return the text of a request: its messages since the last response, and its other parts.

    Args:
        messages: Messages of the request, as JSON values.
        earlier: Stands for messages before them.
        other_parts: Further parts of the request, as JSON values by their names.
    """
    last = max(
        (place for place, message in enumerate(messages) if message.get("kind") == "response"), default=-1
    )
    previous_messages = messages[: last + 1]
    new = messages[last + 1 :]
    parts = [part for message in new for part in _parts(message)]
    if previous_messages or earlier:
        digest = _digest(earlier + _json(previous_messages))
        parts.insert(
            0, ("earlier", f"{len(previous_messages)} messages, {digest}" if previous_messages else digest)
        )
    parts += [(name, _json(value)) for name, value in other_parts.items() if value not in (None, {}, [])]
    shown = [(name, redaction.hide_known(text)) for name, text in parts]
    return ", ".join(f"{name}={text!r}" for name, text in _bound_parts(shown))


def _parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if message.get("instructions"):
        yield "instructions", str(message["instructions"])
    for part in message.get("parts", ()):
        kind = str(part.get("part_kind"))
        label = _LABELS.get(kind, kind)
        if label.endswith(" "):
            label += str(part.get("tool_name"))
        content = part.get("content", part.get("args"))
        yield label, content if isinstance(content, str) else _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _bound_parts(parts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Shorten the longest parts, so that all fit."""
    share = MOST_CHARACTERS
    room = MOST_CHARACTERS
    remaining_count = len(parts)
    for size in sorted(len(text) for _, text in parts):
        share = max(_SHORTEST, room // remaining_count)
        if size > share:
            break
        room = room - size
        remaining_count = remaining_count - 1
    return [(name, _shorten_text(text, share)) for name, text in parts]


def _shorten_text(text: str, most: int) -> str:
    """Return start and end of a text; its length and digest show that the rest differs."""
    if len(text) <= most:
        return text
    tail = most // 3
    summary = f"{len(text)} characters, {_digest(text)}"
    return f"{text[: most - tail]} ... {text[-tail:]} ({summary})"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
