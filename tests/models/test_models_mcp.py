"""MCP servers in processes of their own: tools, prompts and resources, over each transport, and replay."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import (
    MODEL,
    QUICK,
    Careful,
    Clerk,
    Counts,
    Direct,
    Shop,
    by_stdio,
    script,
    served,
    wait_until,
)
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import InputEvent, MCPServer, OutputEvent, RunnerContext, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, MCPRequestError
from flink_agents.api.models.mcp import MCPPrompt, MCPResource
from flink_agents.models.engine import FlinkDurability, server_toolset
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from flink_agents.testing.models import Reply, ToolCall

Make = Callable[..., OperatorHarness]
WAYS = ["stdio", "http", "sse"]
PICTURE = b"\x89PNG\r\n\x1a\n not a real one"


@pytest.fixture(autouse=True)
def counts(tmp_path: Path) -> Iterator[Counts]:
    """What the servers of a test did. None of them outlives the test, whose harness is closed before."""
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


ONLINE = ["http", "sse"]
"""Ways by which a connection is opened in no time.

The harness repeats in each of its crashes how long a call took, and the first one starts a process.
"""


@contextmanager
def config_of(way: str, counts: Counts) -> Iterator[dict[str, Any]]:
    """Options of a job that reaches a server in one way."""
    if way == "stdio":
        yield by_stdio(counts)
    else:
        with served(counts, way) as server:
            yield {"mcp-servers.shop.url": server.url, "mcp-servers.shop.retry": QUICK}


def conversation() -> None:
    """Two tools at once, then one that orders, then the end."""
    both = [ToolCall("price_of", {"item": "tea"}), ToolCall("price_of", {"item": "coffee"})]
    script(Reply(tool_calls=both), ToolCall("order", {"item": "tea", "number": 2}), "done")


FIRST_OF_TWO = 2
ORDERED = 5
"""Numbers of calls of that conversation: the list, a request, two tools at once, a request, the order."""


class Reader(Shop):
    """Reads what the server has."""

    @action(InputEvent)
    async def read(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        server = ctx.mcp_server("shop")
        prompts, resources = await ctx.gather(server.list_prompts(), server.list_resources())
        greeting = await server.get_prompt("greet", customer=event.input)
        hours = await server.read_resource("shop://opening-hours")
        picture = await server.read_resource("shop://picture")
        tools = [tool.name for tool in await server.list_tools() if tool.repeatable]
        return OutputEvent(
            output=[prompts, resources, [message.model_dump() for message in greeting], hours, picture, tools]
        )


READ = [
    [MCPPrompt("greet", "Greet a customer.", ("customer",), ("tone",))],
    [
        MCPResource("shop://opening-hours", "opening_hours", "When the shop is open.", "text/plain"),
        MCPResource("shop://picture", "picture", "What the shop looks like.", "image/png"),
    ],
    [
        {"role": "user", "content": "Greet Ada kindly."},
        {"role": "assistant", "content": "Of course."},
    ],
    "nine to five",
    PICTURE,
    ["die_once"],
]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("way", WAYS)
def test_a_model_calls_tools(counts: Counts, way: str) -> None:
    conversation()
    with config_of(way, counts) as config, OperatorHarness(Clerk(), config=config) as harness:
        [[output, contents]] = harness.push("hi")
    assert output == "done"
    assert [content for content in contents if content is not None] == [
        7.5,
        15.0,
        {"item": "tea", "number": 2},
        "done",
    ]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("way", ONLINE)
def test_a_crash_anywhere_repeats_no_call(counts: Counts, way: str) -> None:
    conversation()
    with (
        config_of(way, counts) as config,
        OperatorHarness(Clerk(), config=config, crash="everywhere") as harness,
    ):
        [[output, contents]] = harness.push("hi")
    assert output == "done"
    assert [content for content in contents if content is not None] == [
        7.5,
        15.0,
        {"item": "tea", "number": 2},
        "done",
    ]
    assert counts.done == {"price_of tea": 1, "price_of coffee": 1, "order tea 2": 1}


@pytest.mark.nightly(beyond=1)
@pytest.mark.executes_once
@pytest.mark.parametrize("call", range(6))
def test_over_stdio_an_attempt_that_dies_behind_a_call_repeats_none(counts: Counts, call: int) -> None:
    """The server dies with the attempt. The next one starts another, where it still needs it."""
    conversation()
    faults = Faults(at_record(RecordKind.CALL, Fault.UNACKNOWLEDGED, call))
    with OperatorHarness(Clerk(), config=by_stdio(counts), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="FA6"):
            harness.push("hi")
        harness.restore(snapshot)
        wait_until(lambda: counts.alive == [], "the server of the first attempt ends")
        [[output, _]] = harness.push("hi")
    assert output == "done"
    assert counts.done["order tea 2"] == 1
    # One of two calls at once may be under way when the other one is recorded.
    assert counts.done.total() in ((3, 4) if call == FIRST_OF_TWO else (3,))
    assert MODEL[0].count == 3
    assert counts.starts == (2 if call < ORDERED else 1)


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("way", WAYS)
def test_prompts_and_resources(counts: Counts, way: str) -> None:
    crash = None if way == "stdio" else "everywhere"
    with config_of(way, counts) as config, OperatorHarness(Reader(), config=config, crash=crash) as harness:
        assert harness.push("Ada") == [READ]
    assert counts.done == {"greet Ada": 1, "opening_hours": 1, "picture": 1}


@pytest.mark.executes_once
@pytest.mark.parametrize("agent", [Clerk, Reader])
def test_a_replay_needs_no_server(counts: Counts, agent: type[Shop]) -> None:
    conversation()
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(agent(), config=by_stdio(counts), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="FA6"):
            harness.push("Ada")
        done = counts.done
        starts = counts.starts
        assert done and starts == 1
        counts.script.unlink()
        harness.restore(snapshot)
        [output] = harness.push("Ada")
    assert output == READ if agent is Reader else output[0] == "done"
    assert (counts.done, counts.starts) == (done, starts)


def test_keys_share_a_connection_that_is_opened_when_it_is_needed(
    agent_harness: Make, counts: Counts
) -> None:
    harness = agent_harness(Direct(), lambda record: record[1]["item"], config=by_stdio(counts))
    assert counts.starts == 0
    orders = [("order", {"item": f"tea-{number}", "number": number}) for number in range(20)]
    assert len(harness.push_all(orders)) == 20
    assert len(counts.done) == 20
    harness.close()
    assert counts.alive == []


@pytest.mark.executes_once
def test_the_first_action_of_a_key_opens_the_connection_for_all(counts: Counts) -> None:
    with OperatorHarness(Direct(), lambda record: record[1]["item"], config=by_stdio(counts)) as harness:
        harness.push_all([("price_of", {"item": f"tea-{number}"}) for number in range(20)])
    assert counts.starts == 1


def test_all_attempts_of_a_call_have_one_idempotency_key(counts: Counts) -> None:
    # The end of the call is not recorded: it is made again, and the server can know it by its key.
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
    with OperatorHarness(Direct(), config=by_stdio(counts), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="FA6"):
            harness.push(("order", {"item": "tea", "number": 1}))
        harness.restore(snapshot)
        harness.push(("order", {"item": "tea", "number": 1}))
    keys = {line.split()[3] for line in counts.lines if line.startswith("order")}
    assert len(keys) == 1
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"tools": ["price_of", "die*"]}, ["price_of", "die", "die_once"]),
        ({"tools": ["*of", "order"], "exclude": ["order"]}, ["price_of"]),
        ({"tools": ["order"], "prefix": "shop"}, ["shop_order"]),
    ],
)
def test_filter_and_prefix(agent_harness: Make, counts: Counts, options: Any, names: list[str]) -> None:
    script(ToolCall("nothing", {}), "done")
    [[_, contents]] = agent_harness(Clerk(), config=by_stdio(counts, **options)).push("hi")
    [refusal] = [content for content in contents if content and "The tools are" in str(content)]
    assert refusal.endswith(f"The tools are: {', '.join(map(repr, names))}.")


def test_a_call_by_a_name_with_prefix(agent_harness: Make, counts: Counts) -> None:
    script(ToolCall("shop_price_of", {"item": "tea"}), "done")
    [[_, contents]] = agent_harness(Clerk(), config=by_stdio(counts, prefix="shop")).push("hi")
    assert 7.5 in contents


@pytest.mark.executes_once
def test_a_list_of_tools_that_changed_holds_for_the_next_run(counts: Counts) -> None:
    """The recorded list is that of the run; the server as it is now answers what is not recorded yet."""
    later = ToolCall("later", {})
    # The first run dies behind the list, before its first request to the model is recorded.
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, 1))
    script("first", later, "second", later, "third")
    with OperatorHarness(Clerk(), config=by_stdio(counts), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(Exception, match="FA6"):
            harness.push("hi")
        source = counts.script.read_text("utf-8")
        counts.script.write_text(source.replace('if "--more" in sys.argv:', "if True:"), "utf-8")
        harness.restore(snapshot)
        [[output, contents]] = harness.push("hi")
        assert (output, counts.starts) == ("second", 1)
        assert any("There is no tool 'later'" in str(content) for content in contents)
        [[output, contents]] = harness.push("hi")
    assert (output, counts.starts) == ("third", 2)
    assert "new" in contents


def test_a_tool_that_the_server_does_not_have(agent_harness: Make, counts: Counts) -> None:
    with pytest.raises(ActionFailedError) as caught:
        agent_harness(Direct(), config=by_stdio(counts)).push(("no_such_tool", {}))
    assert isinstance(caught.value.__cause__, MCPRequestError)
    assert "Unknown tool" in (caught.value.__cause__.found or "")


def orders_tea(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Order tea with what the server has, and say what came of it."""
    if len(messages) == 1:
        assert "order" in [tool.name for tool in info.function_tools]
        calls = [ToolCallPart("order", {"item": "tea", "number": n}, f"call-{n}") for n in (1, 2)]
        return ModelResponse([*calls, ToolCallPart("refuse", {"reason": "no"}, "call-3")])
    parts = messages[-1].parts
    return ModelResponse([TextPart(" | ".join(str(getattr(part, "content", "")) for part in parts))])


BUYER = ModelAgent(
    FunctionModel(orders_tea, model_name="buyer"),
    name="buyer",
    toolsets=[server_toolset("shop")],
    capabilities=[FlinkDurability()],
)


class Buyer(Shop):
    """Lets a whole agent of pydantic-ai use the server."""

    @action(InputEvent)
    async def buy(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await BUYER.run(event.input)).output)


def test_a_whole_agent_of_pydantic_ai_uses_the_server_of_the_subtask(counts: Counts) -> None:
    with (
        config_of("http", counts) as config,
        OperatorHarness(Buyer(), config=config, crash="everywhere") as harness,
    ):
        [answer] = harness.push("buy")
    assert "{'item': 'tea', 'number': 1} | {'item': 'tea', 'number': 2}" in answer
    assert "Error executing tool refuse" in answer
    assert counts.done == {"order tea 1": 1, "order tea 2": 1, "refuse no": 1}


def test_a_server_that_ends_between_two_runs_is_started_again(agent_harness: Make, counts: Counts) -> None:
    harness = agent_harness(Careful(), config=by_stdio(counts))
    harness.push(("order", {"item": "tea", "number": 1}))
    for process in counts.alive:
        os.kill(process, signal.SIGKILL)
    # A call that is sent before the end of the process is noticed may have been taken.
    first = harness.push(("order", {"item": "tea", "number": 2}))
    assert first == [{"item": "tea", "number": 2}] or first[0].startswith("FA9203: ")
    assert harness.push(("order", {"item": "tea", "number": 3})) == [{"item": "tea", "number": 3}]


def test_a_description_is_checked_where_it_is_written() -> None:
    with pytest.raises(Exception, match="either a command or a url") as caught:
        MCPServer(command="python", url="http://example.com/mcp")
    assert "test_models_mcp.py" in str(caught.value)
