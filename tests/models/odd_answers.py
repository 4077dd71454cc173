"""Recorded good answers of services, and copies with one odd value each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from flink_agents.api import errors
from flink_agents.api.errors import AgentsError

OURS = {
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, AgentsError)
}
"""The names of all errors of the package."""

DEEP = "[" * 100_000 + "]" * 100_000

ODD: dict[str, str] = {
    "null": "null",
    "empty": '""',
    "text": '"x"',
    "nul": '"\\u0000"',
    "surrogate": '"\\ud800"',
    "zero": "0",
    "negative": "-1",
    "fraction": "0.5",
    "huge": "1e308",
    "digits": "1" + "0" * 30,
    "more-digits": "9" * 5000,
    "not-a-number": "NaN",
    "infinite": "-Infinity",
    "overflowing": "1e999",
    "true": "true",
    "list": "[]",
    "list-of-null": "[null]",
    "object": "{}",
    "other-object": '{"a": 1}',
    "deep": DEEP,
    "long-ago": '"0000-00-00T00:00:00Z"',
    "never": '"+999999-12-31T23:59:59Z"',
}
"""Values that take the place of others, as JSON; some are no JSON, but libraries read them."""

LEFT_OUT = "left-out"
CHANGES = (LEFT_OUT, "doubled", *ODD)

_MARK = "@the odd value@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of each value of a JSON, the whole first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, nested_value in items:
        yield from places(nested_value, (*path, name))


def changed(body: Any, path: tuple[Any, ...], change: str) -> str:
    """Return a JSON in which one value is changed.

    Args:
        body: The good answer.
        path: Where the value is.
        change: One of ``CHANGES``.
    """
    if not path:
        return ODD.get(change, "")
    changed_body = deepcopy(body)
    at = changed_body
    for name in path[:-1]:
        at = at[name]
    if change == LEFT_OUT:
        del at[path[-1]]
    elif change == "doubled":
        # A list of two that are the same, such as two choices or two calls with one id.
        at[path[-1]] = at[path[-1]] * 2 if isinstance(at[path[-1]], str | list) else [at[path[-1]]] * 2
    else:
        at[path[-1]] = _MARK
    return json.dumps(changed_body).replace(f'"{_MARK}"', ODD.get(change, ""))


CALL = {"id": "call_1", "type": "function", "function": {"name": "price_of", "arguments": '{"item": "tea"}'}}

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_741_569_952,
    "model": "gpt-5-mini-2025-08-07",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "good", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
    },
    "service_tier": "default",
    "system_fingerprint": "fp_1",
}

COMPLETION_WITH_CALL: dict[str, Any] = {
    **COMPLETION,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": None, "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        }
    ],
}

_CHUNK = {
    **{name: COMPLETION[name] for name in ("id", "created", "model")},
    "object": "chat.completion.chunk",
}


def _delta(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


CHUNKS: list[dict[str, Any]] = [
    _delta(role="assistant", content=""),
    _delta(content="good"),
    _delta(tool_calls=[{"index": 0, **CALL}]),
    _delta("tool_calls"),
    {**_CHUNK, "choices": [], "usage": COMPLETION["usage"]},
]

_TEXT = {"type": "output_text", "text": "good", "annotations": [], "logprobs": []}
_MESSAGE = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [_TEXT]}
_CALLED = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "price_of",
    "arguments": '{"item": "tea"}',
}

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_741_476_542,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "gpt-5-mini-2025-08-07",
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]},
        _MESSAGE,
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 123,
    },
    "metadata": {},
}

RESPONSE_WITH_CALL: dict[str, Any] = {**RESPONSE, "output": [_CALLED]}

_PLACE = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
_BEGUN = {**_MESSAGE, "status": "in_progress", "content": []}

EVENTS: list[dict[str, Any]] = [
    {
        "type": "response.created",
        "sequence_number": 0,
        "response": {"id": "resp_1", "created_at": 1, "output": []},
    },
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": _BEGUN},
    {
        "type": "response.output_text.delta",
        "sequence_number": 2,
        **_PLACE,
        "delta": "good",
    },
    {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": _MESSAGE},
    {
        "type": "response.function_call_arguments.delta",
        "sequence_number": 4,
        "output_index": 1,
        "item_id": "fc_1",
        "delta": "{}",
    },
    {"type": "response.completed", "sequence_number": 5, "response": RESPONSE_WITH_CALL},
]

EMBEDDINGS: dict[str, Any] = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [{"object": "embedding", "index": n, "embedding": [0.1, 0.2]} for n in range(2)],
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}

EMBEDDINGS_AS_BYTES: dict[str, Any] = {
    **EMBEDDINGS,
    "data": [{"object": "embedding", "index": n, "embedding": "zczMPc3MTD4="} for n in range(2)],
}


def streamed(events: list[Any], path: tuple[Any, ...], change: str) -> bytes:
    """Return a stream of server-sent events, one of which is changed.

    Args:
        events: The good ones.
        path: The number of the event, and where the value is in it. An empty path means all events.
        change: One of ``CHANGES``.
    """
    texts = [json.dumps(event) for event in events]
    if path:
        at = path[0]
        if change == LEFT_OUT and len(path) == 1:
            del texts[at]
        else:
            texts[at] = changed(events[at], path[1:], change)
    else:
        texts = [ODD.get(change, "")]
    named = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
    lines = [f"{name}data: {text}\n\n" for name, text in zip(named, texts, strict=False)]
    return ("".join(lines) + "data: [DONE]\n\n").encode("utf-8", "surrogatepass")
