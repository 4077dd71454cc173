"""Tools of MCP servers whose names are taken, in whole agents."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent, ToolOutput
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from raw_mcp import LISTED, Raw, raw_server

from flink_agents import Agent, InputEvent, MCPServer, OnError, OutputEvent, RunnerContext, action
from flink_agents.api.errors import DuplicateNameError
from flink_agents.models.engine import FlinkDurability, server_toolset
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once


def pay(how: str) -> str:
    """Be a function of the agent."""
    return "own"


def call_all(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call each tool once, and give the names and what they returned."""
    names = [tool.name for tool in info.function_tools]
    if len(messages) == 1 and names:
        return ModelResponse([ToolCallPart(name, {"how": "well"}) for name in names])
    returned = [str(vars(part).get("content")) for part in messages[-1].parts] if names else []
    summary = " ".join(f"{name}={content}" for name, content in zip(names, returned, strict=True)) or "none"
    if info.output_tools:
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"response": [summary]})])
    return ModelResponse([TextPart(summary)])


class Shop(Agent):
    """Runs an agent with a function, if it has one, and with servers, by a toolset of this kind."""

    def __init__(self, kind: str, urls: list[str], policy: Any, function: bool, typed: bool | str) -> None:
        toolsets: list[Any] = []
        for number, url in enumerate(urls):
            name = f"shop{number}"
            if kind == "of the job":
                self.add_resource(name, "mcp_server", MCPServer(url=url, on_name_taken=policy))
                toolsets.append(server_toolset(name))
            else:
                toolsets.append(MCPToolset(url, id=name))
        self.agent = ModelAgent(
            FunctionModel(call_all),
            name="worker",
            tools=[pay] if function else [],
            toolsets=toolsets,
            output_type=ToolOutput(list[str], name=typed)
            if isinstance(typed, str)
            else list[str]
            if typed
            else str,
            capabilities=[FlinkDurability(on_name_taken=policy)],
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


def named(name: str) -> dict[str, Any]:
    return {"tools": [{**LISTED["tools"][0], "name": name}]}


def run(kind: str, policy: str, names: list[str], function: bool, typed: bool | str) -> tuple[Any, list[Raw]]:
    """The output of a run, or the type of its error; and the servers."""
    with ExitStack() as stack:
        servers: list[Raw] = []
        urls: list[str] = []
        for name in names:
            raw, url = stack.enter_context(raw_server())
            raw.answers["tools/list"] = named(name)
            servers.append(raw)
            urls.append(url)
        agent = Shop(kind, urls, policy, function, typed)
        harness = stack.enter_context(OperatorHarness(agent, crash=None, forced_replay=False))
        harness.push("go")
        for _ in range(50):
            if harness.outputs or harness.dead_letters:
                break
            harness.advance_time(1000)
        if harness.dead_letters:
            return harness.dead_letters[0].error_type, servers
        return harness.outputs[0], servers


CASES: list[tuple[str, list[str], bool, bool, Any, list[int]]] = [
    ("skip", ["pay"], True, False, "pay=own", [0]),
    ("prefix", ["pay"], True, False, "pay=own shop0_pay=paid", [1]),
    ("fail", ["pay"], True, False, "DuplicateNameError", [0]),
    ("skip", ["pay", "pay"], False, False, "pay=paid", [1, 0]),
    ("prefix", ["pay", "pay"], False, False, "pay=paid shop1_pay=paid", [1, 1]),
    ("fail", ["pay", "pay"], False, False, "DuplicateNameError", [0, 0]),
    ("skip", ["final_result"], True, True, ["pay=own"], [0]),
    ("prefix", ["final_result"], True, True, ["pay=own shop0_final_result=paid"], [1]),
    ("skip", ["other"], True, False, "pay=own other=paid", [1]),
]


def test_an_output_has_a_name_of_its_own() -> None:
    durable = FlinkDurability()
    pay_output = ToolOutput(list[str], name="pay")
    for outputs in (pay_output, [int, pay_output]):
        with pytest.raises(DuplicateNameError, match="'pay'"):
            ModelAgent(FunctionModel(call_all), tools=[pay], output_type=outputs, capabilities=[durable])


@each_case(
    ("policy", "told", "calls"),
    [("skip", ["none"], 0), ("prefix", ["shop0_pay=paid"], 1), ("fail", "DuplicateNameError", 0)],
)
@each_case("kind", ["of the job", "of pydantic-ai"])
def test_a_tool_of_a_server_that_has_the_name_of_an_output(
    kind: str, policy: str, told: Any, calls: int
) -> None:
    output, [server] = run(kind, policy, ["pay"], function=False, typed="pay")
    assert (output, len(server.calls)) == (told, calls)


@pytest.mark.nightly
@each_case(("policy", "names", "function", "typed", "told", "calls"), CASES)
@each_case("kind", ["of the job", "of pydantic-ai"])
def test_a_tool_whose_name_is_taken(
    caplog: pytest.LogCaptureFixture,
    kind: str,
    policy: str,
    names: list[str],
    function: bool,
    typed: bool,
    told: Any,
    calls: list[int],
) -> None:
    caplog.clear()
    output, servers = run(kind, policy, names, function, typed)
    assert output == told
    assert [len(server.calls) for server in servers] == calls
    assert [call["name"] for server in servers for call in server.calls] == [
        name for name, number in zip(names, calls, strict=True) for _ in range(number)
    ]
    assert ("an agent has a tool" in caplog.text) == (names != ["other"] and policy != "fail")
