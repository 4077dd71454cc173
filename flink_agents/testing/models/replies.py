"""Replies of the local model server: a test's replies as bodies of OpenAI's two interfaces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a reply.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments. A string is sent unchanged, so that it can be invalid JSON.
        id: Id of the call; None to derive it from its position.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as text, as the interface sends them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Reply:
    """One reply of the server.

    Attributes:
        text: Text of the model.
        tool_calls: Tool calls.
        output: A JSON value, sent as structured output in place of ``text``.
        delay: Seconds to wait before the reply.
        status: Status of the response. If it is not 200, ``text`` is the error message.
        retry_after: Seconds that the client should wait, sent in headers; None for no such headers.
        body: The whole body, in place of all other content, such as invalid JSON.
        headers: Further headers of the response.
        input_tokens: Number of input tokens to report.
        output_tokens: Number of output tokens to report.
        cached_tokens: Number of input tokens from the provider's cache to report.
        hang_up: True to close the connection in place of a reply.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    output: Any = None
    delay: float = 0.0
    status: int = 200
    retry_after: float | None = None
    body: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    hang_up: bool = False

    @property
    def content(self) -> str:
        """Return the text of the model; for structured output, its JSON."""
        return self.text if self.output is None else json.dumps(self.output)

    def calls(self, number: int) -> list[tuple[str, ToolCall]]:
        """Return the tool calls, each after its id.

        Args:
            number: Number of the request, which makes generated ids unique.
        """
        return [(call.id or f"call_{number}_{index}", call) for index, call in enumerate(self.tool_calls)]


def error_body(reply: Reply) -> dict[str, Any]:
    """Return the JSON body of a reply whose status is not 200."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(reply.status, "server_error" if reply.status >= 500 else "invalid_request_error")
    return {"error": {"message": reply.text or f"status {reply.status}", "type": kind, "code": None}}


def completion_body(reply: Reply, model: str, number: int) -> dict[str, Any]:
    """Return the JSON body of a reply of ``/chat/completions``."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    calls = reply.calls(number)
    if calls:
        message["tool_calls"] = [_completion_call(name, call) for name, call in calls]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": _completion_usage(reply),
    }


def completion_chunks(reply: Reply, model: str, number: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a reply of ``/chat/completions`` with ``stream``; a text comes in several."""
    base: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _split_text(reply.content):
        yield chunk({"content": piece})
    calls = reply.calls(number)
    for index, (name, call) in enumerate(calls):
        yield chunk({"tool_calls": [{"index": index, **_completion_call(name, call)}]})
    yield chunk({}, "tool_calls" if calls else "stop")
    yield {**base, "choices": [], "usage": _completion_usage(reply)}


def response_body(reply: Reply, model: str, number: int) -> dict[str, Any]:
    """Return the JSON body of a reply of ``/responses``."""
    output: list[dict[str, Any]] = [
        {
            "id": f"fc_{number}_{index}",
            "type": "function_call",
            "call_id": name,
            "name": call.name,
            "arguments": call.text,
            "status": "completed",
        }
        for index, (name, call) in enumerate(reply.calls(number))
    ]
    if reply.content or not output:
        content = [{"type": "output_text", "text": reply.content, "annotations": []}]
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        output.insert(0, {**message, "content": content})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": model,
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def response_events(reply: Reply, model: str, number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a reply of ``/responses`` with ``stream``; a text comes in several."""
    full_response = response_body(reply, model, number)
    yield {"type": "response.created", "response": {**full_response, "status": "in_progress", "output": []}}
    for index, output_item in enumerate(full_response["output"]):
        if output_item["type"] == "message":
            added_item = {**output_item, "content": [], "status": "in_progress"}
            position = {"output_index": index, "item_id": output_item["id"], "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            yield {"type": "response.output_item.added", "output_index": index, "item": added_item}
            yield {"type": "response.content_part.added", **position, "part": part}
            for piece in _split_text(reply.content):
                yield {"type": "response.output_text.delta", **position, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **position, "text": reply.content, "logprobs": []}
        else:
            added_item = {**output_item, "arguments": "", "status": "in_progress"}
            position = {"output_index": index, "item_id": output_item["id"]}
            yield {"type": "response.output_item.added", "output_index": index, "item": added_item}
            delta = {
                "type": "response.function_call_arguments.delta",
                **position,
                "delta": output_item["arguments"],
            }
            yield delta
        yield {"type": "response.output_item.done", "output_index": index, "item": output_item}
    yield {"type": "response.completed", "response": full_response}


def _completion_call(name: str, call: ToolCall) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def _completion_usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _split_text(text: str, size: int = 8) -> Iterator[str]:
    for begin in range(0, len(text), size):
        yield text[begin : begin + size]
