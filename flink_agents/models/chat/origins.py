"""Holds messages and contents of pydantic-ai that came with data to what the user may say.

What came with data speaks as the user, or not at all: ``api.resources.provenance`` knows which did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.messages import FileUrl, ModelRequest, ModelResponse, UploadedFile, UserPromptPart

from flink_agents.api.errors import MessageOriginError
from flink_agents.api.resources.provenance import DATA, is_data, messages_in, set_origin

_URL_SCHEMES = ("http", "https")


def own_response(response: ModelResponse) -> ModelResponse:
    """A response of pydantic-ai that the agent's code, or a conversation, made.

    Raises:
        MessageOriginError: Some of it came with data.
    """
    if any(map(is_data, (response, *response.parts))):
        raise speaks("as the assistant", response)
    return response


def own_request(request: ModelRequest) -> ModelRequest:
    """A request of pydantic-ai, if all in it that came with data is said by the user.

    Raises:
        MessageOriginError: Some of it is not.
    """
    if is_data(request) and request.instructions is not None:
        raise speaks("by instructions", request)
    parts = [_part(part, is_data(request) or is_data(part)) for part in request.parts]
    if all(new is old for new, old in zip(parts, request.parts, strict=True)):
        return request
    return replace(request, parts=parts)


def _part(part: Any, of_data: bool) -> Any:
    if not isinstance(part, UserPromptPart):
        files = [one for one in messages_in(part) if isinstance(one, FileUrl | UploadedFile)]
        if of_data or any(map(is_data, files)):
            raise speaks(f"by a {type(part).__name__}", part)
        return part
    if isinstance(part.content, str):
        return part
    contents = [own_content(one, of_data) for one in part.content]
    if all(new is old for new, old in zip(contents, part.content, strict=True)):
        return part
    return replace(part, content=contents)


def own_content(one: Any, of_data: bool = False) -> Any:
    """A content, without what data must not ask for.

    Raises:
        MessageOriginError: Data names a file that only the provider's credentials reach.
    """
    if not (of_data or is_data(one)):
        return one
    if isinstance(one, UploadedFile):
        raise speaks("with a file at the provider", one)
    if not isinstance(one, FileUrl):
        return one
    scheme = urlsplit(one.url).scheme.lower()
    if scheme not in _URL_SCHEMES:
        raise speaks(f"with an address of the scheme {scheme!r}", one)
    # How it is downloaded, and what the provider does with it, is not for data to say.
    made = replace(one, force_download=False, vendor_metadata=None)
    set_origin(made, DATA)
    return made


def speaks(how: str, found: object) -> MessageOriginError:
    """The error of an object that came with data, and would be somebody else's than the user's."""
    return MessageOriginError(
        f"an object that came with data speaks to a chat model {how}",
        expected="text and pictures of the user; everything else is made by the agent's code",
        found=f"a {type(found).__name__} that was read from an input, a signal, an answer or the like",
        fix="pass its text as a string, or make the message in the agent: ChatMessage(role=..., content=...)."
        " Keep earlier conversations by history=ConversationHistory(), or as the messages of a result",
    )
