"""A chat model over HTTP, at a server that counts: what is sent, what is repeated, what a crash repeats."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_agents import KEY, KEY_VARIABLE, TOOL_REPLIES, Analyst, Judge, by_history, options

from flink_agents import Agent, ChatModel, InputEvent, RunnerContext
from flink_agents.api.errors import ActionFailedError, ModelRequestError
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall
from flink_agents.testing.models.blocking import requests_allowed

Serve = Callable[..., ModelServer]
Make = Callable[..., OperatorHarness]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    yield


def test_tools_and_answer(model_server: Serve, agent_harness: Make) -> None:
    server = model_server(by_history)
    harness = agent_harness(Analyst(), config=options(server), crash=None)
    assert harness.push("tea or coffee?") == ["good"]
    first, second, third = (request.body for request in server.requests)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["price_of", "stock_of"]
    parameters = first["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["item"]["description"] == "Name of the item."
    assert first["messages"][0]["content"] == "You judge orders."
    assert [message["content"] for message in second["messages"][-2:]] == ["7.5", "3"]
    assert third["messages"][-1]["content"] == "15.0"


@pytest.mark.own_conditions
def test_a_crash_at_every_point_changes_nothing(model_server: Serve, agent_harness: Make) -> None:
    server = model_server(by_history)
    with agent_harness(Analyst(), config=options(server), crash="everywhere") as harness:
        assert harness.push("tea or coffee?") == ["good"]
    assert server.count == 3


@pytest.mark.parametrize("fault", [Fault.UNACKNOWLEDGED, Fault.LOST])
def test_requests_that_were_recorded_are_never_sent_again(model_server: Serve, fault: Fault) -> None:
    """The attempt dies at every append; behind one that is stored, nothing before it is sent again."""
    appends = 0
    met = True
    while met:
        server = model_server(by_history)
        faults = Faults(at_append(appends, fault))
        harness = OperatorHarness(Analyst(), config=options(server), store=faults.store, crash=None)
        snapshot = harness.snapshot()
        try:
            outputs = harness.push("tea or coffee?")
            met = False
        except Exception:
            harness.restore(snapshot)
            outputs = harness.push("tea or coffee?")
        harness.close()
        assert outputs == ["good"]
        repeated = server.count - 3
        assert repeated == 0 if fault.stores or not met else repeated <= 1
        message_counts = [len(request.body["messages"]) for request in server.requests]
        assert message_counts == sorted(message_counts)
        appends += 1
    assert appends > 6  # three requests, three calls of tools, and the end of the action


@pytest.mark.own_conditions
@pytest.mark.parametrize("interface", ["openai-chat", "openai"])
@pytest.mark.parametrize("stream", [False, True])
def test_both_interfaces_with_and_without_streams(
    model_server: Serve, agent_harness: Make, interface: str, stream: bool
) -> None:
    server = model_server(
        [
            Reply(tool_calls=[ToolCall("price_of", {"item": "tea"})]),
            Reply(tool_calls=[ToolCall("final_result", {"good": True, "reason": "it is cheap enough"})]),
        ]
    )
    config = {
        **options(server),
        "chat-models.analyst.model": f"{interface}:gpt-5-mini",
        "chat-models.analyst.stream": stream,
    }
    harness = agent_harness(Judge(), config=config, crash="everywhere")
    assert harness.push("tea?") == [{"good": True, "reason": "it is cheap enough"}]
    server.assert_complete()
    assert {bool(request.body.get("stream")) for request in server.requests} == {stream}


@pytest.mark.own_conditions
@pytest.mark.parametrize("mode", ["native", "prompted"])
def test_modes_of_output(model_server: Serve, agent_harness: Make, mode: str) -> None:
    server = model_server([Reply('{"good": "perhaps"}'), Reply('```json\n{"good": false}\n```')])
    harness = agent_harness(Judge(mode), config=options(server), crash="everywhere")
    assert harness.push("tea?") == [{"good": False, "reason": ""}]
    first, second = server.requests
    assert first.body.get("response_format", {}).get("type") == {
        "native": "json_schema",
        "prompted": "json_object",
    }.get(mode)
    assert ("good" in str(first.body["messages"])) == (mode == "prompted")
    assert "valid boolean" in second.text


@pytest.mark.own_conditions
def test_failures_that_pass(model_server: Serve, agent_harness: Make) -> None:
    server = model_server(
        [Reply("slow down", status=429, retry_after=0.05), Reply(body="{no"), Reply("good")]
    )
    harness = agent_harness(Analyst(), config=options(server), crash="everywhere")
    assert harness.push("tea?") == ["good"]
    server.assert_complete()
    assert server.count == 3


def test_retry_after_is_honoured(
    model_server: Serve, agent_harness: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The model's own pause would be a hundredth of a second; a harness ends each by its own clock."""
    caplog.set_level(logging.INFO, "flink_agents.durable")
    came: list[float] = []

    def answer(request: ServedRequest) -> Reply:
        came.append(time.monotonic())
        return Reply("slow down", status=429, retry_after=0.4) if len(came) < 3 else Reply("good")

    config = options(model_server(answer))
    assert agent_harness(Analyst(), config=config, crash=None, forced_replay=False).push("tea?") == ["good"]
    assert caplog.text.count("failed; next in 0.4 s") == 2


def test_metrics_count_what_was_sent(model_server: Serve) -> None:
    server = model_server([Reply("busy", status=503), Reply("good", input_tokens=7, output_tokens=3)])
    harness = OperatorHarness(Analyst(), config=options(server), crash=None, forced_replay=False)
    assert harness.push("tea?") == ["good"]
    metrics = {name: value for name, value in harness.metrics.items() if name.startswith("chat.")}
    assert metrics.pop("chat.analyst.latency_ms") > 0
    assert metrics == {
        "chat.analyst.limit_wait_ms": 0,
        "chat.analyst.requests": 2,
        "chat.analyst.failures": 1,
        "chat.analyst.input_tokens": 7,
        "chat.analyst.output_tokens": 3,
    }
    harness.close()


def failure(harness: OperatorHarness, of: str = "tea?") -> str:
    with pytest.raises(ActionFailedError) as caught:
        harness.push(of)
    assert isinstance(caught.value.__cause__, ModelRequestError)
    return str(caught.value)


def test_failures_that_stay(model_server: Serve, agent_harness: Make) -> None:
    server = model_server(lambda request: Reply("it burns", status=500))
    text = failure(agent_harness(Analyst(), config=options(server), crash=None, forced_replay=False))
    assert server.count == 3
    assert "it burns" in text and "did not answer" in text
    refusing = model_server(lambda request: Reply("no such model", status=404))
    text = failure(agent_harness(Analyst(), config=options(refusing), crash=None, forced_replay=False))
    assert refusing.count == 1
    assert "no such model" in text and "rejected" in text


def test_a_connection_that_breaks_and_a_server_that_is_slow(model_server: Serve, agent_harness: Make) -> None:
    server = model_server([Reply(hang_up=True), Reply("late", delay=30), Reply("good")])
    config = {**options(server), "chat-models.analyst.timeout": 0.3}
    assert agent_harness(Analyst(), config=config, crash=None).push("tea?") == ["good"]
    assert server.count == 3


STREAMS = {
    "openai-chat": (
        {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "any",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "half an ans"}}],
        },
    ),
    "openai": (
        {"type": "response.created", "sequence_number": 0, "response": {}},
        {
            "type": "response.output_text.delta",
            "sequence_number": 1,
            "item_id": "m",
            "output_index": 0,
            "content_index": 0,
            "delta": "half an ans",
            "logprobs": [],
        },
    ),
}
"""For each interface the first events of a stream."""


@pytest.mark.parametrize("interface", STREAMS)
def test_a_stream_that_breaks_off_is_no_answer(
    model_server: Serve, agent_harness: Make, interface: str
) -> None:
    """The connection is closed in good order: nothing but the missing end says that something is missing."""
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in STREAMS[interface])
    server = model_server([Reply(body=body, headers={"content-type": "text/event-stream"}), Reply("whole")])
    config = {
        **options(server),
        "chat-models.analyst.stream": True,
        "chat-models.analyst.model": f"{interface}:any",
    }
    assert agent_harness(Analyst(), config=config, crash="everywhere").push("tea?") == ["whole"]
    assert server.count == 2


def test_a_service_that_is_not_there_is_told_with_the_reason(agent_harness: Make) -> None:
    config = {"chat-models.analyst.base_url": "http://127.0.0.1:1/v1"}
    with requests_allowed():
        text = failure(agent_harness(Analyst(), config=config, crash=None, forced_replay=False))
    assert "All connection attempts failed" in text


def test_secrets_are_nowhere(model_server: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not even where the service repeats the key in its error."""
    caplog.set_level(logging.DEBUG)
    replies = iter([Reply(f"busy, {KEY}", status=503), *TOOL_REPLIES, Reply(f"wrong key {KEY}", status=401)])
    server = model_server(lambda request: next(replies))
    config = {
        **options(server),
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(tmp_path / "journal.db"),
    }
    with OperatorHarness(Analyst(), config=config, crash=None, forced_replay=False) as harness:
        assert harness.push("tea?") == ["good"]
        text = failure(harness)
        state = repr(harness.snapshot())
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {KEY}"] * 5
    assert "wrong key ***" in text
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"tea" in written
    plan = compile_agent(Analyst()).to_json()
    assert json.loads(plan)["resources"]
    for place in (text, plan, state, caplog.text, written.decode("latin-1")):
        assert KEY not in place


def test_a_key_that_the_library_finds_by_itself_is_hidden_too(
    model_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = model_server([Reply(f"wrong key {KEY}", status=401)])

    async def ask(event: InputEvent, ctx: RunnerContext) -> None:
        await ctx.chat("clerk", event.input)

    agent = Agent(name="Keyless").add_action("ask", [InputEvent], ask)
    agent.add_resource("clerk", "chat_model", ChatModel("openai-chat:any", base_url=server.base_url))
    with OperatorHarness(agent, crash=None, forced_replay=False) as harness:
        text = failure(harness)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "wrong key ***" in text and KEY not in text


def test_a_secret_that_is_not_there(
    model_server: Serve, agent_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    server = model_server([])
    harness = agent_harness(Analyst(), config=options(server), crash=None, forced_replay=False)
    with pytest.raises(ActionFailedError, match=f"the variable {KEY_VARIABLE}"):
        harness.push("tea?")
    assert server.count == 0


def test_a_request_to_another_model_than_the_server_is_refused(agent_harness: Make) -> None:
    harness = agent_harness(Analyst(), crash=None, forced_replay=False)
    with pytest.raises(ActionFailedError, match="Model requests are not allowed"):
        harness.push("tea?")


def test_limits_of_a_model_are_shared_by_all_keys(model_server: Serve) -> None:
    """As many requests as are allowed are under way, and no more."""
    server = model_server(lambda request: Reply("good", delay=0.1))
    config: dict[str, Any] = {**options(server), "chat-models.analyst.max_concurrency": 2}
    harness = OperatorHarness(
        Analyst(), lambda record: record, config=config, auto_run=False, crash=None, forced_replay=False
    )
    harness.push_all([f"order {number}" for number in range(8)])
    harness.run_until_idle()
    assert harness.outputs == ["good"] * 8
    harness.close()
    assert (server.count, server.most_at_once) == (8, 2)
