"""Histories in short-term memory: what stays of conversations, through crashes, restores and expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from flink_agents import (
    Agent,
    ChatMessage,
    ChatModel,
    ChatRequestEvent,
    ChatResponseEvent,
    ConversationHistory,
    InputEvent,
    OutputEvent,
    Prompt,
    ResourceDescriptor,
    RunnerContext,
    Summary,
    action,
    chat_model,
    prompt,
    tool,
)
from flink_agents.api.errors import ActionFailedError, WrongArgumentError
from flink_agents.api.models.history import StoredConversation
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]


class Models:
    """The models of the agent below."""

    talker = ScriptedModel([])
    summariser = ScriptedModel([])


MODELS = Models()
SAID: dict[str, Any] = {}
"""Keywords of ``ctx.chat`` in the agent below."""


def talker() -> Any:
    return MODELS.talker


def summariser() -> Any:
    return MODELS.summariser


class Talker(Agent):
    """Goes on with the conversation of the key; an empty text clears it."""

    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=talker, prompt="greeting", tools=["price_of"])

    @chat_model
    def short(self) -> ResourceDescriptor:
        return ChatModel(clazz=summariser)

    @prompt
    def greeting(self) -> Prompt:
        return Prompt.from_messages([ChatMessage(role="system", content="You are {mood}.")])

    @tool
    def price_of(self, item: str) -> int:
        """Say what an item costs."""
        return len(item)

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if not event.input:
            return OutputEvent(output=ctx.conversation().clear())
        options: Any = {"history": ConversationHistory(), "variables": {"mood": "kind"}, **SAID}
        result = await ctx.chat("main", event.input, **options)
        return OutputEvent(output=result.output)


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    yield
    SAID.clear()


def texts(messages: list[ModelMessage]) -> list[Any]:
    return [
        getattr(part, "content", None) or getattr(part, "tool_name", "") for m in messages for part in m.parts
    ]


def stored(harness: OperatorHarness, name: str = "default") -> StoredConversation:
    conversation = harness.memory()[f"conversations.{name}"]
    assert isinstance(conversation, StoredConversation)
    return conversation


@pytest.mark.own_conditions
def test_a_conversation_goes_on_and_keeps_its_system_prompt(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["hello Ada", "you are Ada", "who are you?"])
    harness = agent_harness(Talker(), crash="everywhere", forced_serialization=False)
    harness.push("I am Ada")
    SAID["variables"] = {"mood": "strict"}
    harness.push("who am I?")
    assert texts(MODELS.talker.asked[1]) == ["You are strict.", "I am Ada", "hello Ada", "who am I?"]
    assert harness.push("") == [True]
    harness.push("who am I?")
    assert texts(MODELS.talker.asked[2]) == ["You are strict.", "who am I?"]
    assert harness.push("") == [True]
    assert harness.push("") == [False]
    MODELS.talker.assert_complete()


def test_each_key_has_its_own(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["one", "two"])
    harness = agent_harness(Talker(), lambda text: text[0])
    harness.push("a first")
    harness.push("b second")
    assert texts(MODELS.talker.asked[1]) == ["You are kind.", "b second"]


CALL = Reply(tool_calls=[ToolCall("price_of", {"item": "tea"})])


@pytest.mark.own_conditions
def test_no_call_of_a_tool_loses_its_result(agent_harness: Make) -> None:
    SAID["history"] = ConversationHistory(max_messages=5)
    MODELS.talker = ScriptedModel([CALL, "3", "bye", "again", "last"])
    harness = agent_harness(Talker(), crash="everywhere", forced_serialization=False)
    harness.push("price?")
    assert len(stored(harness).messages) == 4
    # The first turn has four messages: it falls out as a whole, since one message must.
    harness.push("thanks")
    assert texts(from_json(stored(harness))) == ["thanks", "bye"]
    assert stored(harness).fallen_out == 4
    assert stored(harness).system == ["You are kind."]
    harness.push("and?")
    assert texts(MODELS.talker.asked[3]) == ["You are kind.", "thanks", "bye", "and?"]
    harness.push("end")
    assert len(stored(harness).messages) == 4


def from_json(kept: StoredConversation) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python(kept.messages)


@pytest.mark.parametrize("limit", [{"max_tokens": 120}, {"max_bytes": 1500}])
def test_it_is_bounded_by_tokens_and_bytes(agent_harness: Make, limit: dict[str, Any]) -> None:
    SAID["history"] = ConversationHistory(**limit)
    MODELS.talker = ScriptedModel(["x" * 90] * 9 + ["y" * 5000])
    harness = agent_harness(Talker())
    for number in range(9):
        harness.push(f"question {number} {'z' * 60}")
        assert len(stored(harness).model_dump_json()) < 2200
    assert 2 <= len(stored(harness).messages) <= 8
    assert texts(from_json(stored(harness)))[-2].startswith("question 8")
    # An answer that is too large is cut, and costs the history no more than it has to.
    harness.push("much?")
    *earlier, question, answer = texts(from_json(stored(harness)))
    assert earlier
    assert question == "much?"
    assert answer.startswith("yyy")
    assert "left out" in answer
    assert stored(harness).fallen_out + len(stored(harness).messages) == 20


@pytest.mark.own_conditions
def test_what_falls_out_is_summarised(agent_harness: Make) -> None:
    SAID["history"] = ConversationHistory(max_messages=4, summary=Summary(model="short", max_characters=100))
    MODELS.talker = ScriptedModel(["a1", "a2", "a3", "a4", "a5"])
    MODELS.summariser = ScriptedModel(["Ada asked twice.", "long " * 1000])
    harness = agent_harness(Talker(), crash="everywhere", forced_serialization=False)
    for number in (1, 2):
        harness.push(f"q{number}")
    assert MODELS.summariser.count == 0
    harness.push("q3")
    # Half of the limit stays, so that the next turn costs no summary.
    assert stored(harness).summary == "Ada asked twice."
    assert texts(from_json(stored(harness))) == ["q3", "a3"]
    (request_messages,) = MODELS.summariser.asked
    assert "user-prompt: q1\ntext: a1\nuser-prompt: q2\ntext: a2" in str(texts(request_messages)[0])
    harness.push("q4")
    summary = "Summary of the conversation so far:\nAda asked twice."
    assert texts(MODELS.talker.asked[3]) == ["You are kind.", summary, "q3", "a3", "q4"]
    harness.push("q5")
    assert "Ada asked twice." in str(texts(MODELS.summariser.asked[1])[0])
    assert len(stored(harness).summary) == 100
    MODELS.summariser.assert_complete()


def test_it_is_part_of_checkpoints(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["one", "two", "three"])
    harness = agent_harness(Talker())
    harness.push("first")
    snapshot = harness.snapshot()
    harness.push("second")
    harness.restore(snapshot)
    assert texts(from_json(stored(harness))) == ["first", "one"]
    # The run was recorded: its replay asks nothing, and remembers the same.
    harness.push("second")
    assert MODELS.talker.count == 2
    harness.push("third")
    assert texts(MODELS.talker.asked[-1]) == ["You are kind.", "first", "one", "second", "two", "third"]


def test_it_expires_as_a_whole(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["one", "two", "three"])
    harness = agent_harness(Talker(), config={"memory.short-term.ttl": "10 min"})
    harness.push("first")
    harness.advance_time(timedelta(minutes=6))
    harness.push("second")
    harness.advance_time(timedelta(minutes=6))
    assert len(stored(harness).messages) == 4
    harness.advance_time(timedelta(minutes=6))
    harness.push("third")
    assert texts(MODELS.talker.asked[2]) == ["You are kind.", "third"]


def test_a_chat_that_fails_leaves_no_trace(agent_harness: Make) -> None:
    SAID["output_type"] = int
    MODELS.talker = ScriptedModel(["no"] * 9)
    harness = agent_harness(Talker(), config={"actions.on-error": "ignore"})
    harness.push("number?")
    assert harness.memory() == {}


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ({"run_tools": False}, "FA1005", "tool calls"),
        ({"history": ConversationHistory(name="own")}, "FA9004", "no history at 'conversations.own'"),
        (
            {"variables": {"mood": "k" * 2000}, "history": ConversationHistory(max_bytes=1000)},
            "FA9004",
            "no room",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    agent_harness: Make, said: dict[str, Any], code: str, text: str
) -> None:
    class Own(Talker):
        @action(InputEvent)
        async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            ctx.short_term_memory.set("conversations.own", 3)
            options: Any = {"history": ConversationHistory(), "variables": {"mood": ""}, **said}
            await ctx.chat("main", "hello", **options)
            return OutputEvent(output=None)

    MODELS.talker = ScriptedModel(["hello"] * 3)
    with pytest.raises(ActionFailedError, match=text) as failed:
        agent_harness(Own(), forced_serialization=False).push("go")
    assert code in str(failed.value) or failed.value.__cause__.code == code  # type: ignore[union-attr]


def test_a_summary_needs_room() -> None:
    with pytest.raises(WrongArgumentError, match="eight times"):
        ConversationHistory(max_bytes=5000, summary=Summary(model="short"))


class Twice(Talker):
    """Lets two chats go on side by side."""

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        options: Any = {"variables": {"mood": "kind"}}
        names = ("left", event.input)
        histories = [ConversationHistory(name=name) for name in names]
        await ctx.gather(*(ctx.chat("main", "hello", history=history, **options) for history in histories))
        return OutputEvent(output=sorted(harness_names(ctx)))


def harness_names(ctx: RunnerContext) -> list[str]:
    return ctx.short_term_memory.get("conversations").field_names()


def test_two_chats_at_a_time_have_histories_of_their_own(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["one", "two", "three", "four"])
    harness = agent_harness(Twice(), forced_serialization=False)
    assert harness.push("right") == [["left", "right"]]
    with pytest.raises(ActionFailedError, match="two chats"):
        harness.push("left")


class ByEvents(Talker):
    """Asks by an event."""

    @action(InputEvent)
    def talk(self, event: InputEvent, ctx: RunnerContext) -> Any:
        variables = {"mood": "kind"}
        return ChatRequestEvent(
            model="main", messages=event.input, variables=variables, history=ConversationHistory()
        )

    @action(ChatResponseEvent)
    def told(self, event: ChatResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=len(ctx.conversation().messages))


@pytest.mark.own_conditions
def test_events_go_on_with_a_history(agent_harness: Make) -> None:
    MODELS.talker = ScriptedModel(["one", "two"])
    harness = agent_harness(ByEvents(), crash="everywhere", forced_serialization=False)
    assert [harness.push("first"), harness.push("second")] == [[2], [4]]
