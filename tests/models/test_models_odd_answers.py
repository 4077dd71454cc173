"""An answer that is odd in any place is an answer, or a failed attempt with an error of this package.

Each value of recorded good answers is changed in each way. The daily run takes each kind of answer and each
way once; ``--product`` takes all.
"""

from __future__ import annotations

from typing import Any

import pytest
from model_agents import KEY, KEY_VARIABLE, Analyst
from odd_answers import (
    CHANGES,
    CHUNKS,
    COMPLETION,
    COMPLETION_WITH_CALL,
    EMBEDDINGS,
    EMBEDDINGS_AS_BYTES,
    EVENTS,
    RESPONSE,
    RESPONSE_WITH_CALL,
    changed,
    places,
    streamed,
)
from pydantic_ai import Agent as ModelAgent, exceptions, models
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import (
    Agent,
    ChatModel,
    DeadLetter,
    InputEvent,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RetryPolicy,
    RunnerContext,
    action,
    chat_model,
    embedding_model,
)
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply
from tests.suite.conditions import UNFORCED
from tests.suite.factors import factors

pytestmark = pytest.mark.own_conditions

ONCE: dict[str, Any] = {"initial_interval": 0.0001, "max_attempts": 2}
LIMITS: dict[str, Any] = {"requests": 2}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)


class Chatting(Analyst):
    """Asks a model of OpenAI.

    Args:
        url: Where the service is.
        interface: Which interface of it.
        stream: Whether it streams.
    """

    def __init__(self, url: str, interface: str, stream: bool) -> None:
        self.url = url
        self.interface = interface
        self.stream = stream

    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel(
            f"{self.interface}:gpt-5-mini",
            base_url=self.url,
            api_key={"env": KEY_VARIABLE},
            tools=["price_of"],
            retry=ONCE,
            limits=LIMITS,
            stream=self.stream,
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("analyst", str(event.input))).output)


class Embedding(Agent):
    """Embeds two texts."""

    def __init__(self, url: str) -> None:
        self.url = url

    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(
            model="openai:text-embedding-3-small",
            base_url=self.url,
            api_key={"env": KEY_VARIABLE},
            retry=ONCE,
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def embed(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.embed("words", ["a", "b"]))


class Whole(Agent):
    """Runs a whole agent of pydantic-ai."""

    def __init__(self, url: str, interface: str) -> None:
        provider = OpenAIProvider(base_url=url, api_key=KEY)
        of_responses = interface == "openai-responses"
        model: Any = (OpenAIResponsesModel if of_responses else OpenAIChatModel)("any", provider=provider)
        durability = FlinkDurability(model_calls={"retry": RetryPolicy(**ONCE)})
        self.agent = ModelAgent(model, name="worker", capabilities=[durability], tools=[price_of], retries=0)

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def run(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(str(event.input))).output)


def price_of(item: str) -> float:
    """Say what an item costs."""
    return 2.5


def of_kind(kind: str, url: str) -> Agent:
    """Return the agent that gets such answers."""
    if kind.startswith("embeddings"):
        return Embedding(url)
    interface = "openai-responses" if "response" in kind else "openai-chat"
    return Whole(url, interface) if kind.startswith("whole") else Chatting(url, interface, "stream" in kind)


KINDS: dict[str, Any] = {
    "completion": COMPLETION,
    "completion-call": COMPLETION_WITH_CALL,
    "completion-stream": CHUNKS,
    "response": RESPONSE,
    "response-call": RESPONSE_WITH_CALL,
    "response-stream": EVENTS,
    "embeddings": EMBEDDINGS,
    "embeddings-bytes": EMBEDDINGS_AS_BYTES,
    "whole-completion": COMPLETION,
    "whole-completion-call": COMPLETION_WITH_CALL,
    "whole-response": RESPONSE,
}

ATTEMPTS = {"ModelRequestError", "RetrievalError", "EmbeddingMismatchError"}
"""Errors after the last attempt, of which there are two."""

OTHERS = {"ModelRefusedError", "UsageLimitExceededError"}
"""Errors of an answer that was read."""

OF_THE_LIBRARY = {name for name, value in vars(exceptions).items() if isinstance(value, type)}
"""What the author of a whole agent catches: the errors that pydantic-ai documents."""


@pytest.mark.nightly(beyond=4)
@factors(kind=KINDS, change=CHANGES, strength=1)
def test_a_change_anywhere_is_an_answer_or_a_failed_attempt(kind: str, change: str) -> None:
    body = KINDS[kind]
    current = [Reply()]
    with ModelServer(lambda request: current[0]) as server:
        with OperatorHarness(of_kind(kind, server.base_url), **UNFORCED) as harness:
            for number, path in enumerate(places(body)):
                current[0] = reply_of(kind, body, path, change)
                previous_count = server.count
                failed = len(harness.dead_letters)
                harness.push(str(path))
                for _ in range(50):
                    if len(harness.outputs) + len(harness.dead_letters) > number:
                        break
                    harness.advance_time(1000)
                assert len(harness.outputs) + len(harness.dead_letters) == number + 1, path
                for letter in list(harness.dead_letters)[failed:]:
                    check(letter, kind, server.count - previous_count)


def reply_of(kind: str, body: Any, path: tuple[Any, ...], change: str) -> Reply:
    if "stream" in kind:
        return Reply(body=streamed(body, path, change), headers={"content-type": "text/event-stream"})
    return Reply(body=changed(body, path, change))


def check(letter: DeadLetter, kind: str, requests: int) -> None:
    expected_errors = ATTEMPTS | OTHERS | (OF_THE_LIBRARY if kind.startswith("whole") else set())
    assert letter.error_type in expected_errors, letter
    if letter.error_type in ATTEMPTS:
        assert requests == 2, letter
