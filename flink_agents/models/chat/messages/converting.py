"""Messages: converts a caller's values to messages of pydantic-ai, to JSON, and to a digest.

Timestamps and run ids do not belong to the identity of a request: they differ on replay.

Messages and contents that came with input data may speak as the user only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)
from pydantic_core import PydanticSerializationError

from flink_agents.api.errors import AgentConfigurationError, MessageOriginError, UrlContentError
from flink_agents.api.models.chat import ChatInput
from flink_agents.api.models.history import ChatTranscript
from flink_agents.api.resources import ChatMessage
from flink_agents.api.resources.provenance import DATA, is_data, messages_in, set_origin
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.models.chat.messages.request_text import request_text

_CONTENTS = (ImageUrl, AudioUrl, DocumentUrl, VideoUrl, BinaryContent, TextContent, UploadedFile, CachePoint)
_BY_USER = (str, *_CONTENTS)
"""Classes of the contents of a user message."""

_MOST_KEYS = 10
"""Maximum number of keys of a mapping that an error lists."""

_NOT_CONTENT = ("timestamp", "run_id", "conversation_id")
"""Fields of messages and parts that a digest ignores: time and place, not content."""


def messages_of(chat_input: ChatInput, now: datetime) -> list[ModelMessage]:
    """Return a caller's values as messages.

    Args:
        chat_input: A string from the user, a content such as a picture, a ``ChatMessage``, a message of
            pydantic-ai, or a list of these. Adjacent strings and contents in a list form one user message.
        now: Their timestamp: the time of the run, which is the same on replay.

    Raises:
        MessageOriginError: A message from input data has another role than the user's.
        AgentConfigurationError: A value has another type, such as a mapping.
    """
    if isinstance(chat_input, ChatTranscript):
        return _convert_transcript(chat_input)
    if isinstance(chat_input, str) and not chat_input:
        return []
    # A value that is neither a message nor several is rejected as the single message that it was meant to be.
    values: Sequence[Any] = chat_input if isinstance(chat_input, list | tuple) else [chat_input]
    return [message for group in _group_adjacent(values) for message in _convert_group(group, now)]


def _group_adjacent(values: Sequence[Any]) -> Iterator[list[Any]]:
    """Group adjacent strings and contents; any other value is a separate group."""
    group: list[Any] = []
    for value in values:
        if isinstance(value, _BY_USER):
            group.append(value)
            continue
        if group:
            yield group
        yield [value]
        group = []
    if group:
        yield group


def _convert_group(group: list[Any], now: datetime) -> list[ModelMessage]:
    """Return the messages of a group: one for each string, or one for strings and contents together."""
    if not isinstance(group[0], _BY_USER):
        return [_convert_message(group[0], now)]
    if all(isinstance(content, str) for content in group):
        return [_user_message(text, now) for text in group]
    return [_user_message([own_content(content) for content in group], now)]


def _user_message(content: Any, now: datetime) -> ModelRequest:
    return ModelRequest([UserPromptPart(content, timestamp=now)], timestamp=now)


def _convert_message(message: Any, now: datetime) -> ModelMessage:
    """Return a message of pydantic-ai for one message; AgentConfigurationError for any other value."""
    if isinstance(message, ChatMessage):
        return _convert_chat_message(message, now)
    if isinstance(message, ModelRequest):
        return own_request(message)
    if isinstance(message, ModelResponse):
        return own_response(message)
    if isinstance(message, Mapping):
        kind = type(message).__name__
        keys = ", ".join(repr(key)[:40] for key in list(cast("Mapping[Any, Any]", message))[:_MOST_KEYS])
        raise AgentConfigurationError(
            "a chat model got a value that is not a message",
            expected="a string, a ChatMessage, or messages and contents that the agent's code creates",
            found=f"{kind} with the keys {keys}" if keys else f"an empty {kind}",
            fix="format it as a string, such as f'Review this: {event.input}'; or build "
            "ChatMessage(role='user', content=...) of its fields",
        )
    raise AgentConfigurationError(
        "a chat model got a value that is not a message",
        expected="a string, a ChatMessage, a message or content of pydantic-ai, or a list of these",
        found=type(message).__qualname__,
        fix="pass the text for the model; for bytes, use BinaryContent(data, media_type=...)",
    )


def _convert_chat_message(message: ChatMessage, now: datetime) -> ModelMessage:
    """Return a message of pydantic-ai with the role of a ``ChatMessage``; data has only the user's."""
    if message.role == "user":
        return _user_message(message.content, now)
    if message.role not in ("system", "assistant"):
        raise AgentConfigurationError(
            "a message has an unknown role",
            expected="'system', 'user' or 'assistant'",
            found=repr(message.role),
            fix="pass tool results as messages of pydantic-ai, or leave them to the conversation",
        )
    if is_data(message):
        raise foreign_role_error(f"with the role {message.role!r}", message)
    if message.role == "assistant":
        return ModelResponse([TextPart(message.content)], timestamp=now)
    return ModelRequest([SystemPromptPart(message.content, timestamp=now)], timestamp=now)


def _convert_transcript(transcript: ChatTranscript) -> list[ModelMessage]:
    """Return the messages of a transcript; MessageOriginError if it came with data and has any."""
    if is_data(transcript) and transcript.root:
        raise foreign_role_error("as a whole conversation", transcript)
    return from_json(transcript.root)


def to_json(messages: Sequence[ModelMessage], exclude_none: bool = False) -> list[dict[str, Any]]:
    """Return messages as JSON values; :func:`from_json` restores equal messages.

    Args:
        messages: The messages.
        exclude_none: True to omit fields that are None; only for responses, of which none is required.
    """
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json", exclude_none=exclude_none)


def from_json(values: Sequence[Any]) -> list[ModelMessage]:
    """Return the messages of the JSON values that :func:`to_json` returned."""
    return ModelMessagesTypeAdapter.validate_python(list(values))


class Transcript:
    """The messages of a conversation, and a digest of their content.

    All messages to a model pass through this class, so it rejects contents with URLs, and makes text that can
    be sent. The digest is computed incrementally, so that a long conversation is not read again for each
    request. Each message is written as JSON once, for the digest, the text of the record, and the search for
    text that cannot be sent.

    Args:
        allow_urls: True if messages may contain URLs of files.

    Attributes:
        messages: All messages, the oldest first. Add further ones with :meth:`add`; :attr:`digest` makes
            their text sendable.
    """

    def __init__(self, allow_urls: bool = False) -> None:
        self.messages: list[ModelMessage] = []
        self._allow_urls = allow_urls
        self._digest = hashlib.blake2b(digest_size=16)
        self._digested_count = 0
        self._request = ""

    def add(self, messages: Iterable[ModelMessage]) -> None:
        """Append messages.

        Raises:
            UrlContentError: A message contains a URL, which the agent's code does not allow.
        """
        added = list(messages)
        if not self._allow_urls:
            check_no_urls(added)
        self.messages += added

    @property
    def digest(self) -> str:
        """The digest of all messages so far: 32 hexadecimal digits."""
        if added := self.messages[self._digested_count :]:
            self.messages[self._digested_count :], values, texts = _write_sendable(added)
            self._request = request_text(values, self._digest.hexdigest() if self._digested_count else "")
            self._digested_count = len(self.messages)
            for text in texts:
                self._digest.update(b"%d:" % len(text))
                self._digest.update(text.encode())
        return self._digest.hexdigest()

    @property
    def request(self) -> str:
        """The text of the messages that the last :attr:`digest` added, for the record of the request."""
        return self._request


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_MAY_BE_HALF = re.compile(r"\\u(?:d[89a-f]|fffd)")
"""Matches a surrogate in JSON of ASCII characters, and the character that pydantic writes for it in a key."""


def _write_sendable(
    messages: list[ModelMessage],
) -> tuple[list[ModelMessage], list[dict[str, Any]], list[str]]:
    """Return messages that can be sent, and what :func:`_write_messages` returns for them.

    Almost all can be sent as they are, which is seen in their JSON.
    """
    with suppress(UnicodeEncodeError, PydanticSerializationError):
        values, texts = _write_messages(messages)
        if not any(map(_MAY_BE_HALF.search, texts)):
            return messages, values, texts
    sendable_messages = list(map(sendable, messages))
    return sendable_messages, *_write_messages(sendable_messages)


def _write_messages(messages: Sequence[ModelMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return messages as JSON values, and the JSON text of what a digest covers of each."""
    values = to_json(messages)
    return values, [_encode(_stable_json(value)) for value in values]


def _stable_json(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as JSON, without fields that may differ on replay."""
    stable_fields = {name: value for name, value in message.items() if name not in _NOT_CONTENT}
    parts = cast("list[Mapping[str, Any]]", stable_fields.get("parts", []))
    stable_fields["parts"] = [
        {name: value for name, value in part.items() if name not in _NOT_CONTENT} for part in parts
    ]
    return stable_fields


def text_of_user(messages: Sequence[ModelMessage]) -> str:
    """Return the text of the user's last message; empty if there is none."""
    for message in reversed(messages):
        if isinstance(message, ModelRequest):
            for part in reversed(message.parts):
                if isinstance(part, UserPromptPart):
                    return text_of(part.content)
    return ""


def text_of(content: str | Sequence[Any]) -> str:
    """Return the text of a user message's content, without pictures and other files."""
    if isinstance(content, str):
        return content
    texts = [part.content if isinstance(part, TextContent) else part for part in content]
    return " ".join(text for text in texts if isinstance(text, str))


def asks_something(earlier: Sequence[ModelMessage], added: Sequence[ModelMessage]) -> bool:
    """Return True if a model has something to answer after the last message of the assistant.

    Args:
        earlier: The messages of earlier conversations, and of the model's own prompt.
        added: The messages of the caller. The last one may begin the answer of the assistant.
    """
    if added and isinstance(added[-1], ModelResponse):
        return any(map(_has_content, added[-1].parts))
    latest = takewhile(lambda message: isinstance(message, ModelRequest), reversed([*earlier, *added]))
    return any(_has_content(part) for message in latest for part in message.parts)


def _has_content(part: Any) -> bool:
    """Return True if a part of a message asks something: not blank, and no system message."""
    if isinstance(part, SystemPromptPart | CachePoint):
        return False
    content = getattr(part, "content", part)
    if isinstance(part, UserPromptPart | TextPart | TextContent) and isinstance(content, str):
        return bool(content.strip())
    if isinstance(part, UserPromptPart):
        return any(
            content_part.strip() if isinstance(content_part, str) else _has_content(content_part)
            for content_part in content
        )
    return True


def check_no_urls(messages: Iterable[ModelMessage]) -> None:
    """Check that no message contains a URL of a file.

    Raises:
        UrlContentError: A message contains one.
    """
    for message in messages:
        for part in message.parts:
            content = getattr(part, "content", None)
            if content is None or isinstance(content, str):
                continue
            for inner_content in messages_in(content):
                if isinstance(inner_content, FileUrl):
                    raise UrlContentError(
                        "a chat model got a content that is a URL",
                        expected="text, or content with its bytes: BinaryContent(data, media_type=...)",
                        found=f"{type(inner_content).__name__} {inner_content.url[:200]!r}",
                        fix="download it in a durable step, or set allow_urls=True of the chat model or of "
                        "this chat: the provider, or the worker, then downloads the file",
                    )


_URL_SCHEMES = ("http", "https")
"""Schemes of files that data may name. Others, such as ``s3``, use credentials of the provider."""


def own_response(response: ModelResponse) -> ModelResponse:
    """Return ``response``, if the agent's code or a conversation created it.

    Raises:
        MessageOriginError: A part of it came with input data.
    """
    if any(map(is_data, (response, *response.parts))):
        raise foreign_role_error("as the assistant", response)
    return response


def own_request(request: ModelRequest) -> ModelRequest:
    """Return ``request``, if everything in it from input data has the role of the user.

    Contents from input data lose settings that it must not control; see :func:`own_content`.

    Raises:
        MessageOriginError: A part from input data has another role.
    """
    if is_data(request) and request.instructions is not None:
        raise foreign_role_error("by instructions", request)
    parts = [_convert_part(part, is_data(request) or is_data(part)) for part in request.parts]
    if all(new is old for new, old in zip(parts, request.parts, strict=True)):
        return request
    return replace(request, parts=parts)


def _convert_part(part: Any, of_data: bool) -> Any:
    """Return a part of a request as :func:`own_request` does; ``of_data`` if it came with input data."""
    if not isinstance(part, UserPromptPart):
        files = [file for file in messages_in(part) if isinstance(file, FileUrl | UploadedFile)]
        if of_data or any(map(is_data, files)):
            raise foreign_role_error(f"by a {type(part).__name__}", part)
        return part
    if isinstance(part.content, str):
        return part
    contents = [own_content(content, of_data) for content in part.content]
    if all(new is old for new, old in zip(contents, part.content, strict=True)):
        return part
    return replace(part, content=contents)


def own_content(content: Any, of_data: bool = False) -> Any:
    """Return a content of a user message without settings that input data must not control.

    Args:
        content: A string, a picture or another content.
        of_data: True if the message around it came with input data.

    Raises:
        MessageOriginError: Input data names a file that needs the provider's credentials.
    """
    if not (of_data or is_data(content)):
        return content
    if isinstance(content, UploadedFile):
        raise foreign_role_error("with a file at the provider", content)
    if not isinstance(content, FileUrl):
        return content
    scheme = urlsplit(content.url).scheme.lower()
    if scheme not in _URL_SCHEMES:
        raise foreign_role_error(f"with an address of the scheme {scheme!r}", content)
    # Input data must not control how it is downloaded, or how the provider handles it.
    safe_content = replace(content, force_download=False, vendor_metadata=None)
    set_origin(safe_content, DATA)
    return safe_content


def foreign_role_error(how: str, value: object) -> MessageOriginError:
    """Return the error about an object from input data that has another role than the user's.

    Args:
        how: Its role in words, after "was sent to a chat model".
        value: The object.
    """
    return MessageOriginError(
        f"an object that came with data was sent to a chat model {how}",
        expected="text and pictures of the user; the agent's code creates everything else",
        found=f"a {type(value).__name__} from an input, a signal, an answer or other data",
        fix="pass its text as a string, or create the message in the agent: ChatMessage(role=..., "
        "content=...). Continue earlier conversations with history=ConversationHistory(), or as the "
        "messages of a result",
    )
