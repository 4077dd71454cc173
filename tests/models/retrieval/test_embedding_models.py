"""Embedding models over HTTP: requests, limits, failures, and what the job records of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from embedding_server import EmbeddingServer, vector

from flink_agents import Agent, InputEvent, OutputEvent, ResourceDescriptor, RunnerContext
from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import ActionFailedError, AgentDefinitionError, MissingExtraError
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models.blocking import requests_allowed
from tests.suite.tables import each_case

KEY = "sk-very-secret"


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    embedding_server = EmbeddingServer()
    with requests_allowed():
        yield embedding_server
    embedding_server.close()


def agent_of(**arguments: Any) -> Agent:
    async def embed(event: Any, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.embed("model", event.input))

    agent = Agent(name="Embeds").add_action("embed", InputEvent, embed)
    return agent.add_resource("model", "embedding_model", ResourceDescriptor(**arguments))


@pytest.fixture
def drive(
    agent_harness: Callable[..., OperatorHarness], server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., OperatorHarness]:
    """Makes a harness of an agent that embeds its inputs by the server."""
    monkeypatch.setenv("THE_KEY", KEY)

    def make(
        model: str = "openai:small", harness: dict[str, Any] | None = None, **said: Any
    ) -> OperatorHarness:
        said = {"base_url": server.base_url, "api_key": {"env": "THE_KEY"}, **said}
        return agent_harness(agent_of(model=model, **said), **(harness or {}))

    return make


def inputs(server: EmbeddingServer) -> list[Any]:
    return [request["input"] for request in server.requests]


@pytest.mark.executes_once
def test_requests_have_so_many_texts_as_a_batch(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    assert drive(batch_size=2).push(texts) == [[vector(text, 4) for text in texts]]
    assert sorted(inputs(server)) == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_one_text_is_a_list_of_one(drive: Callable[..., OperatorHarness]) -> None:
    assert drive().push("abc") == [[vector("abc", 4)]]


def test_no_text_is_no_request(drive: Callable[..., OperatorHarness], server: EmbeddingServer) -> None:
    assert drive().push([]) == [[]]
    assert server.requests == []


@pytest.mark.executes_once
def test_a_replay_asks_nobody(drive: Callable[..., OperatorHarness], server: EmbeddingServer) -> None:
    harness = drive(batch_size=1)
    snapshot = harness.snapshot()
    first = harness.push(["a", "b"])
    assert (harness.recover(snapshot), len(server.requests)) == (first, 2)


def test_a_crash_anywhere_repeats_no_recorded_request(drive: Callable[..., OperatorHarness]) -> None:
    # The first request imports what the provider needs; repetitions take as long as the first time.
    drive(harness={"crash": None}).push(["a"])
    drive(batch_size=1, harness={"crash": "everywhere"}).push(["a", "b"])


def test_dimensions_are_asked_for_and_checked(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    assert [len(embedding) for embedding in drive(dimensions=3).push(["a"])[0]] == [3]
    assert server.requests[0]["dimensions"] == 3


@pytest.mark.nightly
def test_an_answer_that_lacks_vectors_is_refused(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    server.missing = 1
    with pytest.raises(ActionFailedError, match="EmbeddingMismatchError") as caught:
        drive().push(["a", "b"])
    assert "expected: 2 vectors of one length" in str(caught.value)
    assert "found: 1 vectors of 4 dimensions" in str(caught.value)


ODD: dict[str, list[Any]] = {
    "empty": [[], []],
    "one is empty": [[], [1.0, 2.0]],
    "nested": [[[1.0, 2.0]], [[1.0, 2.0]]],
    "nested and empty": [[[]], [[]]],
    "scalars": [1.0, 2.0],
    "nulls": [None, None],
    "objects": [{"a": 1.0}, {"a": 1.0}],
    "null among numbers": [[1.0, None], [1.0, 2.0]],
    "texts among numbers": [["1.0", "2.0"], ["1.0", "2.0"]],
    "NaN": [[float("nan"), 1.0], [1.0, 2.0]],
    "infinity": [[float("inf"), 1.0], [1.0, 2.0]],
    "no float32": [[1e300, 1.0], [1.0, 2.0]],
    "several lengths": [[1.0], [1.0, 2.0]],
    "too few": [[1.0, 2.0]],
    "too many": [[1.0, 2.0]] * 3,
}
"""Answers of a service that is not ready, to two texts."""


@pytest.mark.executes_once
@each_case("kind", ODD)
def test_an_odd_answer_is_a_failed_request(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer, kind: str
) -> None:
    server.requests.clear()
    server.odd = [ODD[kind], ODD[kind]]
    harness = drive(retry={"initial_interval": 0.001})
    snapshot = harness.snapshot()
    assert harness.push(["a", "b"]) == [[vector("a", 4), vector("b", 4)]]
    assert len(server.requests) == 3
    assert harness.recover(snapshot) == [[vector("a", 4), vector("b", 4)]]
    assert len(server.requests) == 3


@pytest.mark.executes_once
def test_an_answer_of_other_dimensions_is_a_failed_request(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    server.odd = [[[1.0, 2.0]], [[]]]
    assert drive(dimensions=3, retry={"initial_interval": 0.001}).push(["a"]) == [[vector("a", 3)]]
    assert len(server.requests) == 3


@pytest.mark.executes_once
@each_case("kind", ODD)
def test_a_restart_asks_again_after_odd_answers(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer, kind: str
) -> None:
    server.odd = [ODD[kind]]
    harness = drive(retry={"max_attempts": 1})
    snapshot = harness.snapshot()
    with pytest.raises(ActionFailedError, match=r"EmbeddingMismatchError|RetrievalError"):
        harness.push(["a", "b"])
    assert harness.recover(snapshot) == [[vector("a", 4), vector("b", 4)]]


@pytest.mark.nightly(beyond=1)
@pytest.mark.executes_once
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_request_that_may_succeed_is_tried_again(
    drive: Callable[..., OperatorHarness],
    server: EmbeddingServer,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flink_agents.durable")
    server.failures = [(status, {"retry-after": "3", "x-should-retry": "false"})]
    assert drive().push(["a"]) == [[vector("a", 4)]]
    assert len(server.requests) == 2
    assert "failed; next in 3 s" in caplog.text


@pytest.mark.executes_once
def test_a_request_that_cannot_succeed_is_not(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    server.failures = [(400, {})]
    with pytest.raises(ActionFailedError, match="status_code: 400") as caught:
        drive().push(["a"])
    assert len(server.requests) == 1
    assert KEY not in str(caught.value)


@pytest.mark.executes_once
def test_no_more_requests_run_than_may(
    drive: Callable[..., OperatorHarness], server: EmbeddingServer
) -> None:
    server.hold = threading.Event()
    harness = drive(batch_size=1, max_concurrency=2)
    threading.Thread(target=release, args=(server,), daemon=True).start()
    harness.push(["a", "b", "c", "d", "e"])
    assert (server.busy, len(server.requests)) == (2, 5)


def release(server: EmbeddingServer) -> None:
    """Let the server answer, once two requests are there."""
    while len(server.requests) < 2:
        time.sleep(0.01)
    assert server.hold is not None
    server.hold.set()


def test_secrets_are_named_only(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    harness.push(["a"])
    assert KEY not in harness.plan.to_json()
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(agent_of(model="openai:small", api_key=KEY))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, "model: Field required"),
        ({"model": "small"}, "model: String should match pattern"),
        ({"model": "openai:small", "batch": 3}, "batch: Extra inputs are not permitted"),
        ({"model": "openai:small", "batch_size": 0}, "batch_size: Input should be greater"),
        ({"model": "openai:small", "api_key": {"env": "A", "file": "B"}}, "api_key: a secret has either"),
    ],
)
def test_a_description_is_checked_when_it_is_compiled(said: dict[str, Any], found: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(agent_of(**said))
    assert found in (caught.value.found or "")


def test_a_provider_that_is_not_installed_names_its_extra() -> None:
    with pytest.raises(MissingExtraError) as caught:
        compile_agent(agent_of(model="cohere:embed-v4.0"))
    assert install_command("cohere") in (caught.value.fix or "")


@pytest.mark.parametrize("model", ["nobody:small", "wordllama:large", "anthropic:x"])
def test_a_model_that_nobody_has_is_named(agent_harness: Callable[..., OperatorHarness], model: str) -> None:
    with pytest.raises(ActionFailedError, match=model.split(":")[1] if "wordllama" in model else model):
        agent_harness(agent_of(model=model)).push(["a"])
