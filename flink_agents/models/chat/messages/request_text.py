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
    # By pydantic-ai's kind of a part. The name of the tool follows a blank at the end.
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
        earlier: A digest of messages before them; empty if there are none.
        other_parts: Further parts of the request, as JSON values by their names.
    """
    responses = (index for index, message in enumerate(messages) if message.get("kind") == "response")
    last_response = max(responses, default=-1)
    previous_messages = messages[: last_response + 1]
    parts = [part for message in messages[last_response + 1 :] for part in _labelled_parts(message)]
    if previous_messages or earlier:
        digest = _digest(earlier + _json(previous_messages))
        count_text = f"{len(previous_messages)} messages, " if previous_messages else ""
        parts.insert(0, ("earlier", count_text + digest))
    parts += [(name, _json(value)) for name, value in other_parts.items() if value not in (None, {}, [])]
    shown_parts = [(label, redaction.hide_known(text)) for label, text in parts]
    return ", ".join(f"{label}={text!r}" for label, text in _bound_parts(shown_parts))


def _labelled_parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a label and the text of each part of a message, instructions first."""
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
    """Return the labelled parts, of which the longest are cut to one length, so that all fit."""
    share = MOST_CHARACTERS
    room = MOST_CHARACTERS
    remaining_count = len(parts)
    # What short parts leave of their share is left for longer ones.
    for size in sorted(len(text) for _, text in parts):
        share = max(_SHORTEST, room // remaining_count)
        if size > share:
            break
        room -= size
        remaining_count -= 1
    return [(label, _shorten_text(text, share)) for label, text in parts]


def _shorten_text(text: str, most: int) -> str:
    """Return a text; if it is longer than ``most`` characters, its start, end, length and digest."""
    if len(text) <= most:
        return text
    tail = most // 3
    summary = f"{len(text)} characters, {_digest(text)}"
    return f"{text[: most - tail]} ... {text[-tail:]} ({summary})"


def _digest(text: str) -> str:
    """Return 8 hexadecimal digits that show a reader if two texts differ."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
