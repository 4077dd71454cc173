"""Messages of agents of pydantic-ai: the roles that data may have, digests, and values for memory.

The prompt and the history of a run are objects of pydantic-ai. Those that came with an input, a signal or a
durable step have the role of the user, or none, as in ``ctx.chat``. A replay detects a request that differs
from the recorded one by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import FileUrl, ModelMessage, ModelMessagesTypeAdapter, ModelRequest
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import to_jsonable_python

from flink_agents.api.context.current import current_context
from flink_agents.api.errors import UrlContentError
from flink_agents.api.resources.provenance import is_data, messages_in
from flink_agents.models.chat.messages.converting import own_request, own_response


def own_messages(messages: Sequence[ModelMessage], allow_urls: bool) -> list[ModelMessage]:
    """Return the messages of a request without the parts that data must not contain.

    Args:
        messages: The messages of the request.
        allow_urls: True if contents that came with data may be URLs.

    Raises:
        MessageOriginError: Data has a role other than the user's.
        UrlContentError: Data has a content that is a URL.
    """
    own = [own_request(one) if isinstance(one, ModelRequest) else own_response(one) for one in messages]
    if not allow_urls:
        for one in messages_in(own):
            if isinstance(one, FileUrl) and is_data(one):
                raise _not_allowed(one)
    return own


def _not_allowed(found: FileUrl) -> UrlContentError:
    return UrlContentError(
        "an agent of pydantic-ai is given a content that is a URL, which came with data",
        expected="text, or content with its bytes: BinaryContent(data, media_type=...)",
        found=f"{type(found).__name__} {found.url[:200]!r}",
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
    known = [_plain(part) for part in parts if not isinstance(part, RunContext | ToolsetTool)]
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(part: object) -> Any:
    if isinstance(part, list) and part and isinstance(part[0], ModelMessage.__args__):  # type: ignore[attr-defined]
        return _without_varying(ModelMessagesTypeAdapter.dump_python(part, mode="json"))
    return _without_varying(to_jsonable_python(part, fallback=_type_of))


def _type_of(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_varying(one) for key, one in value.items() if key not in VARYING}
    if isinstance(value, list):
        return [_without_varying(one) for one in value]
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
            for one in (message, *message["parts"]):
                if "timestamp" in one:
                    one["timestamp"] = now
    return values
