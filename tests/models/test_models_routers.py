"""Routers that lead to routers, in circles, or to what is not there; and what their judges use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RunnerContext, UsageLimits, action
from flink_agents.api.errors import (
    ActionFailedError,
    AgentConfigurationError,
    AgentDefinitionError,
    CyclicResourceError,
    MissingResourceError,
    ResourceUnavailableError,
    UsageLimitExceededError,
)
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]
MODELS: dict[str, ScriptedModel] = {}


def first() -> Any:
    return MODELS["first"]


def second() -> Any:
    return MODELS["second"]


def to(*models: str, **how: Any) -> ChatModel:
    """A router to the first of these models."""
    how = how or {"rules": [{"model": models[0]}]}
    return ChatModel(router={"models": dict.fromkeys(models, ""), **how})


class Talker(Agent):
    """Asks ``main``."""

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("main", event.input, limits=UsageLimits(requests=2))
        return OutputEvent(output=(result.output, result.model, result.usage.requests))


def talker(**models: ChatModel) -> Agent:
    """The agent with these chat models, and with two that have scripts."""
    agent = Talker()
    for name, model in {"first": FIRST, "second": ChatModel(clazz=second), **models}.items():
        agent.add_resource(name, "chat_model", model)
    return agent


def ask_router(make: Make, models: dict[str, ChatModel], config: Any = None, **scripts: list[Any]) -> Any:
    MODELS.clear()
    MODELS.update({name: ScriptedModel(scripts.get(name, [])) for name in ("first", "second")})
    harness = make(talker(**models), config=config or {}, crash="everywhere", forced_serialization=False)
    (output,) = harness.push("law")
    for model in MODELS.values():
        model.assert_complete()
    return output


JUDGED = ToolCall("final_result", {"response": "second"})
FIRST = ChatModel(clazz=first)
FAILING = ChatModel(clazz=first, fallback=["backup"])


def test_a_router_may_lead_to_another_one(agent_harness: Make) -> None:
    models = {"main": to("inner", "first"), "inner": to("second", "first")}
    assert ask_router(agent_harness, models, second=["good"]) == ("good", "second", 1)


def test_a_router_may_stand_in_for_a_model_that_fails(agent_harness: Make) -> None:
    refused = [ModelHTTPError(400, "first", "no")]
    models = {"main": FAILING, "backup": to("second")}
    assert ask_router(agent_harness, models, first=refused, second=["fine"]) == ("fine", "second", 1)


def test_what_a_judge_uses_counts(agent_harness: Make) -> None:
    models = {"main": to("second", judge="first")}
    assert ask_router(agent_harness, models, first=[JUDGED], second=["good"]) == ("good", "second", 2)
    with pytest.raises(ActionFailedError) as caught:
        ask_router(agent_harness, models, first=[JUDGED], second=[ToolCall("nothing")])
    assert isinstance(caught.value.__cause__, UsageLimitExceededError)


@pytest.mark.parametrize(
    ("models", "error"),
    [
        ({"main": to("main")}, CyclicResourceError),
        ({"main": to("other"), "other": to("main")}, CyclicResourceError),
        ({"main": to("first", judge="main")}, CyclicResourceError),
        ({"main": FAILING, "backup": to("main")}, CyclicResourceError),
        ({"main": to("nobody")}, MissingResourceError),
        ({"main": to("first", judge="nobody")}, MissingResourceError),
    ],
)
def test_what_leads_nowhere_is_refused_when_it_is_compiled(models: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        compile_agent(talker(**models))


def test_options_of_a_job_cannot_lead_in_circles_either(agent_harness: Make) -> None:
    config = {"chat-models.other.router": to("main").arguments["router"]}
    with pytest.raises(ActionFailedError, match="leads back to itself") as caught:
        ask_router(agent_harness, {"main": to("other"), "other": to("first")}, config)
    assert isinstance(caught.value.__cause__, AgentConfigurationError)


def test_a_wrong_expression_is_refused_where_it_is_written() -> None:
    with pytest.raises(AgentDefinitionError, match="not a regular expression"):
        to("first", rules=[{"model": "first", "contains": "(("}])


@pytest.mark.parametrize("function", ["no.such.module:choose", f"{__name__}:no_such_function"])
def test_a_function_that_is_not_there(agent_harness: Make, function: str) -> None:
    with pytest.raises(ActionFailedError, match="the function of a router cannot be imported") as caught:
        ask_router(agent_harness, {"main": to("first", function=function)})
    assert isinstance(caught.value.__cause__, ResourceUnavailableError)
