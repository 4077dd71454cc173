"""Pictures that tools return reach the model as content, and not as base64 inside of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import Clerk, Counts, script, served
from pydantic_ai.messages import BinaryContent
from suite.tables import each

from flink_agents import (
    Agent,
    ChatModel,
    ConversationHistory,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.models.tools.results import for_model
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ToolCall

Serve = Callable[..., ModelServer]
PNG = BinaryContent(b"p" * 1500, media_type="image/png")
SOUND = BinaryContent(b"s", media_type="audio/wav")


@each(
    "value, content",
    [
        (PNG, PNG),
        ([PNG, "a"], [PNG, "a"]),
        (("a", PNG), ["a", PNG]),
        ({"a": 1}, {"a": 1}),
        (["a", "b"], ["a", "b"]),
        ([], []),
        (None, None),
        ("x" * 190, "x" * 190),
        ("x" * 200, None),
        ([PNG, "x" * 200], None),
        ([PNG, PNG], None),
        ({"kind": "image-url", "url": "http://127.0.0.1"}, {"kind": "image-url", "url": "http://127.0.0.1"}),
    ],
)
def test_results(value: Any, content: Any) -> None:
    kind, found = for_model(value, 200)
    if content is None and value is not None:
        assert kind == "retry"
    else:
        assert (kind, found) == ("success", content)


def test_what_models_do_not_see_stays_json() -> None:
    kind, found = for_model(SOUND, 1000)
    assert kind == "success"
    assert json.loads(json.dumps(found))["media_type"] == "audio/wav"


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    made = Counts(tmp_path)
    yield made
    assert made.alive == []


def test_pictures_of_a_server_are_content(counts: Counts) -> None:
    script(ToolCall("look_at", {"item": "tea", "size": 30_000}), "done")
    with (
        served(counts, "http", "--extra") as server,
        OperatorHarness(Clerk(), config={"mcp-servers.shop.url": server.url}, crash="everywhere") as harness,
    ):
        [[output, contents]] = harness.push("hi")
    assert output == "done"
    [seen] = [one for one in contents if isinstance(one, list)]
    assert seen[0] == "This is tea."
    assert isinstance(seen[1], BinaryContent)
    assert counts.done == {"look_at tea": 1}


def photograph(item: str) -> list[Any]:
    """Take a picture of an item."""
    return [f"This is {item}.", PNG]


def test_a_service_gets_pictures_as_pictures(model_server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in later chats of the history, for which they are kept as JSON."""
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-at-all")
    taken = Reply(tool_calls=[ToolCall("photograph", {"item": "tea"})])
    server = model_server([taken, Reply("a cup"), Reply("green")])
    url = server.base_url

    class Looker(Agent):
        @chat_model
        def eyes(self) -> ResourceDescriptor:
            return ChatModel("openai-chat:gpt-5-mini", base_url=url)

        @action(InputEvent)
        async def look(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            history = ConversationHistory()
            result = await ctx.chat("eyes", event.input, tools=[photograph], history=history)
            return OutputEvent(output=result.output)

    with OperatorHarness(Looker(), crash=None) as harness:
        assert [harness.push("What is there?"), harness.push("Of which colour?")] == [["a cup"], ["green"]]
    for request in server.requests[1:]:
        messages = request.body["messages"]
        [of_tool] = [one["content"] for one in messages if one["role"] == "tool"]
        assert "This is tea." in of_tool
        assert len(of_tool) < 200
        kinds = [
            part["type"] for one in messages if isinstance(one["content"], list) for part in one["content"]
        ]
        assert "image_url" in kinds
