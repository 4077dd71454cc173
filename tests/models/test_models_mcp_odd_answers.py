"""An answer of an MCP server that is odd in any place is an answer, or an error of this package.

Each value of good answers is changed in each way, also in the envelope of JSON-RPC. The daily run takes each
kind of answer and each way once; ``--product`` takes all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from odd_answers import CHANGES, OURS, changed, places
from pydantic_ai import Agent as ModelAgent, exceptions
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from raw_mcp import INITIALIZED, raw_server

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RetryPolicy,
    RunnerContext,
    action,
    chat_model,
    mcp_server,
)
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from tests.suite.conditions import UNFORCED
from tests.suite.factors import factors

pytestmark = pytest.mark.own_conditions

TIMEOUT = 0.5

LISTED: dict[str, Any] = {
    "tools": [
        {
            "name": "pay",
            "title": "Pay",
            "description": "Pay.",
            "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]},
            "outputSchema": {"type": "object", "properties": {"paid": {"type": "boolean"}}},
            "annotations": {"title": "Pay", "readOnlyHint": False, "idempotentHint": True},
        }
    ],
    "nextCursor": None,
}
CALLED: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "paid", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///bill", "name": "bill"},
        {"type": "resource", "resource": {"uri": "file:///bill", "mimeType": "text/plain", "text": "2.50"}},
    ],
    "structuredContent": {"paid": True},
    "isError": False,
    "_meta": {"took": 1},
}
ANSWERS: dict[str, Any] = {"initialize": INITIALIZED, "tools/list": LISTED, "tools/call": CALLED}


def pays(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the first tool once, and say what it returned."""
    if len(messages) > 1 or not info.function_tools:
        return ModelResponse([TextPart(str(getattr(messages[-1].parts[-1], "content", "nothing")))])
    return ModelResponse([ToolCallPart(info.function_tools[0].name, {"how": "well"})])


model = FunctionModel(pays)


class Lenient(Agent):
    """Lets a model use the server, or uses it itself."""

    def __init__(self, url: str, direct: bool) -> None:
        self.url = url
        self.direct = direct

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(url=self.url, retry={"max_attempts": 1}, timeout=TIMEOUT, tools_ttl=0)

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:model", tools=["shop"])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if self.direct:
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay", how="well"))
        return OutputEvent(output=(await ctx.chat("clerk", "go")).output)


class Library(Agent):
    """Runs a whole agent with a toolset of pydantic-ai."""

    def __init__(self, url: str) -> None:
        once = RetryPolicy(max_attempts=1)
        toolset = MCPToolset(url, id="shop", read_timeout=TIMEOUT, init_timeout=TIMEOUT)
        self.agent = ModelAgent(
            model,
            name="worker",
            toolsets=[toolset],
            capabilities=[FlinkDurability(tool_calls={"retry": once})],
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run("go")).output)


USERS: dict[str, Callable[[str], Agent]] = {
    "chat": lambda url: Lenient(url, direct=False),
    "direct": lambda url: Lenient(url, direct=True),
    "library": Library,
}
MARK = 987654321


def enveloped(result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": MARK, "result": result}


def answering(text: str) -> Callable[[Any], bytes]:
    def answer(number: Any) -> bytes:
        return text.replace(str(MARK), str(number)).encode("utf-8", "surrogatepass")

    return answer


OF_THE_LIBRARY = {name for name, value in vars(exceptions).items() if isinstance(value, type)}
"""What the author of a whole agent catches: the errors that pydantic-ai documents."""


@pytest.mark.nightly(beyond=3)
@factors(user=USERS, method=ANSWERS, change=CHANGES, strength=1)
def test_a_change_anywhere_is_an_answer_or_an_error_of_ours(user: str, method: str, change: str) -> None:
    body = enveloped(ANSWERS[method])
    expected_errors = OURS | (OF_THE_LIBRARY if user == "library" else set())
    with raw_server() as (raw, url):
        for name, result in ANSWERS.items():
            raw.answers[name] = answering(json.dumps(enveloped(result)))
        # A connection is initialized once: each change of that takes an agent of its own.
        paths = [[path] for path in places(body)] if method == "initialize" else [list(places(body))]
        for path_group in paths:
            with OperatorHarness(USERS[user](url), **UNFORCED) as harness:
                for number, path in enumerate(path_group):
                    raw.answers[method] = answering(changed(body, path, change))
                    harness.push(str(path))
                    for _ in range(50):
                        if len(harness.outputs) + len(harness.dead_letters) > number:
                            break
                        harness.advance_time(1000)
                    assert len(harness.outputs) + len(harness.dead_letters) == number + 1, path
                assert {letter.error_type for letter in harness.dead_letters} <= expected_errors
