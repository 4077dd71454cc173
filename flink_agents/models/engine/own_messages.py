"""Holds requests of agents of pydantic-ai to the rule that data is no message.

The prompt and the history of a run are objects of pydantic-ai. Those that came with an input, a signal or a
durable step speak as the user, or not at all, as in ``ctx.chat``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import FileUrl, ModelMessage, ModelRequest

from flink_agents.api.errors import UrlContentError
from flink_agents.api.resources.provenance import is_data, messages_in
from flink_agents.models.chat.origins import own_request, own_response


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
