"""The attempt dies at each append: no request or call whose outcome was recorded is made again.

A conversation of three requests with three calls of tools, over HTTP, by ``ctx.chat`` and by a whole agent of
pydantic-ai. What is repeated follows exactly from what was recorded, and the transcript is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from model_agents import KEY, KEY_VARIABLE, options
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RunnerContext, Tool, action
from flink_agents.api.action_state import RecordKind
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall

pytestmark = pytest.mark.own_conditions

Serve = Callable[..., ModelServer]

TURNS = [
    Reply(
        tool_calls=[
            ToolCall("price_of", {"item": "tea"}, "one"),
            ToolCall("price_of", {"item": "rice"}, "two"),
        ]
    ),
    Reply(tool_calls=[ToolCall("price_of", {"item": "coffee"}, "three")]),
    Reply("good"),
]
REQUESTS = TOOLS = 3
REQUESTS_RECORDED = (0, 1, 1, 1, 2, 2, 3)
"""How many requests are among so many recorded calls: one, two tools, one, one tool, one."""

CALLED: list[str] = []


async def price_of(item: str) -> float:
    """Say what an item costs."""
    CALLED.append(item)
    return 2.5 * len(item)


def by_history(request: ServedRequest) -> Reply:
    return TURNS[sum(message["role"] == "assistant" for message in request.body["messages"])]


def plain(value: Any, without: set[str]) -> Any:
    """A transcript without some fields."""
    if isinstance(value, dict):
        return {
            key: plain(nested_value, without) for key, nested_value in value.items() if key not in without
        }
    return [plain(nested_value, without) for nested_value in value] if isinstance(value, list) else value


class Chatting(Agent):
    """Holds the conversation by ``ctx.chat``."""

    agent_name = "Buyer"

    def __init__(self, url: str) -> None:
        spec = ChatModel("openai-chat:any", api_key={"env": KEY_VARIABLE}, tools=["price_of"])
        self.add_resource("analyst", "chat_model", spec)
        self.add_resource("price_of", "tool", Tool(price_of))

    @action(InputEvent)
    async def buy(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("analyst", event.input)
        return OutputEvent(output=ModelMessagesTypeAdapter.dump_python(result.messages, mode="json"))


class Whole(Agent):
    """Holds it by an agent of pydantic-ai."""

    agent_name = "Buyer"

    def __init__(self, url: str) -> None:
        self.buyer = ModelAgent(
            OpenAIChatModel("any", provider=OpenAIProvider(base_url=url, api_key=KEY)),
            name="buyer",
            tools=[price_of],
            capabilities=[FlinkDurability()],
        )

    @action(InputEvent)
    async def buy(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await self.buyer.run(event.input)
        return OutputEvent(output=ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json"))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    CALLED.clear()
    yield


def harness_of(kind: type[Any], server: ModelServer, faults: Faults) -> OperatorHarness:
    return OperatorHarness(
        kind(server.base_url),
        config=options(server),
        store=faults.store,
        crash=None,
        forced_replay=False,
        forced_restart=False,
        forced_serialization=False,
    )


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("kind", [Chatting, Whole])
@pytest.mark.parametrize("fault", [Fault.UNACKNOWLEDGED, Fault.LOST, Fault.REFUSED])
def test_nothing_recorded_is_repeated(model_server: Serve, kind: type[Any], fault: Fault) -> None:
    undisturbed = model_server(by_history)
    with harness_of(kind, undisturbed, Faults()) as harness:
        ((expected),) = harness.push("tea or coffee?")
    # An answer that was lost comes again as another answer of the service.
    varying = {"timestamp", "provider_url"} | (set() if fault.stores else {"provider_response_id"})
    appends = 0
    met = 0
    while True:
        CALLED.clear()
        server = model_server(by_history)
        faults = Faults(at_append(appends, fault))
        with harness_of(kind, server, faults) as harness:
            snapshot = harness.snapshot()
            try:
                outputs = harness.push("tea or coffee?")
                break
            except Exception:
                # With it ends what the first attempt had begun.
                harness.restore(snapshot)
                sent = server.count
                called = len(CALLED)
                recorded = calls_recorded(faults)
                outputs = harness.push("tea or coffee?")
        requests = REQUESTS_RECORDED[recorded]
        assert server.count == sent + REQUESTS - requests
        assert len(CALLED) == called + TOOLS - (recorded - requests)
        assert sent <= requests + 1
        assert plain(outputs, varying) == plain([expected], varying)
        appends = appends + 1
        met = met + 1
    assert met >= REQUESTS + TOOLS + 1  # and the end of the action
    assert server.count == REQUESTS


def calls_recorded(faults: Faults) -> int:
    """How many outcomes of calls are in the store."""
    return sum(
        record.kind is RecordKind.CALL
        for _, records, fault in faults.appends
        for record in records
        if fault is None or fault.stores
    )
