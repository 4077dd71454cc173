"""No answer of a service fails a job, hangs a loop or eats memory: it is an answer, or a failed attempt.

Recorded good answers are changed at every place of their JSON, by a seed; the listed ones are those that
libraries stumbled over.
"""

from __future__ import annotations

import email.utils
import gzip
import json
import logging
import time
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from model_agents import KEY, KEY_VARIABLE, Analyst, options
from odd_answers import CALL
from pydantic_ai import Agent as ModelAgent, models
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    embedding_model,
    vector_store,
)
from flink_agents.models.engine import FlinkDurability
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.failures import may_succeed_again
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ServedRequest
from flink_agents.testing.models.replies import completion_body
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

SEED = 26
QUICK: dict[str, Any] = {"initial_interval": 0.001, "max_attempts": 2}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)


class Lenient(Analyst):
    """Asks the server, and makes a dead letter of each failure."""

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("analyst", str(event.input))).output)


class OfResponses(Lenient):
    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel("openai-responses:gpt-5-mini", api_key={"env": KEY_VARIABLE}, tools=["price_of"])


class Embedding(Agent):
    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(model="openai:text-embedding-3-small", api_key={"env": KEY_VARIABLE})

    @vector_store
    def docs(self) -> ResourceDescriptor:
        return ResourceDescriptor(path=":memory:", embedding_model="words")

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def embed(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        vectors = await ctx.embed("words", ["a", "b"])
        return OutputEvent(output=len(vectors))


EMBEDDINGS = {
    "object": "list",
    "model": "any",
    "data": [{"object": "embedding", "index": n, "embedding": [0.1, 0.2, 0.3]} for n in range(2)],
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}


def harness_of(agent: Agent, config: dict[str, Any]) -> OperatorHarness:
    return OperatorHarness(agent, config=config, crash=None, forced_replay=False, forced_serialization=False)


def config_of(server: ModelServer, **more: Any) -> dict[str, Any]:
    settings = {"retry": {**QUICK, **more.pop("retry", {})}, **more}
    names = [f"chat-models.analyst.{name}" for name in settings] + [
        f"embedding-models.words.{name}" for name in settings
    ]
    values = dict(zip(names, [*settings.values(), *settings.values()], strict=True))
    return {**options(server), "embedding-models.words.base_url": server.base_url, **values}


def bodies(*given: Any) -> Callable[[ServedRequest], Reply]:
    """Give the body whose number the user says, in all attempts of a conversation."""

    def answer(request: ServedRequest) -> Reply:
        body = given[int(request.text) if request.text.isdigit() else 0]
        return (
            body
            if isinstance(body, Reply)
            else Reply(body=body if isinstance(body, str) else json.dumps(body))
        )

    return answer


def ended(
    agent: Agent, answer: Any, inputs: list[Any], **config: Any
) -> tuple[list[Any], list[Any], ModelServer]:
    """Outputs and dead letters of inputs."""
    with ModelServer(answer) as server, harness_of(agent, config_of(server, **config)) as harness:
        for input_value in inputs:
            harness.push(input_value)
            while len(harness.outputs) + len(harness.dead_letters) < inputs.index(input_value) + 1:
                harness.advance_time(1000)
        return list(harness.outputs), list(harness.dead_letters), server


# -- answers that libraries stumbled over -------------------------------------------------

GOOD = completion_body(Reply("good"), "any", 0)
MESSAGE = GOOD["choices"][0]


def with_message(**changes: Any) -> Any:
    return {**GOOD, "choices": [{**MESSAGE, "message": {**MESSAGE["message"], **changes}}]}


LISTED: list[Any] = [
    {**GOOD, "choices": []},
    {**GOOD, "choices": [None]},
    {**GOOD, "choices": None},
    with_message(
        content=None, tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "x", "input": "y"}}]
    ),
    with_message(content=None, tool_calls=[None]),
    json.dumps(GOOD).replace('"good"', "NaN"),
    with_message(content="half a character: \ud83d"),
    with_message(
        content=None, tool_calls=[{**CALL, "function": {"name": "price_of", "arguments": "\udcff"}}]
    ),
    {**GOOD, "created": 10**30},
    {**GOOD, "created": "yesterday"},
    "[" * 100_000,
    "null",
    "[]",
    "",
]


def test_listed_answers_follow_the_retry_and_fallback_policies() -> None:
    answered = ended(Lenient(), bodies(*LISTED), list(range(len(LISTED))))
    outputs, letters, server = answered
    assert len(outputs) + len(letters) == len(LISTED)
    assert {letter.error_type for letter in letters} == {"ModelRequestError"}
    assert server.count == 2 * len(letters) + len(outputs)


class WithFallback(Lenient):
    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel("openai-chat:any", api_key={"env": KEY_VARIABLE}, fallback=["backup"])

    @chat_model
    def backup(self) -> ResourceDescriptor:
        return ChatModel("test")


def test_a_fallback_answers_in_the_place_of_nonsense() -> None:
    outputs, letters, _ = ended(WithFallback(), bodies({**GOOD, "choices": []}), [0])
    assert (len(outputs), letters) == (1, [])


@each_case("number", [1e39, -1e39, 1e308])
def test_a_vector_that_is_infinite_as_float32_is_a_failed_attempt(number: float) -> None:
    data = [{"object": "embedding", "index": n, "embedding": [number, 1.0]} for n in range(2)]
    outputs, [letter], server = ended(Embedding(), bodies({**EMBEDDINGS, "data": data}), [0])
    assert (outputs, letter.error_type, server.count) == ([], "EmbeddingMismatchError", 2)


def test_an_absurd_number_of_tokens_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    usage = {"prompt_tokens": 10**30, "completion_tokens": 5, "total_tokens": 10**30}
    outputs, letters, _ = ended(Lenient(), bodies({**GOOD, "usage": usage}), [0, 0])
    assert outputs == ["good", "good"], letters[0].traceback
    assert "tokens, which is impossible" in caplog.text


# -- refusals -----------------------------------------------------------------------------

REFUSAL = with_message(content=None, refusal="I do not talk about tea.")
FILTERED = {**GOOD, "choices": [{**MESSAGE, "finish_reason": "content_filter"}]}


@each_case(
    ("body", "reason"),
    [(REFUSAL, "I do not talk about tea."), (FILTERED, "content_filter")],
    ids=lambda _: "",
)
def test_a_refusal_is_told_with_its_reason_and_not_repeated(body: Any, reason: str) -> None:
    outputs, [letter], server = ended(Lenient(), bodies(body), [0])
    assert (outputs, letter.error_type, server.count) == ([], "ModelRefusedError", 1)
    assert reason in letter.traceback


def test_a_refusal_is_repeated_by_policy() -> None:
    outputs, [letter], server = ended(Lenient(), bodies(REFUSAL), [0], on_refusal="retry")
    assert (outputs, letter.error_type, server.count) == ([], "ModelRequestError", 2)
    assert "I do not talk about tea." in letter.traceback
    outputs, letters, _ = ended(WithFallback(), bodies(REFUSAL), [0], on_refusal="fallback")
    assert (len(outputs), letters) == (1, [])


# -- when a request is sent again ---------------------------------------------------------

AGAIN = [408, 409, 425, 429, 500, 502, 503, 504, 507, 529, 599]
NEVER = [400, 401, 403, 404, 405, 410, 413, 418, 422, 451, 501]


@each_case("status", AGAIN + NEVER)
def test_which_answers_of_http_are_tried_again(status: int) -> None:
    assert may_succeed_again(status) is (status in AGAIN)


@pytest.mark.parametrize("agent", [Lenient, Embedding])
def test_the_requests_of_each_status_are_counted(agent: type[Agent]) -> None:
    for status, requests in [(409, 2), (425, 2), (507, 2), (501, 1), (404, 1)]:
        _, [_], server = ended(agent(), lambda request, s=status: Reply("no", status=s), [0])
        assert server.count == requests, status


@pytest.mark.parametrize("agent", [Lenient, Embedding])
def test_a_service_that_asks_to_wait_too_long_fails_the_attempt(
    agent: type[Agent], caplog: pytest.LogCaptureFixture
) -> None:
    later = email.utils.formatdate(time.time() + 7200, usegmt=True)
    for header in ("7200", later):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            answer = lambda request, h=header: Reply("no", status=429, headers={"retry-after": h})  # noqa: E731
            _, [letter], server = ended(agent(), answer, [0], retry_after_limit=60)
        assert server.count == 1
        assert "retry_after_limit" in letter.traceback
        assert "longer than retry_after_limit=60" in caplog.text


# -- how much is read ---------------------------------------------------------------------

LARGE = json.dumps(with_message(content="x" * 3_000_000))
BOMB = Reply(body=gzip.compress(LARGE.encode()), headers={"content-encoding": "gzip"})


@pytest.mark.parametrize("agent", [Lenient, Embedding])
def test_an_answer_is_read_up_to_a_limit(agent: type[Agent]) -> None:
    for reply in (Reply(body=LARGE), BOMB):
        outputs, [letter], _ = ended(agent(), lambda request, r=reply: r, [0], response_limit=1_000_000)
        assert outputs == []
        assert "the answer has more than 1000000 bytes" in letter.traceback


ZEROS = b"0" * 30_000_000
CODED: list[tuple[str, bytes, str]] = [
    ("gzip", gzip.compress(ZEROS), "has more than"),
    ("gzip, gzip", gzip.compress(gzip.compress(ZEROS)), "compressed by"),
    ("deflate, identity, x-gzip", gzip.compress(zlib.compress(ZEROS)), "compressed by"),
    ("br", b"any", "compressed by"),
    ("zstd", b"any", "compressed by"),
]


class HasClient:
    """Such as the client of a provider, which has its client for HTTP in a place of its own."""

    def __init__(self, client: Any) -> None:
        self._client = client


@each_case(("coding", "content", "told"), CODED)
def test_no_piece_of_an_answer_is_decompressed_to_any_size(coding: str, content: bytes, told: str) -> None:
    reply = Reply(body=content, headers={"content-encoding": coding})
    with ModelServer(lambda request: reply) as server, httpx.Client() as client:
        bound_bodies(HasClient(client), 1_000_000)
        with pytest.raises(Exception, match=told):
            client.get(server.base_url)
        assert server.requests[-1].headers["accept-encoding"] == "gzip, deflate"


def test_an_answer_that_is_compressed_twice_is_a_failed_attempt() -> None:
    twice = Reply(body=CODED[1][1], headers={"content-encoding": "gzip, gzip"})
    for agent in (Lenient(), Embedding()):
        outputs, [letter], server = ended(agent, lambda request: twice, [0])
        assert (outputs, server.count) == ([], 2)
        assert "compressed by 'gzip, gzip'" in letter.traceback


def test_an_answer_below_the_limit_is_read() -> None:
    outputs, letters, _ = ended(Lenient(), lambda request: BOMB, [0])
    assert ([len(output) for output in outputs], letters) == ([3_000_000], [])


# -- whole agents -------------------------------------------------------------------------


class Whole(Agent):
    def __init__(self, url: str) -> None:
        provider = OpenAIProvider(base_url=url, api_key=KEY)
        self.agent = ModelAgent(
            OpenAIChatModel("any", provider=provider), name="worker", capabilities=[FlinkDurability()]
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def run(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(str(event.input))).output)


def of_whole(answer: Any) -> tuple[list[Any], list[Any], int]:
    with ModelServer(answer) as server, harness_of(Whole(server.base_url), {}) as harness:
        harness.push(0)
        for _ in range(60):
            if harness.outputs or harness.dead_letters:
                break
            harness.advance_time(10_000)
        return list(harness.outputs), list(harness.dead_letters), server.count


def test_a_whole_agent_follows_our_policies() -> None:
    assert of_whole([Reply("no", status=503), Reply("no", status=409), Reply("good")]) == (["good"], [], 3)
    outputs, [letter], requests = of_whole(lambda request: Reply("no", status=500))
    assert (outputs, letter.error_type, requests) == ([], "ModelServerError", 5)
    outputs, [letter], requests = of_whole(lambda request: Reply("no", status=400))
    assert (outputs, letter.error_type, requests) == ([], "ModelRequestRejectedError", 1)


def test_a_whole_agent_takes_odd_answers_as_failed_attempts() -> None:
    outputs, [letter], requests = of_whole(lambda request: Reply(body=json.dumps({**GOOD, "choices": []})))
    assert (outputs, requests) == ([], 5)
    assert letter.error_type in {"UnexpectedModelBehavior", "ModelRequestError"}
