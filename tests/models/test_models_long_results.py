"""A call that took effect is not invalid because of a long result, if it must not be repeated."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    action,
    chat_model,
)
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from tests.suite.tables import each_case

SCRIPT: list[ScriptedModel] = []
PAID: list[int] = []


def model() -> ScriptedModel:
    return SCRIPT[0]


def paid(amount: int) -> str:
    """Pay, and answer with a long receipt."""
    PAID.append(amount)
    return "receipt " * 100_000


async def paid_later(amount: int) -> str:
    """The same on the event loop."""
    return paid(amount)


async def paid_by_step(amount: int, ctx: RunnerContext) -> str:
    """The same as code of the action."""
    return await ctx.durable_execute_async(paid, amount)


FUNCTIONS = {function.__name__: function for function in (paid, paid_later, paid_by_step)}


def obeys(messages: list[ModelMessage]) -> Any:
    """Call again if the call is said to be invalid."""
    last: Any = messages[-1].parts[-1]
    if getattr(last, "outcome", "") == "retried":
        return ToolCall(last.tool_name, {"amount": 1})
    return str(last.content)


CASE: dict[str, Any] = {}


class Pays(Agent):
    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:model")

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        tool = Tool(FUNCTIONS[event.input], **CASE)
        return OutputEvent(output=(await ctx.chat("clerk", "pay", tools=[tool])).output)


@pytest.mark.own_conditions
@each_case("function", [*FUNCTIONS])
@each_case("options", [{"idempotent": False}, {}])
def test_a_payment_with_a_long_receipt(function: str, options: dict[str, Any]) -> None:
    PAID.clear()
    CASE.clear()
    CASE.update(options)
    SCRIPT[:] = [ScriptedModel([ToolCall(function, {"amount": 1}), obeys, obeys, obeys])]
    with OperatorHarness(Pays(), forced_replay=False, forced_restart=False, crash=None) as harness:
        if options:
            [output] = harness.push(function)
            assert output.startswith("The call was made; do not repeat it. The result has 800002 bytes")
        else:
            # It may be a search, so the model is asked to search for less.
            with pytest.raises(ActionFailedError, match="FA9101"):
                harness.push(function)
    assert len(PAID) == (1 if options else 3)
