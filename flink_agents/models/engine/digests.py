"""Digests of requests, by which a replay detects a request that differs from the recorded one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import to_jsonable_python

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
