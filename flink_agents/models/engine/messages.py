"""Messages of agents of pydantic-ai: the roles that data may have, digests, and values for memory.

The prompt and the history of a run are objects of pydantic-ai. Those that came with an input, a signal or a
durable step have the role of the user, or none, as in ``ctx.chat``. A replay detects a request that differs
from the recorded one by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import FileUrl, ModelMessage, ModelMessagesTypeAdapter, ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import to_jsonable_python

from flink_agents.api.context.current import current_context
from flink_agents.api.errors import UrlContentError
from flink_agents.api.resources.provenance import is_data, messages_in
from flink_agents.models.chat.messages.converting import own_request, own_response
from flink_agents.models.chat.messages.request_text import request_text


def own_messages(messages: Sequence[ModelMessage], allow_urls: bool) -> list[ModelMessage]:
    """Return the messages of a request, without settings of contents that data must not control.

    Args:
        messages: The messages of the request, the oldest first.
        allow_urls: True if contents that came with data may be URLs.

    Raises:
        MessageOriginError: Data has a role other than the user's.
        UrlContentError: Data has a content that is a URL.
    """
    clean_messages = [
        own_request(message) if isinstance(message, ModelRequest) else own_response(message)
        for message in messages
    ]
    if not allow_urls:
        for content in messages_in(clean_messages):
            if isinstance(content, FileUrl) and is_data(content):
                raise _url_error(content)
    return clean_messages


def _url_error(file_url: FileUrl) -> UrlContentError:
    return UrlContentError(
        "an agent of pydantic-ai is given a content that is a URL, which came with data",
        expected="text, or content with its bytes: BinaryContent(data, media_type=...)",
        found=f"{type(file_url).__name__} {file_url.url[:200]!r}",
        fix="download it in a durable step, or set FlinkDurability(allow_urls=True): then the provider or "
        "the worker downloads what the URL names",
    )


VARYING = frozenset(("timestamp", "run_id", "conversation_id"))
"""Fields of messages that differ from one execution to the next although the request is the same."""


def digest_of(parts: Iterable[object]) -> str:
    """Return the SHA-256 of the parts of a request, in hexadecimal digits.

    It ignores contexts of runs, toolsets, timestamps and run ids: they are not part of the request.

    Args:
        parts: Messages, settings, names and arguments, as pydantic-ai passes them to a durable engine.
    """
    return describe_request(parts)[0]


def describe_request(parts: Iterable[object]) -> tuple[str, str]:
    """Return the digest of a request, as :func:`digest_of` does, and its text for people.

    Args:
        parts: Messages, settings, names and arguments, as pydantic-ai passes them to a durable engine.
    """
    request_parts = [part for part in parts if not isinstance(part, RunContext | ToolsetTool)]
    json_values = [_part_as_json(part) for part in request_parts]
    json_text = json.dumps(json_values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(json_text.encode("utf-8", "surrogatepass")).hexdigest()
    messages = list[Any]()
    other_parts = dict[str, Any]()
    for part, json_value in zip(request_parts, json_values, strict=True):
        if _is_messages(part):
            messages = json_value
        elif isinstance(part, ModelRequestParameters):
            other_parts |= _request_parameters(json_value)
        else:
            name = "settings" if messages else "arguments"
            other_parts[name if isinstance(part, dict) else f"part {len(other_parts) + 1}"] = json_value
    return digest, request_text(messages, **other_parts)


def _request_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request as parts of its text: each tool, and all others as ``options``."""
    tool_kinds = ("function_tools", "output_tools")
    tools = {f"tool {tool.get('name')}": tool for kind in tool_kinds for tool in parameters.get(kind) or ()}
    options = {name: value for name, value in parameters.items() if name not in tool_kinds}
    return tools | {"options": options}


def _is_messages(part: object) -> TypeGuard[list[ModelMessage]]:
    return isinstance(part, list) and bool(part) and isinstance(part[0], ModelMessage.__args__)  # type: ignore[attr-defined]


def _part_as_json(part: object) -> Any:
    """Return a part of a request as JSON that is the same in each execution."""
    if _is_messages(part):
        return _without_varying(ModelMessagesTypeAdapter.dump_python(part, mode="json"))
    return _without_varying(_with_sorted_sets(part, to_jsonable_python(part, fallback=_type_of)))


def _with_sorted_sets(value: object, json_value: Any) -> Any:
    """Return ``json_value``, the JSON of ``value``, with its sets sorted, at any depth.

    The order of a set of strings is another one in each process, and a replay compares digests.
    """
    if isinstance(json_value, dict):
        entries = cast("dict[str, Any]", json_value)
        if isinstance(value, dict):
            pairs = zip(cast("dict[Any, Any]", value).values(), entries.items(), strict=False)
            return {name: _with_sorted_sets(inner, inner_json) for inner, (name, inner_json) in pairs}
        return {
            name: _with_sorted_sets(getattr(value, name, None), inner_json)
            for name, inner_json in entries.items()
        }
    if not (isinstance(json_value, list) and isinstance(value, list | tuple | set | frozenset)):
        return json_value
    members = zip(cast("Iterable[object]", value), cast("list[Any]", json_value), strict=False)
    json_members = [_with_sorted_sets(member, member_json) for member, member_json in members]
    return json_members if isinstance(value, list | tuple) else sorted(json_members, key=_json)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _type_of(value: object) -> str:
    """Return ``module:qualname`` of a value's class, which stands for a value that JSON cannot hold."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _without_varying(value: Any) -> Any:
    """Return a JSON value without the fields in :data:`VARYING`, at any depth."""
    if isinstance(value, dict):
        return {
            str(key): _without_varying(inner_value)
            for key, inner_value in value.items()
            if key not in VARYING
        }
    if isinstance(value, list):
        return [_without_varying(inner_value) for inner_value in value]
    return value


def kept_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as JSON values, with the time of the run as their timestamps.

    pydantic-ai uses the wall clock for its own messages, which differs on replay.

    Args:
        messages: Messages such as ``result.all_messages()``. ``ModelMessagesTypeAdapter.validate_python`` of
            pydantic-ai restores them.
    """
    context = current_context()
    values = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    if context is not None:
        now = context.now().isoformat()
        for message in values:
            for message_or_part in (message, *message["parts"]):
                if "timestamp" in message_or_part:
                    message_or_part["timestamp"] = now
    return values
