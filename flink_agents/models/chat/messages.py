"""Messages: what a caller gives as messages of pydantic-ai, as JSON, and as a digest.

Timestamps and the ids of runs are no part of what a request is: a replay would have others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from flink_agents.api.chat import ChatInput, problem
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.resources import ChatMessage

_NOT_ASKED = ("timestamp", "run_id", "conversation_id")
"""Fields of messages and of their parts that say when and where, and not what."""


def messages_of(given: ChatInput, now: datetime) -> list[ModelMessage]:
    """What a caller says, as messages.

    Args:
        given: A text of the user, a ``ChatMessage``, or several messages of any kind.
        now: The time that they carry: that of the run, which a replay has again.

    Raises:
        AgentConfigurationError: Something else was given.
    """
    if isinstance(given, str):
        return [ModelRequest([UserPromptPart(given, timestamp=now)], timestamp=now)] if given else []
    if isinstance(given, ChatMessage | Mapping | ModelRequest | ModelResponse):
        return [_message(given, now)]
    # What is neither a message nor several of them is refused as the one message that it was meant to be.
    several: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    return [_message(one, now) for one in several]


def _message(one: Any, now: datetime) -> ModelMessage:
    if isinstance(one, ModelRequest | ModelResponse):
        return one
    if isinstance(one, ChatMessage):
        return _chat_message(one, now)
    if isinstance(one, str):
        return ModelRequest([UserPromptPart(one, timestamp=now)], timestamp=now)
    if not isinstance(one, Mapping):
        raise _no_message(type(one).__qualname__)
    try:
        if "kind" in one:
            return ModelMessagesTypeAdapter.validate_python([one])[0]
        return _chat_message(ChatMessage.model_validate(one), now)
    except ValidationError as error:
        raise _no_message(f"a dict: {problem(error)}") from None


def _no_message(found: str) -> AgentConfigurationError:
    return AgentConfigurationError(
        "a chat model is told something that is no message",
        expected="a text, a ChatMessage, a message of pydantic-ai, or a list of these",
        found=found,
        fix="pass the text that the model shall read",
    )


def _chat_message(message: ChatMessage, now: datetime) -> ModelMessage:
    if message.role == "assistant":
        return ModelResponse([TextPart(message.content)], timestamp=now)
    if message.role == "system":
        return ModelRequest([SystemPromptPart(message.content, timestamp=now)], timestamp=now)
    if message.role == "user":
        return ModelRequest([UserPromptPart(message.content, timestamp=now)], timestamp=now)
    raise AgentConfigurationError(
        "a message has a role that a chat model cannot be told",
        expected="'system', 'user' or 'assistant'",
        found=repr(message.role),
        fix="give results of tools as messages of pydantic-ai, or leave them to the conversation",
    )


def to_json(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Messages as JSON values; :func:`from_json` gives equal ones."""
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def from_json(values: Sequence[Any]) -> list[ModelMessage]:
    """The messages that :func:`to_json` gave."""
    return ModelMessagesTypeAdapter.validate_python(list(values))


class Transcript:
    """The messages of a conversation, and a digest of what they say.

    The digest of more messages goes on from that of fewer, so that a long conversation is not read again
    for each of its requests.
    """

    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._digested = 0

    def add(self, messages: Iterable[ModelMessage]) -> None:
        """Append messages."""
        self.messages += messages

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of all messages."""
        added = self.messages[self._digested :]
        self._digested = len(self.messages)
        for value in to_json(added):
            text = json.dumps(_asked(value), sort_keys=True, separators=(",", ":"))
            self._digest.update(b"%d:" % len(text))
            self._digest.update(text.encode("utf-8", "surrogatepass"))
        return self._digest.hexdigest()


def _asked(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in JSON without what a replay may have otherwise."""
    kept = {name: value for name, value in message.items() if name not in _NOT_ASKED}
    parts = cast("list[Mapping[str, Any]]", kept.get("parts", []))
    kept["parts"] = [
        {name: value for name, value in part.items() if name not in _NOT_ASKED} for part in parts
    ]
    return kept


def text_of_user(messages: Sequence[ModelMessage]) -> str:
    """The latest text of the user; empty where there is none."""
    for message in reversed(messages):
        if isinstance(message, ModelRequest):
            for part in reversed(message.parts):
                if isinstance(part, UserPromptPart):
                    content = part.content
                    return content if isinstance(content, str) else " ".join(map(str, content))
    return ""
