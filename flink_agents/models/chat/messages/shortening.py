"""Cuts messages that are too large for a history, so that one of them does not displace all earlier ones.

It works on messages as JSON, by their sizes alone, so that a replay returns the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

_LEAST = 100
"""Parts with fewer bytes are not cut."""

_BYTES_OF_TOKEN = 4
"""Estimate of the bytes of a token."""

_PART_TEXTS = ("tool_name", "args", "content")
"""Fields of a message's part that a model reads."""

Message = dict[str, Any]
"""A message of pydantic-ai as JSON values."""


def bytes_of(value: Any) -> int:
    """Return the size of a value in bytes of JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def begins_turn(message: Mapping[str, Any]) -> bool:
    """Return True if the message starts a user's turn: it has user content and no tool results."""
    kinds = {part["part_kind"] for part in message["parts"]}
    return (
        message["kind"] == "request"
        and "user-prompt" in kinds
        and not kinds & {"tool-return", "retry-prompt"}
    )


def texts_of(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a part for the model, with a label in place of each file."""
    for name in _PART_TEXTS:
        value = part.get(name)
        if value is not None:
            yield _value_text(_without_files(value))


def tokens_of(message: Mapping[str, Any]) -> int:
    """Return an estimate of the tokens of a message: a quarter of the bytes of its texts, rounded up."""
    size = sum(
        len(_value_text(part.get(name)).encode("utf-8", "surrogatepass"))
        for part in message["parts"]
        for name in _PART_TEXTS
    )
    return -(-size // _BYTES_OF_TOKEN)


def _value_text(value: Any) -> str:
    """Return a string as it is, None as an empty string, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def shorten_messages(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool], room: int
) -> list[Message]:
    """Return messages with large parts cut, so that the latest turn leaves room for earlier ones.

    Args:
        messages: The messages, the oldest first.
        fits: Returns True if a turn is small enough.
        room: Maximum size of all messages in bytes of JSON. No part of a message gets more than a quarter.
    """
    most_of_part = room // 4
    cut_messages = [_cut_message(message, most_of_part) for message in messages]
    while not fits(latest_turn(cut_messages)) and most_of_part > _LEAST:
        most_of_part //= 2
        begin = len(cut_messages) - len(latest_turn(cut_messages))
        cut_messages[begin:] = [_cut_message(message, most_of_part) for message in cut_messages[begin:]]
    return cut_messages


def latest_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages from the start of the user's latest turn on; all of them if no turn starts."""
    for index in range(len(messages) - 1, -1, -1):
        if begins_turn(messages[index]):
            return messages[index:]
    return messages


def question_and_answer(turn: Sequence[Message]) -> list[Message]:
    """Return a turn without the tool calls and results between its question and its answer."""
    answer = turn[-1]
    if len(turn) < 3 or answer["kind"] != "response":
        return list(turn)
    parts = [part for part in answer["parts"] if part["part_kind"] != "tool-call"]
    return [turn[0], *([{**answer, "parts": parts}] if parts else [])]


def _cut_message(message: Message, most: int) -> Message:
    """Return a message with each part cut to about ``most`` bytes."""
    parts = [_cut_part(part, most) for part in message["parts"]]
    return {**message, "parts": parts}


def _cut_part(part: Message, most: int) -> Message:
    """Return a part, cut to about ``most`` bytes."""
    if bytes_of(part) <= most:
        return part
    kind = part["part_kind"]
    if kind == "file":
        return {"part_kind": "text", "content": _file_label(part["content"])}
    if kind == "user-prompt" and isinstance(part["content"], list):
        return {**part, "content": _cut_contents(part["content"], most)}
    if kind == "tool-call":
        return {**part, "args": {"cut": _cut_text(_value_text(part["args"]), most)}}
    if part.get("content") is None or kind == "thinking":
        # A thought has a signature, without which it is invalid.
        return part
    shortened_part = {**part, "content": _cut_text(_value_text(_without_files(part["content"])), most)}
    if "content_file_digests" in shortened_part:
        shortened_part["content_file_digests"] = []
    return shortened_part


def _cut_contents(contents: list[Any], most: int) -> list[Any]:
    """Return the contents of a user message, each cut to its share of ``most`` bytes.

    Texts are cut, and large files are replaced by labels.
    """
    share = max(most // len(contents), _LEAST)
    cut_contents: list[Any] = []
    for content in contents:
        if bytes_of(content) <= share:
            cut_contents.append(content)
        elif isinstance(content, str):
            cut_contents.append(_cut_text(content, share))
        elif _is_file(content):
            cut_contents.append(_file_label(content))
        else:
            cut_contents.append(_cut_text(str(content.get("content", "")), share))
    return cut_contents


_NOTE_BYTES = 60
"""Room for the note at the end of a text that was cut."""


def _cut_text(text: str, most: int) -> str:
    """Return a text, cut to about ``most`` bytes, with a note of the length that is missing."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= most:
        return text
    prefix = encoded[: max(most - _NOTE_BYTES, 0)].decode("utf-8", "ignore")
    return f"{prefix} [{len(text) - len(prefix)} characters are left out of the history]"


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") in ("binary", "uploaded-file") or _is_url(value)


def _is_url(value: Any) -> bool:
    return isinstance(value, dict) and str(cast("dict[str, Any]", value).get("kind", "")).endswith("-url")


def _file_label(value: Mapping[str, Any]) -> str:
    """Return the text that replaces a file; three bytes of it are four characters of base64."""
    size = len(value.get("data") or "") * 3 // 4
    return f"[{value.get('media_type') or 'a file'}, {size} bytes, left out of the history]"


def _without_files(value: Any) -> Any:
    """Return a content with a label in place of each file that it embeds."""
    if isinstance(value, dict):
        return _file_label(value) if value.get("kind") == "binary" and "data" in value else value
    return [_without_files(content) for content in value] if isinstance(value, list) else value
