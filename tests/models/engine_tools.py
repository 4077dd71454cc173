"""Agents of pydantic-ai whose models are functions, and the effects of their calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

EFFECTS: list[Any] = []
"""What models and tools did, in order; nothing takes it back."""


def counted() -> Counter[Any]:
    """How often each effect was taken."""
    return Counter(EFFECTS)


def scripted(name: str, *turns: Callable[[list[ModelMessage]], list[Any]]) -> FunctionModel:
    """A model that answers its n-th request by the n-th turn, and notes each request."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        EFFECTS.append((name, turn))
        return ModelResponse(parts=turns[turn](messages))

    return FunctionModel(answer, model_name=name)


def calls(*wanted: tuple[str, dict[str, Any]]) -> Callable[[list[ModelMessage]], list[Any]]:
    """A turn that calls tools."""
    return lambda messages: [ToolCallPart(tool, arguments) for tool, arguments in wanted]


def says(text: str) -> Callable[[list[ModelMessage]], list[Any]]:
    """A turn that answers ``text`` with what the tools of the turn before returned."""

    def turn(messages: list[ModelMessage]) -> list[Any]:
        returned = [str(getattr(part, "content", "")) for part in messages[-1].parts]
        return [TextPart(f"{text}: {' '.join(returned)}")]

    return turn


def transcript(messages: bytes) -> Any:
    """Messages without the times at which they were made."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(nested_value) for key, nested_value in value.items() if key != "timestamp"}
        return [plain(nested_value) for nested_value in value] if isinstance(value, list) else value

    return plain(json.loads(messages))
