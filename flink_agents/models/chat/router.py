"""Chooses one of several chat models for a conversation: by rules, by a function, or by a judge."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage

from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.models.chat import ChatUsage, Router, RouteRule
from flink_agents.api.resources import ResourceType
from flink_agents.models.chat.messages.converting import text_of_user, to_json
from flink_agents.models.setup.classes import import_object


@dataclass(frozen=True)
class Choice:
    """A chat model that routers chose.

    Attributes:
        model: Name of the chosen chat model.
        used: Usage of the judges that the routers asked.
    """

    model: str
    used: ChatUsage = ChatUsage()


async def choose_model(ctx: RunnerContext, name: str, messages: Sequence[ModelMessage]) -> Choice:
    """Choose the chat model for a conversation; waits for the answers of judges.

    Rules and functions are code of the action: their result must depend on the messages alone. The request to
    a judge is recorded.

    Args:
        ctx: The context of the action.
        name: Name of a router, or of a chat model, which is the choice then.
        messages: The messages of the conversation so far.

    Raises:
        AgentConfigurationError: A function returned a name that the router does not have, or a router leads
            back to itself.
    """
    choice = Choice(name)
    passed = list[str]()
    while (router := _router_of(ctx, choice.model)) is not None:
        if choice.model in passed:
            raise AgentConfigurationError(
                f"the router {choice.model!r} leads back to itself",
                expected="routers that lead to a chat model",
                found=" -> ".join([*passed, choice.model]),
                fix="let one of them name a chat model with a provider",
            )
        passed.append(choice.model)
        choice = await _ask_router(ctx, router, messages, choice.used)
    return choice


def _router_of(ctx: RunnerContext, name: str) -> Router | None:
    """Return the router of a chat model; None if it has a model of its own."""
    return ctx.get_resource(name, ResourceType.CHAT_MODEL).spec(ctx).router


async def _ask_router(
    ctx: RunnerContext, router: Router, messages: Sequence[ModelMessage], used: ChatUsage
) -> Choice:
    """Return the choice of one router; ``used`` is the usage of the judges so far."""
    names = list(router.models)
    if router.judge is not None:
        return await _ask_judge(ctx, router.judge, router.models, messages, used)
    if router.function is not None:
        return Choice(_call_function(router.function, names, messages), used)
    for rule in router.rules:
        if _rule_holds(rule, messages):
            return Choice(rule.model, used)
    return Choice(names[-1], used)


def _rule_holds(rule: RouteRule, messages: Sequence[ModelMessage]) -> bool:
    """Return True if all conditions of a rule hold for a conversation."""
    text = text_of_user(messages)
    if rule.contains is not None and re.search(rule.contains, text) is None:
        return False
    return rule.max_characters is None or _text_length(messages) <= rule.max_characters


def _text_length(messages: Sequence[ModelMessage]) -> int:
    """Return the number of characters of a conversation's texts."""
    parts = [part for message in to_json(messages) for part in message["parts"]]
    contents = [part.get("content") for part in parts]
    return sum(len(content) if isinstance(content, str) else len(str(content or "")) for content in contents)


def _call_function(reference: str, names: Sequence[str], messages: Sequence[ModelMessage]) -> str:
    """Return the name that a router's function chooses.

    Raises:
        AgentConfigurationError: It is not one of ``names``.
    """
    name = import_object(reference, "the function of a router")(list(messages))
    if name in names:
        return name
    raise AgentConfigurationError(
        f"the function {reference} of a router returned a name that is not a model of the router",
        expected=f"one of {', '.join(map(repr, names))}",
        found=repr(name),
        fix="return one of the names",
    )


async def _ask_judge(
    ctx: RunnerContext,
    judge: str,
    models: Mapping[str, str],
    messages: Sequence[ModelMessage],
    used: ChatUsage,
) -> Choice:
    """Let a chat model choose one of ``models``, which has the purpose of each by name."""
    purposes = "\n".join(f"- {name}: {purpose}" for name, purpose in models.items())
    question = (
        f"Which of these models shall answer the request below?\n{purposes}\n\n{text_of_user(messages)}"
    )
    kind: Any = Literal[tuple(models)]  # pyright: ignore[reportInvalidTypeForm]
    resource = ctx.get_resource(judge, ResourceType.CHAT_MODEL)
    result = await resource.chat(ctx, question, output_type=kind)
    return Choice(result.output, used + result.usage)
