"""``Retry-After``: heeded up to a limit by everything that asks a service, and a failure beyond it."""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from model_agents import KEY, KEY_VARIABLE
from pydantic_ai import Agent as ModelAgent, models
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

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
)
from flink_agents.models.engine import CallSettings, FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

LIMIT = 60
QUICK: dict[str, Any] = {"initial_interval": 0.001, "max_attempts": 3}


def date_of(seconds: int, form: str) -> str:
    # The whole second after it, so that there is something to wait for.
    return time.strftime(form, time.gmtime(time.time() + seconds + 1))


HEADERS: dict[str, Callable[[int], Mapping[str, str]]] = {
    "seconds": lambda seconds: {"retry-after": str(seconds)},
    "date": lambda seconds: {"retry-after": email.utils.formatdate(time.time() + seconds, usegmt=True)},
    "fraction": lambda seconds: {"retry-after": f"{seconds}.0"},
    "date of a week": lambda seconds: {"retry-after": date_of(seconds, "%A, %d-%b-%y %H:%M:%S GMT")},
    "date of C": lambda seconds: {"retry-after": date_of(seconds, "%a %b %e %H:%M:%S %Y")},
    "date without zone": lambda seconds: {"retry-after": date_of(seconds, "%a, %d %b %Y %H:%M:%S -0000")},
    "milliseconds": lambda seconds: {"retry-after-ms": str(seconds * 1000)},
}


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)


class Chatting(Agent):
    def __init__(self, url: str, model: str) -> None:
        options: Any = {"base_url": url, "api_key": {"env": KEY_VARIABLE}, "retry": QUICK}
        self.add_resource("analyst", "chat_model", ChatModel(model, retry_after_limit=LIMIT, **options))

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def ask(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("analyst", event.input)).output)


class Embedding(Agent):
    def __init__(self, url: str) -> None:
        options: Any = {"base_url": url, "api_key": {"env": KEY_VARIABLE}, "retry": QUICK}
        options |= {"model": "openai:text-embedding-3-small", "retry_after_limit": LIMIT}
        spec = ResourceDescriptor(**options)
        self.add_resource("words", "embedding_model", spec)

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def embed(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=len(await ctx.embed("words", ["a"])))


class Calling(Agent):
    def __init__(self, url: str) -> None:
        spec = MCPServer(url=f"{url}/mcp", retry=QUICK, retry_after_limit=LIMIT)
        self.add_resource("shop", "mcp_server", spec)

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def call(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay"))


OWN = RetryPolicy(initial_interval=0.001, max_attempts=3)
"""A policy of the author, which says nothing about kinds of failures."""

CALLS: dict[str, CallSettings] = {
    "ours": {"retry_after_limit": LIMIT},
    "own": {"retry_after_limit": LIMIT, "retry": OWN},
    "quick": {"retry": OWN, "timeout": 2},
}


class Whole(Agent):
    def __init__(self, url: str, several: bool, calls: str) -> None:
        provider = OpenAIProvider(base_url=url, api_key=KEY)
        first_model = OpenAIChatModel("any", provider=provider)
        model = (
            FallbackModel(first_model, OpenAIChatModel("other", provider=provider))
            if several
            else first_model
        )
        durability = FlinkDurability[Any](model_calls=CALLS[calls])
        self.agent = ModelAgent(model, name="worker", capabilities=[durability])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def run(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


KINDS: dict[str, tuple[Callable[[str], Agent], int]] = {
    "completions": (lambda url: Chatting(url, "openai-chat:any"), 1),
    "responses": (lambda url: Chatting(url, "openai-responses:any"), 1),
    "embeddings": (Embedding, 1),
    # The list of tools and the call try to open the connection, with two requests each.
    "an MCP server": (Calling, 4),
    "a whole agent": (lambda url: Whole(url, False, "ours"), 1),
    "with a policy": (lambda url: Whole(url, False, "own"), 1),
    "with fallbacks": (lambda url: Whole(url, True, "ours"), 2),
    "with fallbacks and a policy": (lambda url: Whole(url, True, "own"), 2),
}
"""What asks a service, and how many requests one attempt makes."""


def settle(harness: OperatorHarness) -> None:
    harness.push("go")
    for _ in range(200):
        if harness.outputs or harness.dead_letters:
            return
        harness.advance_time(1000)


def harness_of(agent: Agent) -> OperatorHarness:
    return OperatorHarness(agent, crash=None, forced_replay=False, forced_serialization=False)


@each_case("form", HEADERS)
@each_case("kind", KINDS)
def test_a_service_that_asks_to_wait_too_long_fails_the_attempt(
    caplog: pytest.LogCaptureFixture, kind: str, form: str
) -> None:
    if (kind, form) == ("an MCP server", "milliseconds"):
        return  # This header is one of model providers.
    caplog.clear()
    make, requests = KINDS[kind]
    reply = Reply("no", status=429, headers=HEADERS[form](7200))
    with ModelServer(lambda request: reply) as server, harness_of(make(server.base_url)) as harness:
        with caplog.at_level(logging.WARNING):
            settle(harness)
        assert (len(harness.dead_letters), harness.outputs) == (1, [])
        assert server.count == requests
        assert f"longer than retry_after_limit={LIMIT}" in caplog.text


@each_case("form", HEADERS)
@each_case("kind", [kind for kind in KINDS if kind not in ("embeddings", "an MCP server", "responses")])
def test_a_shorter_wait_is_waited_for(kind: str, form: str) -> None:
    make, requests = KINDS[kind]
    busy = Reply("no", status=429, headers=HEADERS[form](1))
    with ModelServer([*[busy] * requests, Reply("good")]) as server:
        with harness_of(make(server.base_url)) as harness:
            settle(harness)
            assert harness.outputs == ["good"], harness.dead_letters
        assert server.count == requests + 1


BUSY = Reply("no", status=429, headers={"retry-after": "7200"})


@each_case(
    ("first", "second", "attempts"),
    [
        (BUSY, Reply("no", status=503), 5),
        (Reply("no", status=400), Reply("no", status=503), 5),
        (BUSY, Reply("no", status=400), 1),
        (Reply("no", status=400), Reply("no", status=400), 1),
    ],
    ids=["one is busy for long", "one rejects it", "no other will answer", "both reject it"],
)
def test_a_request_is_sent_again_if_one_of_several_models_may_answer(
    first: Reply, second: Reply, attempts: int
) -> None:
    def answer(request: Any) -> Reply:
        return first if request.body["model"] == "any" else second

    with ModelServer(answer) as server:
        with harness_of(Whole(server.base_url, True, "ours")) as harness:
            settle(harness)
            [letter] = harness.dead_letters
        assert (letter.error_type, server.count) == ("ModelRequestError", 2 * attempts)
        assert f"status_code: {second.status}" in letter.traceback


@each_case("status", [400, 501])
def test_a_policy_of_the_author_sends_nothing_again_that_was_rejected(status: int) -> None:
    with ModelServer(lambda request: Reply("no", status=status)) as server:
        with harness_of(Whole(server.base_url, False, "own")) as harness:
            settle(harness)
            assert len(harness.dead_letters) == 1
        assert server.count == 1


@each_case("first", [Reply(body="[]"), Reply("no", status=500), Reply(hang_up=True), Reply("late", delay=30)])
def test_a_policy_of_the_author_sends_again_what_may_succeed(first: Reply) -> None:
    with ModelServer([first, Reply("good")]) as server:
        with harness_of(Whole(server.base_url, False, "quick")) as harness:
            settle(harness)
            assert harness.outputs == ["good"]
        assert server.count == 2
