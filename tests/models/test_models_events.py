"""Requests by events: the built-in actions, in the plan and in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    ChatRequestEvent,
    ChatResponseEvent,
    InputEvent,
    OutputEvent,
    RequestedCall,
    ResourceDescriptor,
    RunnerContext,
    ToolRequestEvent,
    ToolResponseEvent,
    action,
    chat_model,
    tool,
)
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, compile_with_code
from flink_agents.plan.binding.needs import makes_durable_steps
from flink_agents.plan.show import to_mermaid
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]
SCRIPT: list[ScriptedModel] = []


def model() -> Any:
    return SCRIPT[0]


class Asking(Agent):
    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["double"])

    @tool
    def double(self, number: int) -> int:
        """Twice the number."""
        return 2 * number

    @action(InputEvent)
    def ask(self, event: InputEvent, ctx: RunnerContext) -> ChatRequestEvent:
        return ChatRequestEvent(
            model="analyst", messages=event.input, tag="t", run_tools=event.input != "self"
        )

    @action(ChatResponseEvent)
    def told(self, event: ChatResponseEvent, ctx: RunnerContext) -> Any:
        assert event.request_id == event.upstream_event_id
        if not event.tool_calls:
            return OutputEvent(output=(event.output, event.tag, event.model, event.usage.requests))
        ctx.sensory_memory.set("messages", event.messages)
        return ToolRequestEvent(calls=event.tool_calls, tag=3)

    @action(ToolResponseEvent)
    def called(self, event: ToolResponseEvent, ctx: RunnerContext) -> OutputEvent:
        results = [(result.id, result.kind, result.content) for result in event.results]
        return OutputEvent(output=(results, event.tag, len(ctx.sensory_memory.get("messages"))))


class Plain(Agent):
    @action(InputEvent)
    def read(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)


class Own(Asking):
    @action(ToolRequestEvent)
    def call(self, event: ToolRequestEvent, ctx: RunnerContext) -> ToolResponseEvent:
        return ToolResponseEvent(request_id="", results=())


def names(agent: Any) -> list[str]:
    return [plan_action.name for plan_action in compile_agent(agent).actions]


def test_an_agent_has_the_actions_that_it_needs() -> None:
    assert names(Asking()) == ["ask", "told", "called", "answer_chat_request", "answer_tool_request"]
    assert names(Plain()) == ["read"]
    assert names(Own()) == ["ask", "told", "called", "call", "answer_chat_request"]


def test_they_stand_in_plan_and_graph() -> None:
    plan = compile_agent(Asking())
    chat = plan.actions[3]
    assert (chat.trigger_classes, chat.emits) == (("ChatRequestEvent",), ("ChatResponseEvent",))
    assert str(chat.function) == "flink_agents.models.agents.actions:answer_chat_request"
    assert "answer_chat_request" in to_mermaid(plan)


@pytest.mark.parametrize("with_code", [True, False])
def test_they_are_bound(with_code: bool) -> None:
    plan = AgentPlan.from_json(compile_agent(Asking()).to_json())
    bound = LoadedAgent(plan, compile_with_code(Asking())[1] if with_code else None)
    assert bound.actions[3].is_async


def test_a_chat(agent_harness: Make) -> None:
    SCRIPT[:] = [ScriptedModel([ToolCall("double", {"number": 4}), "eight"])]
    harness = agent_harness(Asking(), crash="everywhere", forced_serialization=False)
    assert harness.push("go") == [("eight", "t", "analyst", 2)]
    assert SCRIPT[0].count == 2


def test_tools_that_the_author_calls(agent_harness: Make) -> None:
    calls = [ToolCall("double", {"number": 4}, id="a"), ToolCall("double", {"number": "x"}, id="b")]
    SCRIPT[:] = [ScriptedModel([Reply(tool_calls=calls)])]
    harness = agent_harness(Asking(), crash="everywhere", forced_serialization=False)
    ((results, tag, messages),) = harness.push("self")
    assert results[0] == ("a", "success", 8)
    assert results[1][:2] == ("b", "retry")
    assert (tag, messages) == (3, 2)


def test_events_are_plain_data() -> None:
    event = ToolRequestEvent(calls=(RequestedCall(name="double", arguments={"number": 1}, id="a"),), tag=1)
    assert ToolRequestEvent.model_validate_json(event.model_dump_json()) == event


def test_they_make_durable_calls() -> None:
    class OnlyTools(Agent):
        @tool
        def double(self, number: int) -> int:
            """Twice the number."""
            return 2 * number

        @action(InputEvent)
        def ask(self, event: InputEvent, ctx: RunnerContext) -> ToolRequestEvent:
            return ToolRequestEvent(calls=(RequestedCall(name="double"),))

        @action(ToolResponseEvent)
        def told(self, event: ToolResponseEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=event.results)

    assert makes_durable_steps(LoadedAgent(*compile_with_code(OnlyTools())))


def test_an_unknown_tool_is_a_wrong_call_and_names_those_that_are_there(agent_harness: Make) -> None:
    SCRIPT[:] = [ScriptedModel([Reply(tool_calls=[ToolCall("dobule"), ToolCall("double", {"number": 1})])])]
    ((results, *_),) = agent_harness(Asking(), crash=None, forced_serialization=False).push("self")
    assert [kind for _, kind, _ in results] == ["retry", "success"]
    assert results[0][2] == "There is no tool 'dobule'. The tools are: 'double'."
