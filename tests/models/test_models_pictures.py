"""Pictures that tools return reach the model as content, and not as base64 inside of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import Clerk, Counts, script, served
from pydantic_ai.messages import BinaryContent
from suite.tables import each_case

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


@each_case(
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
    kind, shown_content = for_model(value, 200)
    if content is None and value is not None:
        assert kind == "retry"
    else:
        assert (kind, shown_content) == ("success", content)


def test_what_models_do_not_see_stays_json() -> None:
    kind, shown_content = for_model(SOUND, 1000)
    assert kind == "success"
    assert json.loads(json.dumps(shown_content))["media_type"] == "audio/wav"


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


def test_pictures_of_a_server_are_content(counts: Counts) -> None:
    script(ToolCall("look_at", {"item": "tea", "size": 30_000}), "done")
    with (
        served(counts, "http", "--extra") as server,
        OperatorHarness(Clerk(), config={"mcp-servers.shop.url": server.url}, crash="everywhere") as harness,
    ):
        [[output, contents]] = harness.push("hi")
    assert output == "done"
    [seen] = [content for content in contents if isinstance(content, list)]
    assert seen[0] == "This is tea."
    assert isinstance(seen[1], BinaryContent)
    assert counts.done == {"look_at tea": 1}


def photograph(item: str) -> list[Any]:
    """Take a picture of an item."""
    return [f"This is {item}.", PNG]


def test_a_service_gets_pictures_as_pictures(model_server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in later chats of the history, for which they are kept as JSON."""
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-at-all")
    tool_reply = Reply(tool_calls=[ToolCall("photograph", {"item": "tea"})])
    server = model_server([tool_reply, Reply("a cup"), Reply("green")])
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
        [of_tool] = [message["content"] for message in messages if message["role"] == "tool"]
        assert "This is tea." in of_tool
        assert len(of_tool) < 200
        kinds = [
            part["type"]
            for message in messages
            if isinstance(message["content"], list)
            for part in message["content"]
        ]
        assert "image_url" in kinds
