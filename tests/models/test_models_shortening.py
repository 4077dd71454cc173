"""What is too large for a history is cut, and does not push out what was said before."""

from __future__ import annotations

import logging
from typing import Any

import pytest
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
    Summary,
    action,
    chat_model,
)
from flink_agents.models.chat.messages.converting import from_json, to_json
from flink_agents.models.chat.messages.shortening import bytes_of
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

LARGE = 120_000
MODEL: list[ScriptedModel] = []
HISTORY: list[ConversationHistory] = []
PICTURE = BinaryContent(b"p" * LARGE, media_type="image/png")


def model() -> Any:
    return MODEL[0]


def give(size: int) -> str:
    """Give a text."""
    return "r" * size


class Talker(Agent):
    @chat_model
    def talker(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tool_result_limit=10 * LARGE)

    @chat_model
    def short(self) -> ResourceDescriptor:
        return ChatModel(clazz=model)

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        user_input = SAYS.get(event.input, event.input)
        result = await ctx.chat("talker", user_input, tools=[give], history=HISTORY[0])
        return OutputEvent(output=result.output)


SAYS: dict[str, Any] = {
    "text": "x" * LARGE,
    "quotes": '"\n' * LARGE,
    "signs": "😀" * (LARGE // 4),
    "picture": ["look", PICTURE],
    "picture alone": PICTURE,
    "several": ["look", "x" * LARGE, PICTURE, "y" * LARGE],
}
ONE: list[Any] = ["good"]
CALLS = Reply(tool_calls=[ToolCall("give", {"size": 10})] * 3)


@each_case(
    "said, lines",
    [
        *((name, ONE) for name in SAYS),
        ("long answer", ["x" * LARGE]),
        ("result of a tool", [ToolCall("give", {"size": LARGE}), "good"]),
        ("arguments of a tool", [ToolCall("give", {"size": "1" + " " * LARGE}), "good"]),
        ("many results", [Reply(tool_calls=[ToolCall("give", {"size": 9000})] * 15), "good"]),
        ("many steps", [*[CALLS] * 22, "good"]),
    ],
)
@each_case("limit", [{}, {"max_tokens": 10_000}, {"summary": Summary(model="short")}])
def test_earlier_turns_stay(said: str, lines: list[Any], limit: dict[str, Any]) -> None:
    HISTORY[:] = [ConversationHistory(**limit)]
    MODEL[:] = [ScriptedModel(["I am a model.", *lines, "again", "in short"])]
    with OperatorHarness(Talker(), crash=None) as harness:
        harness.push("Who are you?")
        harness.push(said)
        stored = harness.memory()["conversations.default"]
        messages = from_json(stored.messages)
        assert to_json(messages)[0]["parts"][0]["content"] == "Who are you?"
        assert bytes_of(stored.messages) <= 100_000
        assert "summarise" not in str(MODEL[0].asked).lower()
        # The next chat sends all that stayed, and the answer of the large turn is among it.
        assert harness.push("And?") == [harness.outputs[-1]]
        assert "Who are you?" in str(MODEL[0].asked[-1])


def test_what_fits_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    HISTORY[:] = [ConversationHistory()]
    MODEL[:] = [ScriptedModel(["good", "good", "good"])]
    caplog.set_level(logging.WARNING)
    SAYS["half"] = "h" * 50_000
    with OperatorHarness(Talker(), crash=None) as harness:
        harness.push("Who are you?")
        harness.push("half")
        assert harness.memory()["conversations.default"].messages[2]["parts"][0]["content"] == SAYS["half"]
        assert not [record for record in caplog.records if record.name.startswith("flink_agents.history")]
        harness.push("text")
    assert "large messages are cut, from" in caplog.text


@pytest.mark.own_conditions
def test_a_crash_cuts_the_same() -> None:
    HISTORY[:] = [ConversationHistory()]
    MODEL[:] = [ScriptedModel(["good"] * 3)]
    with OperatorHarness(Talker(), crash="everywhere") as harness:
        for user_input in ("Who are you?", "picture", "text"):
            assert harness.push(user_input) == ["good"]
        assert len(harness.memory()["conversations.default"].messages) == 6
