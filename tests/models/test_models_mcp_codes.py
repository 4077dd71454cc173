"""A call of an MCP tool that may have taken effect is not repeated, whatever says that it failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from mcp_agents import QUICK
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from raw_mcp import Raw, raw_server

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    mcp_server,
)
from flink_agents.models.engine import FlinkDurability, server_toolset
from flink_agents.models.mcp.failures import IDEMPOTENCY_KEY, FailureKind, HTTPAnswers, failure_of
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

UNKNOWN = {"MCPOutcomeUnknownError", "ToolOutcomeUnknownError"}


def obeys(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool again if it is told that the call failed, three times."""
    if len(messages) > 6:
        return ModelResponse([TextPart("given up")])
    return ModelResponse([ToolCallPart(info.function_tools[0].name, {"how": "well"})])


model = FunctionModel(obeys)
SERVER = {"retry": {**QUICK, "max_attempts": 2}, "timeout": 2}


class Shop(Agent):
    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(url="http://options-say-it/", **SERVER)


class ByAction(Shop):
    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay", how="well"))


class ByChat(Shop):
    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:model", tools=["shop"])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", "go")).output)


class ByToolset(Shop):
    """Runs a whole agent with the server of this package."""

    def __init__(self, url: str) -> None:
        toolsets: list[Any] = [server_toolset("shop")]
        self.agent = ModelAgent(model, name="worker", toolsets=toolsets, capabilities=[FlinkDurability()])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run("go")).output)


class ByLibrary(ByToolset):
    """Runs a whole agent with a toolset of pydantic-ai."""

    def __init__(self, url: str) -> None:
        toolsets: list[Any] = [MCPToolset(url, id="shop", read_timeout=2)]
        self.agent = ModelAgent(model, name="worker", toolsets=toolsets, capabilities=[FlinkDurability()])


AGENTS: dict[str, Callable[[str], Agent]] = {
    "action": lambda url: ByAction(),
    "chat": lambda url: ByChat(),
    "toolset": ByToolset,
    "library": ByLibrary,
}


def paid(way: str, answer: Callable[[Raw], None]) -> tuple[int, str]:
    """How often a server was called that answers like this, and the error that ended it."""
    with raw_server() as (raw, url):
        config = {"mcp-servers.shop.url": url}
        with OperatorHarness(AGENTS[way](url), config=config, forced_serialization=False) as harness:
            answer(raw)
            harness.push("go")
            while not harness.dead_letters and not harness.outputs:
                harness.advance_time(1000)
            letters = [letter.error_type for letter in harness.dead_letters]
            return len(raw.calls), letters[0] if letters else str(harness.outputs[0])


def code(number: int) -> Callable[[Raw], None]:
    def answer(raw: Raw) -> None:
        raw.answers["tools/call"] = {"jsonrpc": "2.0", "error": {"code": number, "message": "it failed"}}

    return answer


def status(number: int) -> Callable[[Raw], None]:
    def answer(raw: Raw) -> None:
        raw.status = number

    return answer


MAY_HAVE_BEGUN = [
    -32603,
    -32000,
    -32001,
    -32050,
    -32099,
    -32700,
    -32600,
    -32768,
    -32800,
    0,
    408,
    409,
    500,
    503,
]
"""Codes of JSON-RPC after which nobody knows what happened."""

NOT_BEGUN = [-32601, -32602, -32002, -32042, 1, 400, 404, 429, 1001, -1, -31999, -32769]
"""Codes of a server that rejected the call, or of a tool that said no by a code of its own."""


@each_case("way", [*AGENTS])
@each_case("number", [-32603, -32000, 0, 500])
def test_a_code_that_says_nothing_of_the_effect(way: str, number: int) -> None:
    calls, error = paid(way, code(number))
    assert calls == 1
    assert error in UNKNOWN


@each_case("way", [*AGENTS])
@each_case("number", [-32602, 1001])
def test_a_code_by_which_a_call_is_rejected(way: str, number: int) -> None:
    calls, error = paid(way, code(number))
    assert error not in UNKNOWN
    # A model is told, and calls again; the code of an action gets the exception.
    assert calls == (1 if way == "action" else calls)
    assert calls > 1 or way == "action"


@each_case("way", [*AGENTS])
@each_case("number", [500, 502, 504])
def test_a_status_that_says_nothing_of_the_effect(way: str, number: int) -> None:
    calls, error = paid(way, status(number))
    assert (calls, error in UNKNOWN) == (1, True)


def by_code(number: int, message: str = "it failed") -> Exception:
    from fastmcp.exceptions import McpError

    return McpError(number, message)


@each_case("number", [*MAY_HAVE_BEGUN, *NOT_BEGUN])
def test_the_codes(number: int) -> None:
    expected = FailureKind.UNKNOWN if number in MAY_HAVE_BEGUN else FailureKind.REFUSED
    assert failure_of(by_code(number), HTTPAnswers(), "key").kind is expected
    assert failure_of(by_code(number), HTTPAnswers(), of_call=True).kind is expected


@each_case("number", [-32603, 0, 500, -32602])
def test_a_code_of_a_request_that_has_no_effect_is_a_rejection(number: int) -> None:
    assert failure_of(by_code(number), HTTPAnswers()).kind is FailureKind.REFUSED


def body(key: str | None, method: str = "tools/call") -> bytes:
    meta = {} if key is None else {"_meta": {IDEMPOTENCY_KEY: key}}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": "pay", **meta}}
    ).encode()


ANSWERS: list[tuple[bytes, int]] = [
    (b"", 405),
    (b"", 403),
    (body("other"), 403),
    (body("other"), 429),
    (body(None, "tools/list"), 401),
    (body(None, "notifications/initialized"), 400),
    (b"{]", 404),
    (b'{"params": 7}', 404),
    (b'{"params": {"_meta": {"flink-agents/idempotency-key": [1]}}}', 404),
    (b"[" * 100_000, 404),
]
"""Answers to other requests of the connection, each of which says that nothing was done."""


@each_case("own", [None, 500, 403, 429])
def test_a_call_is_judged_by_the_answer_to_itself(own: int | None) -> None:
    expected = {
        None: FailureKind.UNKNOWN,
        500: FailureKind.UNKNOWN,
        403: FailureKind.REFUSED,
        429: FailureKind.NOT_DONE,
    }[own]
    for first in (True, False):
        http = HTTPAnswers()
        if first and own is not None:
            http.note_answer(body("mine"), own, None)
        for sent, number in ANSWERS:
            http.note_answer(sent, number, "0")
        if not first and own is not None:
            http.note_answer(body("mine"), own, None)
        error = by_code(-32603, "Server returned an error response")
        assert failure_of(error, http, "mine").kind is expected
        # The next attempt of the same call is not judged by this answer again.
        assert failure_of(error, http, "mine").kind is FailureKind.UNKNOWN


def test_errors_that_nobody_asks_for_take_a_bounded_place() -> None:
    http = HTTPAnswers()
    for number in range(3000):
        http.note_answer(body(str(number)), 500, None)
    assert sum(http.take_error(str(number)) is not None for number in range(3000)) <= 1000
    http.note_answer(body("last"), 403, None)
    assert http.take_error("last") == (403, None)
