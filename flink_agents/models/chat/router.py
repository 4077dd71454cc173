"""Chooses one of several chat models for a conversation: by rules, by a function, or by a judge."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage

from flink_agents.api.chat import Router, RouteRule
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.resources import ResourceType
from flink_agents.models.chat.messages import text_of_user, to_json


async def choose(ctx: RunnerContext, router: Router, messages: Sequence[ModelMessage]) -> str:
    """The name of the chat model that a conversation is held with.

    Rules and functions are code of the action: what they say must follow from the messages alone. The
    request to a judge is recorded.

    Raises:
        AgentConfigurationError: A function names no model of the router.
    """
    names = list(router.models)
    if router.judge is not None:
        return await _judged(ctx, router.judge, router.models, messages)
    if router.function is not None:
        return _of_function(router.function, names, messages)
    for rule in router.rules:
        if _holds(rule, messages):
            return rule.model
    return names[-1]


def _holds(rule: RouteRule, messages: Sequence[ModelMessage]) -> bool:
    text = text_of_user(messages)
    if rule.contains is not None and re.search(rule.contains, text) is None:
        return False
    return rule.max_characters is None or _length(messages) <= rule.max_characters


def _length(messages: Sequence[ModelMessage]) -> int:
    """How many characters the texts of a conversation have."""
    parts = [part for message in to_json(messages) for part in message["parts"]]
    contents = [part.get("content") for part in parts]
    return sum(len(content) if isinstance(content, str) else len(str(content or "")) for content in contents)


def _of_function(reference: str, names: Sequence[str], messages: Sequence[ModelMessage]) -> str:
    module, _, qualname = reference.partition(":")
    function: Any = importlib.import_module(module)
    for part in qualname.split("."):
        function = getattr(function, part)
    name = function(list(messages))
    if name in names:
        return name
    raise AgentConfigurationError(
        f"the function {reference} of a router names no model of it",
        expected=f"one of {', '.join(map(repr, names))}",
        found=repr(name),
        fix="return one of the names",
    )


async def _judged(
    ctx: RunnerContext, judge: str, models: Mapping[str, str], messages: Sequence[ModelMessage]
) -> str:
    described = "\n".join(f"- {name}: {purpose}" for name, purpose in models.items())
    question = (
        f"Which of these models shall answer the request below?\n{described}\n\n{text_of_user(messages)}"
    )
    kind: Any = Literal[tuple(models)]  # pyright: ignore[reportInvalidTypeForm]
    resource = ctx.get_resource(judge, ResourceType.CHAT_MODEL)
    return (await resource.chat(ctx, question, output_type=kind)).output
