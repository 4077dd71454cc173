"""Where an agent of pydantic-ai cannot be recorded, or waits for somebody: refused by name, or answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent as ModelAgent, DeferredToolRequests, DeferredToolResults, Tool, ToolDenied
from pydantic_ai.capabilities import HandleDeferredToolCalls, RequestInput
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import ActionFailedError, AgentNotDurableError, ApprovalUnavailableError
from flink_agents.models.engine import FlinkDurability, action_of, kept_messages
from flink_agents.models.engine.model_loop import on_model_loop
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]
DONE: list[str] = []
ASKED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()
    ASKED.clear()


def refund(order: str) -> str:
    """Refund an order."""
    DONE.append(order)
    return f"refunded {order}"


def last_content(messages: list[Any]) -> str:
    return str(messages[-1].parts[0].content)


def agent(*capabilities: Any, output_type: Any = str, lines: Any = None) -> ModelAgent[Any, Any]:
    return ModelAgent(
        ScriptedModel([ToolCall("refund", {"order": "7"}), last_content] if lines is None else lines),
        name="refunds",
        tools=[Tool(refund, requires_approval=True)],
        output_type=output_type,
        capabilities=[FlinkDurability(), *capabilities],
    )


# -- where nothing can be recorded -----------------------------------------------------------


def run_sync(question: str) -> str:
    """Run the agent as code does that cannot await, and close the loop that pydantic-ai leaves behind."""
    try:
        return refunds.run_sync(question).output
    finally:
        asyncio.get_event_loop_policy().get_event_loop().close()
        asyncio.set_event_loop(None)


class Def(Agent):
    @action(InputEvent)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=run_sync("go"))


class Blocking(Agent):
    @action(InputEvent, blocking=True)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=asyncio.run(refunds.run("go")).output)


class Hidden(Agent):
    """Nothing in the code of the action shows that it runs an agent."""

    @action(InputEvent)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=globals()["run_" + "sync"]("go"))


class Thread(Agent):
    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await asyncio.to_thread(run_sync, "go")))


class Yields(Agent):
    @action(InputEvent)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> Any:
        yield OutputEvent(output=run_sync("go"))


refunds = agent(lines=["done"] * 9)


@pytest.mark.parametrize("kind", [Def, Blocking, Hidden, Thread, Yields])
def test_a_run_that_nothing_records_is_refused(agent_harness: Make, kind: type[Agent]) -> None:
    with pytest.raises(ActionFailedError, match="the action 'decide' runs the agent 'refunds'") as failed:
        agent_harness(kind(), forced_serialization=False).push("go")
    assert isinstance(failed.value.__cause__, AgentNotDurableError)


def whole(question: str) -> str:
    """A durable function: all that it does is recorded as one call."""
    ASKED.append(question)
    return run_sync(question)


class OneCall(Agent):
    @action(InputEvent)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(whole, event.input))


@pytest.mark.own_conditions
def test_a_whole_run_may_be_one_durable_call(agent_harness: Make) -> None:
    harness = agent_harness(OneCall(), crash="everywhere", forced_serialization=False)
    assert harness.push("go") == ["done"]
    assert ASKED == ["go"]


def test_outside_of_actions_it_runs_as_without() -> None:
    assert run_sync("go") == "done"


# -- approvals -------------------------------------------------------------------------------


def action_with(made: ModelAgent[Any, Any]) -> Agent:
    class Refunds(Agent):
        decide = action_of(made, InputEvent)

    return Refunds()


def test_a_tool_that_nobody_approves_ends_the_run_by_name(agent_harness: Make) -> None:
    with pytest.raises(ActionFailedError, match="needs an approval") as failed:
        agent_harness(action_with(agent()), forced_serialization=False).push("go")
    assert isinstance(failed.value.__cause__, ApprovalUnavailableError)
    assert DONE == []


def approve(ctx: Any, requests: DeferredToolRequests, token: str) -> DeferredToolResults:
    ASKED.append(token)
    return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})


def hand_on(ctx: Any, requests: DeferredToolRequests, token: str) -> None:
    ASKED.append(token)


def deny(ctx: Any, requests: DeferredToolRequests) -> DeferredToolResults:
    return DeferredToolResults(approvals={call.tool_call_id: ToolDenied("no") for call in requests.approvals})


@pytest.mark.own_conditions
def test_who_answers_at_once_is_asked_once(agent_harness: Make) -> None:
    harness = agent_harness(
        action_with(agent(RequestInput(approve))), crash="everywhere", forced_serialization=False
    )
    assert harness.push("go") == ["refunded 7"]
    assert DONE == ["7"]
    assert len(ASKED) == 1


def test_a_question_that_is_handed_on_ends_the_run_by_name(agent_harness: Make) -> None:
    with pytest.raises(ActionFailedError, match="waits for an answer to 'deferred_tool_calls'") as failed:
        agent_harness(action_with(agent(RequestInput(hand_on))), forced_serialization=False).push("go")
    assert isinstance(failed.value.__cause__, ApprovalUnavailableError)


@pytest.mark.own_conditions
def test_code_of_the_action_may_answer(agent_harness: Make) -> None:
    harness = agent_harness(
        action_with(agent(HandleDeferredToolCalls(deny))), crash="everywhere", forced_serialization=False
    )
    assert harness.push("go") == ["no"]
    assert DONE == []


class LaterRun(Agent):
    """Ends with the requests, and goes on when an input brings the decision."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        memory = ctx.short_term_memory
        if memory.exists("asked"):
            results = DeferredToolResults(approvals={memory.get("asked"): event.input == "yes"})
            previous_messages = ModelMessagesTypeAdapter.validate_python(memory.get("messages"))
            return OutputEvent(
                output=(
                    await later.run(message_history=previous_messages, deferred_tool_results=results)
                ).output
            )
        result = await later.run(event.input)
        assert isinstance(result.output, DeferredToolRequests)
        (call,) = result.output.approvals
        memory.set("asked", call.tool_call_id)
        memory.set("messages", kept_messages(result.all_messages()))
        return OutputEvent(output=call.tool_name)


later = agent(
    output_type=[str, DeferredToolRequests], lines=[ToolCall("refund", {"order": "7"}), last_content]
)


@pytest.mark.own_conditions
def test_a_run_may_end_with_requests_that_a_later_one_answers(agent_harness: Make) -> None:
    harness = agent_harness(LaterRun(), crash="everywhere", forced_serialization=False)
    assert harness.push("go") == ["refund"]
    assert DONE == []
    assert harness.push("yes") == ["refunded 7"]
    assert DONE == ["7"]


# -- models over HTTP ------------------------------------------------------------------------


def test_subtasks_of_a_process_share_an_agent(
    agent_harness: Make, model_server: Callable[..., ModelServer]
) -> None:
    server = model_server(lambda request: Reply("hello"))
    client = httpx2.AsyncClient()
    provider = OpenAIProvider(base_url=server.base_url, api_key="none", http_client=client)
    shared = ModelAgent(OpenAIChatModel("any", provider=provider), name="s", capabilities=[FlinkDurability()])
    # Each has a loop of its own, and connections stay open in between.
    harnesses = [agent_harness(action_with(shared), forced_serialization=False) for _ in range(3)]
    for _ in range(2):
        for harness in harnesses:
            assert harness.push("go") == ["hello"]
    assert server.count == 6
    asyncio.run(on_model_loop(client.aclose))
