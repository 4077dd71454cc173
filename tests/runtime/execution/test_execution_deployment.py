"""Errors of deployment are no bad data: they fail the job, whatever ``on_error`` says."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, ResourceDescriptor, ResourceType
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


class Nobody(Event):
    """No action takes it."""


def send(ctx: Any, event: Event) -> None:
    """Send an event where the code of the action does not show it."""
    ctx.send_event(event)


def emits_unknown(event: Any, ctx: Any) -> None:
    send(ctx, Nobody())


def emits_named(event: Any, ctx: Any) -> None:
    send(ctx, NamedEvent(type="Nobody"))


def lacks_a_module(event: Any, ctx: Any) -> None:
    importlib.import_module("module_that_is_nowhere")


def lacks_a_model(event: Any, ctx: Any) -> None:
    ctx.get_resource("model", ResourceType.CHAT_MODEL_CONNECTION)


async def in_a_task(event: Any, ctx: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(lacks_a_module, event, ctx))


async def asks_who_lacks_a_module(event: Any, ctx: Any) -> OutputEvent:
    sub_agent = Agent(name="asked").add_action("act", [InputEvent], lacks_a_module)
    return OutputEvent(output=await ctx.call_agent(sub_agent, InputEvent(input=event.input)))


async def asks_who_lacks_a_resource(event: Any, ctx: Any) -> OutputEvent:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.chat("analyst", "hi"))

    sub_agent = Agent(name="asked").add_action("act", [InputEvent], act)
    return OutputEvent(output=await ctx.call_agent(sub_agent, InputEvent(input=event.input)))


async def asks_who_waits_for_nothing(event: Any, ctx: Any) -> OutputEvent:
    sub_agent = Agent(name="asked").add_action("act", [InputEvent], is_bad_data)
    sub_agent.add_action("never", [Nobody], is_bad_data)
    return OutputEvent(output=await ctx.call_agent(sub_agent, InputEvent(input=event.input)))


def is_bad_data(event: Any, ctx: Any) -> None:
    raise KeyError(event.input)


def deployed_agent(action: Callable[..., Any], policy: str) -> Agent:
    agent = Agent(name="deployed").add_action("act", [InputEvent], action, on_error=policy)
    return agent.add_resource(
        "model", "chat_model_connection", ResourceDescriptor(clazz="module_that_is_nowhere:make")
    )


@each_case("policy", ["dead-letter", "ignore", "retry"])
@each_case(
    "action",
    [
        emits_unknown,
        emits_named,
        lacks_a_module,
        lacks_a_model,
        in_a_task,
        asks_who_lacks_a_module,
        asks_who_lacks_a_resource,
        asks_who_waits_for_nothing,
    ],
    ids=lambda action: action.__name__,
)
def test_no_policy_passes_by_what_the_deployment_lacks(action: Callable[..., Any], policy: str) -> None:
    job = OperatorHarness(deployed_agent(action, policy))
    with pytest.raises(ActionFailedError):
        job.push("a record")
    assert not job.dead_letters


def test_bad_data_follows_the_policy() -> None:
    job = OperatorHarness(deployed_agent(is_bad_data, "dead-letter"))
    job.push("a record")
    assert [letter.error_type for letter in job.dead_letters] == ["KeyError"]
