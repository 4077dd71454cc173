"""Tells what the result of a durable call says of a request: model, tokens, price, why the answer ended.

They are numbers and names only, and so are recorded at the level ``calls``, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flink_agents.trace.operations import RETRIEVAL, operation_of

_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_MOST = 200


def facts_of(value: Any, function: str = "") -> dict[str, Any]:
    """Return what the result of a call says of a request; empty if it was none.

    Args:
        value: What the call returned: a recorded answer of a chat model, one of a whole agent, or what a
            vector store found.
        function: Name of the call.
    """
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
    return _of_response(cast("Mapping[str, Any]", response)) | _of_price(answer.get("cost"))


def _of_response(response: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, source in (("model", "model_name"), ("provider", "provider_name")):
        if isinstance(text := response.get(source), str):
            found[name] = text[:_MOST]
    usage = response.get("usage")
    if isinstance(usage, Mapping):
        numbers = cast("Mapping[str, Any]", usage)
        found |= {name: number for name in _TOKENS if isinstance(number := numbers.get(name), int) and number}
    if isinstance(reason := response.get("finish_reason"), str):
        found["finish_reason"] = reason[:_MOST]
    return found


def _of_price(cost: Any) -> dict[str, Any]:
    return {"cost": cost} if isinstance(cost, int | float) else {}
