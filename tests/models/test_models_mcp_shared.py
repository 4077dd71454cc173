"""A connection to an MCP server that all keys share: one odd call or answer does not touch the others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from mcp.server.mcpserver import MCPServer as MemoryServer
from mcp_agents import free_port, wait_until
from mcp_servers import odd
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    mcp_server,
)
from flink_agents.api.errors import AgentsError
from flink_agents.models.engine import FlinkDurability, server_toolset
from flink_agents.testing import OperatorHarness
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

SCRIPT = Path(__file__).parent / "mcp_servers" / "odd.py"
TRANSPORTS = ["stdio", "http"]


class Shop(Agent):
    """Makes calls at once over one connection, and opens the server's gate when all but the first ended."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", timeout=30, retry={"max_attempts": 1})

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        server = ctx.mcp_server("shop")
        gate, calls = event.input
        calls = MADE if calls is None else calls

        async def call_server(name: str, *arguments: Any, **more: Any) -> Any:
            try:
                return await getattr(server, name)(*arguments, **more)
            except AgentsError as error:
                return f"{error.code}: {error.found}"

        waiting = asyncio.ensure_future(call_server("call_tool", "pay", how="wait"))
        # The first call is on its way, on the connection that the others share.
        while gate and "wait" not in calls_in(gate):
            await asyncio.sleep(0.01)
        answers = [await call_server(name, *arguments, **more) for name, arguments, more in calls]
        Path(gate, "gate").touch()
        return OutputEvent(output=[await waiting, *answers])


class Several(Shop):
    """Makes calls one after the other, all at once."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        async def call_server(how: str) -> Any:
            try:
                return await ctx.mcp_server("shop").call_tool("pay", how=how)
            except AgentsError as error:
                return f"{error.code}: {error.found}"

        return OutputEvent(output=await asyncio.gather(*map(call_server, event.input)))


def calls_in(folder: str) -> list[str]:
    file = Path(folder, "calls")
    return file.read_text("utf-8").splitlines() if file.exists() else []


@contextmanager
def shop(
    transport: str, agent: type[Shop] = Shop, stop: bool = False, **options: Any
) -> Iterator[tuple[OperatorHarness, str]]:
    """A harness whose server is a real one, and its folder; ``stop`` kills the server after a first call."""
    folder = mkdtemp(prefix="odd-")
    command = [str(SCRIPT), folder]
    settings: dict[str, Any] = {"command": sys.executable, "args": command, **options}
    process = None
    if transport == "http":
        port = free_port()
        process = subprocess.Popen([sys.executable, *command, "--http", str(port)])
        wait_until(lambda: "start" in calls_in(folder), "the server listens")
        settings = {"url": f"http://127.0.0.1:{port}/mcp", **options}
    config = {f"mcp-servers.shop.{name}": value for name, value in settings.items()}
    try:
        with OperatorHarness(agent(), config=config, forced_serialization=False, **UNFORCED) as harness:
            if stop and process is not None:
                harness.push(["fine"])
                process.kill()
                process.wait()
            yield harness, folder
    finally:
        if process is not None:
            process.kill()
            process.wait()


def answers_to(transport: str, *calls: Any, **options: Any) -> list[Any]:
    """The answer to each of some calls, after that of a call which waits on the same connection meanwhile."""
    with shop(transport, **options) as (harness, folder):
        [[waited, *answers]] = harness.push((folder, [list(call) for call in calls]))
        assert calls_in(folder).count("wait") == 1
        assert waited == "paid", answers
        return answers


def called(how: Any, tool: str = "pay") -> tuple[str, list[str], dict[str, Any]]:
    return "call_tool", [tool], {"how": how}


LINES = {how: "FA9203: " for how in odd.LINE_OF}


@pytest.mark.nightly
@each_case("transport", TRANSPORTS)
@each_case("how", [*odd.LINE_OF])
def test_an_answer_that_cannot_be_read_fails_its_call_at_once(how: str, transport: str) -> None:
    [answer, after] = answers_to(transport, called(how), called("fine"), response_limit=1_000_000)
    assert answer.startswith("FA9203: ")
    assert "gave no answer within" not in answer
    assert after == "paid"


class Thing:
    """Has no form in JSON."""


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(depth: int) -> list[Any]:
    return [] if depth == 0 else [nested(depth - 1)]


UNSENDABLE: dict[str, Any] = {
    "half of an emoji": "\ud83d",
    "another half": "a\udc00b",
    "half of an emoji from JSON": json.loads('"\\ud83d"'),
    "half of an emoji within": {"a": ["\ud83d"]},
    "half of an emoji as a name": {"\ud83d": 1},
    "bytes": b"\xff",
    "bytearray": bytearray(b"\xff"),
    "NaN": float("nan"),
    "infinity within": [{"a": float("inf")}],
    "set": {1, 2},
    "frozenset within": [frozenset("ab")],
    "object": Thing(),
    "class": Thing,
    "function": nested,
    "circular": circular(),
    "deep": nested(900),
    "deeper than a server reads": nested(250),
    "huge": 10**5000,
    "tuple as a name": {(1, 2): 3},
}
SENDABLE: dict[str, Any] = {
    "whole emoji": "\N{GRINNING FACE}",
    "controls": "\0\x1f\u2028\r\n",
    "large number": 10**400,
    "tuple": (1, 2),
    "numbers as names": {1: 2},
    "none": None,
    "nested": nested(50),
    "text as bytes": b"tea",
}


def test_an_argument_that_is_no_json_is_not_sent() -> None:
    for transport in TRANSPORTS:
        with shop(transport) as (harness, folder):
            calls = [called(value) for value in UNSENDABLE.values()]
            other_calls = [
                ("call_tool", ["pay\ud83d"], {}),
                ("call_tool", ["pay"], {"a\ud83d": 1}),
                ("get_prompt", ["hi"], {"customer": "\ud83d"}),
                ("get_prompt", ["\ud83d"], {}),
                ("read_resource", ["odd://\ud83d"], {}),
            ]
            # What is no JSON is no input of a job, either, so the action makes it.
            MADE[:] = [*calls, *other_calls, *(called(value) for value in SENDABLE.values())]
            [[waited, *answers]] = harness.push((folder, None))
            refused = answers[: len(calls) + len(other_calls)]
            sent = answers[len(calls) + len(other_calls) :]
            for name, answer in zip([*UNSENDABLE, *map(str, other_calls)], refused, strict=True):
                assert answer.startswith("FA9202: "), (transport, name, answer)
            assert sent == ["paid"] * len(SENDABLE)
            assert waited == "paid"
            # All of it was one connection, and no call that failed reached the server.
            assert len([line for line in calls_in(folder) if line == "start"]) == 1
            assert len(calls_in(folder)) == 2 + len(SENDABLE)


MADE: list[Any] = []


@each_case("transport", TRANSPORTS)
def test_messages_around_an_answer_do_not_touch_it(transport: str) -> None:
    kinds = [*odd.BEFORE, "flood of errors", "fine"]
    if transport == "http":
        # The library takes any answer, and what cannot be read, as that to the request of the stream.
        kinds = [how for how in kinds if how not in ("no messages", "answers to nobody")]
    with shop(transport) as (harness, folder):
        [[waited, *answers]] = harness.push((folder, [called(how) for how in kinds]))
        assert dict(zip(kinds, answers, strict=True)) == dict.fromkeys(kinds, "paid")
        assert waited == "paid"
        assert calls_in(folder).count("start") == 1


@each_case("how", ["closed", "closed within"])
def test_an_exchange_that_breaks_is_that_of_one_call(how: str) -> None:
    [answer, after] = answers_to("http", called(how), called("fine"))
    assert answer.startswith("FA9203: ")
    assert after == "paid"


RESULTS: list[tuple[str, str, Any, str | None]] = [
    ("pay", "no content", {}, "content"),
    ("pay", "null content", {"content": None}, "content"),
    ("pay", "text as content", "paid", "content"),
    ("pay", "a block without a type", "paid", "content"),
    ("pay", "a block of an unknown type", "paid", "content"),
    ("pay", "structured alone", {"paid": True}, "content"),
    ("pay", "structured list", "paid", "structuredContent"),
    ("pay", "old result", {"toolResult": "paid"}, "content"),
    ("declared", "structured alone", {"paid": True}, "content"),
    ("declared", "structured alone, wrong", {"paid": "yes"}, "content"),
    ("declared", "structured wrong", "paid", "'yes' is not of type 'boolean'"),
    ("declared", "structured missing", "paid", "did not return structured content"),
    ("impossible", "structured wrong", "paid", "Invalid schema"),
    ("impossible", "structured missing", "paid", "did not return structured content"),
    ("impossible", "fine", "paid", "did not return structured content"),
]


@each_case("transport", TRANSPORTS)
def test_a_result_that_is_not_declared_is_an_answer(transport: str) -> None:
    calls = [called(how, tool) for tool, how, _, _ in RESULTS]
    assert answers_to(transport, *calls) == [text for _, _, text, _ in RESULTS]
    strict = answers_to(transport, *calls, on_invalid_result="fail")
    for (tool, how, _, reason), answer in zip(RESULTS, strict, strict=True):
        assert str(answer).startswith("FA9204: "), (tool, how, answer)
        assert reason and reason in answer, (tool, how, answer)
    for policy in ("text", "fail"):
        [refused] = answers_to(transport, called("error without content"), on_invalid_result=policy)
        assert refused == 'FA9202: {"isError": true}'


def asks(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool with each argument in turn, and say what came of it."""
    returned = [part for message in messages for part in message.parts if part.part_kind != "user-prompt"]
    tool_results = [part for part in returned if part.part_kind in ("tool-return", "retry-prompt")]
    if len(tool_results) == 2:
        return ModelResponse(
            [TextPart(" | ".join(str(getattr(part, "content", "")) for part in tool_results))]
        )
    how = ASKED[0] if not tool_results else "fine"
    return ModelResponse([ToolCallPart("pay", json.dumps({"how": how}))])


ASKED: list[Any] = []
model = FunctionModel(asks)


class ByChat(Agent):
    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", timeout=30, retry={"max_attempts": 1})

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=f"{__name__}:model", tools=["shop"])

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", "go")).output)


class ByPydanticAI(Agent):
    """Runs a Pydantic AI agent with a toolset."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", timeout=30, retry={"max_attempts": 1})

    def __init__(self, user: str, folder: str) -> None:
        toolset = TOOLSETS[user](folder)
        self.agent = ModelAgent(
            model, name="clerk", toolsets=[toolset], capabilities=[FlinkDurability()], retries=3
        )

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run("go")).output)


def in_memory() -> MemoryServer:
    server = MemoryServer("shop")

    @server.tool()
    def pay(how: Any) -> str:
        return "paid"

    return server


TOOLSETS: dict[str, Callable[[str], Any]] = {
    "toolset of the server": lambda folder: server_toolset("shop"),
    "stdio of Pydantic AI": lambda folder: MCPToolset(
        StdioTransport(sys.executable, [str(SCRIPT), folder]), id="shop"
    ),
    "in memory": lambda folder: MCPToolset(in_memory(), id="shop"),
}


@each_case("user", ["chat", *TOOLSETS])
def test_a_model_is_told_that_its_argument_is_no_json(user: str) -> None:
    folder = mkdtemp(prefix="odd-")
    config = {"mcp-servers.shop.command": sys.executable, "mcp-servers.shop.args": [str(SCRIPT), folder]}
    for value in ("\ud83d", float("nan"), nested(250)):
        ASKED[:] = [value]
        with OperatorHarness(
            ByChat() if user == "chat" else ByPydanticAI(user, folder), config=config, **UNFORCED
        ) as harness:
            [output] = harness.push("go")
            assert "no JSON" in output or "nvalid JSON" in output
            assert output.endswith("| paid")


@pytest.mark.nightly
def test_a_call_that_never_left_is_not_unknown() -> None:
    with shop("stdio", Several, timeout=1) as (harness, _):
        # The server reads no further, so the pipe is full, and the last call stays here.
        [[deaf, large, last]] = harness.push(["deaf", "x" * 1_000_000, "fine"])
        assert deaf.startswith("FA9203: ")
        assert large.startswith("FA9203: ")
        assert last.startswith("FA9201: it was not sent: ")
    with shop("http", Several, stop=True) as (harness, folder):
        [answers] = harness.push(["fine", "fine", "fine"])
        assert [answer[:8] for answer in answers] == ["FA9201: "] * 3
        assert calls_in(folder) == ["start", "fine"]
