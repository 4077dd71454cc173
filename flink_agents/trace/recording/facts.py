"""Reads facts about a request from the result of a durable call: model, tokens, price, finish reason.

They are only numbers and names, so the level ``calls`` records them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flink_agents.trace.operations import RETRIEVAL, operation_of

_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_MOST = 200
_PLAIN = frozenset((str, int, float, bool, bytes))
"""Types of most results. To ask if one is a mapping takes longer."""


def facts_of(value: Any, function: str = "") -> dict[str, Any]:
    """Return facts about a request from the result of a durable call; empty if it is no request.

    Args:
        value: The result: a response of a chat model or a Pydantic AI agent as recorded, or documents of a
            vector store.
        function: Name of the function of the call.
    """
    if value is None or type(value) in _PLAIN:
        return {}
    if isinstance(value, list | tuple) and operation_of(function).kind == RETRIEVAL:
        return {"results": len(cast("list[Any]", value))}
    if not isinstance(value, Mapping):
        return {}
    answer = cast("Mapping[str, Any]", value)
    if "refused" in answer and len(answer) == 1:
        return {"finish_reason": "refused"}
    response = answer.get("response", answer)
    if not isinstance(response, Mapping) or response.get("kind") != "response":
        return {}
    return _response_facts(cast("Mapping[str, Any]", response)) | _price_facts(answer.get("cost"))


def _response_facts(response: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, source in (("model", "model_name"), ("provider", "provider_name")):
        if isinstance(text := response.get(source), str):
            facts[name] = text[:_MOST]
    usage = response.get("usage")
    if isinstance(usage, Mapping):
        numbers = cast("Mapping[str, Any]", usage)
        facts |= {name: number for name in _TOKENS if isinstance(number := numbers.get(name), int) and number}
    if isinstance(reason := response.get("finish_reason"), str):
        facts["finish_reason"] = reason[:_MOST]
    return facts


def _price_facts(cost: Any) -> dict[str, Any]:
    return {"cost": cost} if isinstance(cost, int | float) else {}
