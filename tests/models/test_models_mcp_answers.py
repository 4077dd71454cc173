"""What MCP servers answer: changed at every place of its JSON, too large, or not at all."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import QUICK, Counts, Direct, by_stdio
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from raw_mcp import LISTED, raw_server

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
from flink_agents.models.engine import FlinkDurability, server_toolset
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once


def pays(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the first tool once, and say what it returned."""
    if len(messages) > 1 or not info.function_tools:
        return ModelResponse([TextPart(str(getattr(messages[-1].parts[-1], "content", "nothing")))])
    return ModelResponse([ToolCallPart(info.function_tools[0].name, {"how": "well"})])


model = FunctionModel(pays)


class Lenient(Agent):
    """Lets a model use the server, or uses it itself."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(url="http://options-say-it/", retry={**QUICK, "max_attempts": 1}, timeout=2)

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:model", tools=["shop"])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if event.input == "direct":
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay", how="well"))
        return OutputEvent(output=(await ctx.chat("clerk", "go")).output)


def harness_of(agent: Agent, config: dict[str, Any]) -> OperatorHarness:
    return OperatorHarness(agent, config=config, crash=None, forced_replay=False, forced_serialization=False)


def server_options(url: str, **options: Any) -> dict[str, Any]:
    return {f"mcp-servers.shop.{name}": value for name, value in {"url": url, **options}.items()}


# -- every place of an answer -------------------------------------------------------------


def changed(body: Any, path: tuple[Any, ...], to: Any) -> Any:
    changed_body = deepcopy(body)
    place = changed_body
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = to
    return changed_body


# -- how much is read ---------------------------------------------------------------------


def large(size: int) -> bytes:
    result = {"content": [{"type": "text", "text": "x" * size}], "isError": False}
    return json.dumps({"jsonrpc": "2.0", "id": 2, "result": result}).encode()


@pytest.mark.parametrize("way", ["plain", "gzip"])
def test_an_answer_is_read_up_to_a_limit(way: str) -> None:
    with (
        raw_server() as (raw, url),
        harness_of(Lenient(), server_options(url, response_limit=1_000_000)) as harness,
    ):
        raw.answers["tools/call"] = large(3_000_000) if way == "plain" else gzip.compress(large(3_000_000))
        raw.headers = {} if way == "plain" else {"content-encoding": "gzip"}
        harness.push("direct")
        [letter] = harness.dead_letters
        assert letter.error_type == "MCPOutcomeUnknownError"
        assert len(raw.calls) == 1


# -- calls whose outcome nobody knows -----------------------------------------------------


def slow_once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse([TextPart("told")])
    return ModelResponse([ToolCallPart("slow", {"seconds": 60})])


slow_model = FunctionModel(slow_once)


def order(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse([TextPart("ordered")])
    return ModelResponse([ToolCallPart("order", {"item": "tea", "number": 1})])


class OfServer(Agent):
    """Runs a whole agent that uses the server of the agent on the stream."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", retry=QUICK, timeout=20)

    def __init__(self) -> None:
        self.agent = ModelAgent(
            slow_model, name="worker", toolsets=[server_toolset("shop")], capabilities=[FlinkDurability()]
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run("go")).output)


class Hasty(Agent):
    """Gives up before the server does, and tries again."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", retry=QUICK, timeout=60)

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:slow_model", tools=["shop"])

    @action(
        InputEvent,
        on_error=OnError.DEAD_LETTER,
        timeout=8,
        retry=RetryPolicy(initial_interval=0.001, max_attempts=2),
    )
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", "go")).output)


def settle(harness: OperatorHarness) -> None:
    harness.push("go")
    for _ in range(50):
        if harness.outputs or harness.dead_letters:
            return
        harness.advance_time(1000)


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("kind", ["of the server", "cancelled"])
def test_a_call_with_an_unknown_outcome_is_made_once(tmp_path: Path, kind: str) -> None:
    counts = Counts(tmp_path)
    agent: Agent = OfServer() if kind == "of the server" else Hasty()
    timeout = {"timeout": 1.5} if kind == "of the server" else {}
    with harness_of(agent, by_stdio(counts, **timeout)) as harness:
        settle(harness)
        [letter] = harness.dead_letters
        assert letter.error_type == "MCPOutcomeUnknownError"
    assert len([line for line in counts.lines if line.startswith("slow")]) == 1


class HastyDirect(Agent):
    """Calls a tool itself, gives up before the server does, and tries again."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(url="http://options-say-it/", retry={**QUICK, "max_attempts": 1}, timeout=60)

    @action(
        InputEvent,
        on_error=OnError.DEAD_LETTER,
        timeout=2,
        retry=RetryPolicy(initial_interval=0.001, max_attempts=2),
    )
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay", how="well"))


@pytest.mark.nightly
def test_a_call_of_an_action_that_was_cancelled_is_made_once_unless_it_may_be_repeated() -> None:
    idempotent = changed(LISTED, ("tools", 0, "annotations", "idempotentHint"), True)
    reading = changed(LISTED, ("tools", 0, "annotations"), {"readOnlyHint": True})
    for listed, options, calls in (
        (LISTED, {}, 1),
        (LISTED, {"tools": ["other"]}, 1),
        (changed(LISTED, ("tools",), []), {}, 1),
        (idempotent, {}, 2),
        (reading, {}, 2),
        (LISTED, {"idempotent": ["p*"]}, 2),
        (LISTED, {"idempotent": True}, 2),
    ):
        with raw_server() as (raw, url), harness_of(HastyDirect(), server_options(url, **options)) as harness:
            raw.hangs = 1
            raw.answers["tools/list"] = listed
            settle(harness)
            raw.freed.set()
            assert len(raw.calls) == calls, (listed, options)
            if calls == 1:
                [letter] = harness.dead_letters
                assert letter.error_type == "MCPOutcomeUnknownError"
                assert "the action was cancelled during the call" in letter.error_message
            else:
                assert harness.outputs == ["paid"]
                [key] = {call["_meta"]["flink-agents/idempotency-key"] for call in raw.calls}
                assert key


class OfLibrary(Agent):
    """Runs a whole agent with a toolset of pydantic-ai."""

    def __init__(self, url: str, slow: bool) -> None:
        toolset = MCPToolset(url, id="shop", read_timeout=1.5 if slow else 60)
        self.agent = ModelAgent(
            slow_model if slow else FunctionModel(order),
            name="worker",
            toolsets=[toolset],
            capabilities=[FlinkDurability()],
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run("go")).output)


def test_a_toolset_of_pydantic_ai_sends_keys_and_repeats_nothing(tmp_path: Path) -> None:
    from mcp_agents import served as process

    counts = Counts(tmp_path)
    with process(counts, "http") as server:
        with harness_of(OfLibrary(server.url, slow=False), {}) as harness:
            settle(harness)
            assert harness.outputs == ["ordered"]
        [line] = [line for line in counts.lines if line.startswith("order")]
        assert len(line.split()[3]) == 32
        with harness_of(OfLibrary(server.url, slow=True), {}) as harness:
            settle(harness)
            [letter] = harness.dead_letters
            assert letter.error_type == "ToolOutcomeUnknownError"
    assert len([line for line in counts.lines if line.startswith("slow")]) == 1


@each_case(
    ("status", "headers", "calls", "error"),
    [
        (429, {}, 2, "MCPServerUnavailableError"),
        (503, {"retry-after": "0"}, 2, "MCPServerUnavailableError"),
        (503, {}, 1, "MCPOutcomeUnknownError"),
        (503, {"retry-after": "soon"}, 1, "MCPOutcomeUnknownError"),
        (502, {"retry-after": "0"}, 1, "MCPOutcomeUnknownError"),
        (504, {}, 1, "MCPOutcomeUnknownError"),
        (500, {}, 1, "MCPOutcomeUnknownError"),
        (400, {}, 1, "MCPRequestError"),
    ],
)
def test_a_call_is_repeated_if_its_status_says_that_it_was_not_begun(
    status: int, headers: dict[str, str], calls: int, error: str
) -> None:
    options = {"retry": {**QUICK, "max_attempts": 2}}
    with raw_server() as (raw, url), harness_of(Lenient(), server_options(url, **options)) as harness:
        raw.status = status
        raw.headers = headers
        settle_direct(harness)
        [letter] = harness.dead_letters
        assert (len(raw.calls), letter.error_type) == (calls, error)


@each_case("status", [500, 502, 503, 504])
def test_an_unknown_outcome_stays_one_if_the_action_is_tried_again(status: int) -> None:
    with raw_server() as (raw, url), harness_of(HastyDirect(), server_options(url)) as harness:
        raw.status = status
        settle_direct(harness)
        [letter] = harness.dead_letters
        assert (len(raw.calls), letter.error_type) == (1, "MCPOutcomeUnknownError")


def settle_direct(harness: OperatorHarness) -> None:
    harness.push("direct")
    while not harness.dead_letters and not harness.outputs:
        harness.advance_time(1000)


def test_one_call_is_one_key_in_all_its_attempts() -> None:
    with raw_server() as (raw, url), harness_of(Lenient(), server_options(url)) as harness:
        harness.push("direct")
        harness.push("direct")
    keys = [call["_meta"]["flink-agents/idempotency-key"] for call in raw.calls]
    assert len(set(keys)) == 2
    assert issubclass(Direct, Agent)
