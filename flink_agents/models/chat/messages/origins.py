"""Restricts messages and contents of pydantic-ai that came with input data to the role of the user.

Objects from input data may speak as the user only; ``api.resources.provenance`` recognises them.
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
    """Return a response of pydantic-ai that the agent's code or a conversation created.

    Raises:
        MessageOriginError: A part of it came with input data.
    """
    if any(map(is_data, (response, *response.parts))):
        raise speaks("as the assistant", response)
    return response


def own_request(request: ModelRequest) -> ModelRequest:
    """Return a request of pydantic-ai in which everything from input data has the role of the user.

    Raises:
        MessageOriginError: A part from input data has another role.
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
    """Return a content without settings that input data must not control.

    Raises:
        MessageOriginError: Input data names a file that needs the provider's credentials.
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
    # Input data must not control how it is downloaded, or how the provider handles it.
    made = replace(one, force_download=False, vendor_metadata=None)
    set_origin(made, DATA)
    return made


def speaks(how: str, found: object) -> MessageOriginError:
    """Return the error about an object from input data that has another role than the user's."""
    return MessageOriginError(
        f"an object that came with data was sent to a chat model {how}",
        expected="text and pictures of the user; the agent's code creates everything else",
        found=f"a {type(found).__name__} from an input, a signal, an answer or other data",
        fix="pass its text as a string, or create the message in the agent: ChatMessage(role=..., "
        "content=...). Continue earlier conversations with history=ConversationHistory(), or as the "
        "messages of a result",
    )
