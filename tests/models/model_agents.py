"""Agents for the tests of models, and their answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai.exceptions import ModelRetry

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    tool,
)
from flink_agents.testing.models import Reply, ServedRequest, ToolCall

KEY_VARIABLE = "MODEL_TEST_KEY"
KEY = "sk-never-to-be-seen-0123456789"


class Verdict(BaseModel):
    """What is thought of an order."""

    good: bool
    reason: str = ""


class Analyst(Agent):
    """Asks a model of the server with two tools; options of the job say where the server is."""

    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel(
            "openai-chat:gpt-5-mini",
            api_key={"env": KEY_VARIABLE},
            instructions="You judge orders.",
            tools=["price_of", "stock_of"],
            retry={"initial_interval": 0.01, "max_attempts": 3},
        )

    @tool
    def price_of(self, item: str) -> float:
        """Say what an item costs.

        Args:
            item: Name of the item.
        """
        return 2.5 * len(item)

    @tool
    async def stock_of(self, item: str) -> int:
        """Say how many there are."""
        if item == "?":
            raise ModelRetry("which item?")
        return len(item)

    @action(InputEvent)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("analyst", event.input)
        return OutputEvent(output=result.output)


class Judge(Analyst):
    """The same, with an answer of a type."""

    @action(InputEvent)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("analyst", event.input, output_type=Verdict, output_mode=self.mode)
        return OutputEvent(output=result.output.model_dump())

    def __init__(self, mode: str = "tool") -> None:
        self.mode = mode


TOOL_REPLIES = [
    Reply(tool_calls=[ToolCall("price_of", {"item": "tea"}), ToolCall("stock_of", {"item": "tea"})]),
    Reply(tool_calls=[ToolCall("price_of", {"item": "coffee"})]),
    Reply("good"),
]
"""A conversation of three requests and three calls of tools."""


def by_history(request: ServedRequest) -> Reply:
    """The reply of ``TOOL_REPLIES`` that follows from what was said, and not from how often it was asked."""
    answers = [message for message in request.body["messages"] if message["role"] == "assistant"]
    return TOOL_REPLIES[len(answers)]


def options(server: Any, name: str = "analyst") -> dict[str, Any]:
    """Options of a job that asks the server."""
    return {f"chat-models.{name}.base_url": server.base_url}
