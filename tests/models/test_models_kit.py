"""The test kit of models: a script that must be used up, a server that counts, requests that are refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
from pydantic_ai import ModelRequest, models
from pydantic_ai.direct import model_request

from flink_agents.testing.models import ModelServer, Reply, ScriptedModel, ToolCall

pytestmark = pytest.mark.own_conditions

HELLO = [ModelRequest.user_text_prompt("hello")]


def ask_model(model: Any) -> str:
    return str(asyncio.run(model_request(model, HELLO)).text)


def test_a_script_has_to_be_used_up() -> None:
    model = ScriptedModel(["one", Reply("two"), lambda messages: f"{len(messages)} messages", OSError("no")])
    assert [ask_model(model) for _ in range(3)] == ["one", "two", "1 messages"]
    with pytest.raises(AssertionError, match="got 3 requests, and 1 lines"):
        model.assert_complete()
    with pytest.raises(OSError, match="no"):
        ask_model(model)
    model.assert_complete()
    with pytest.raises(AssertionError, match="4 lines, so request 5 has none"):
        ask_model(model)


def post(server: ModelServer, path: str = "/chat/completions", **body: Any) -> Any:
    request = urllib.request.Request(
        server.base_url + path, json.dumps({"model": "m", **body}).encode(), {"authorization": "Bearer k"}
    )
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read())


def test_a_server_counts_and_has_to_be_used_up() -> None:
    replies = [
        Reply("one", tool_calls=[ToolCall("look", {"a": 1})]),
        Reply("busy", status=503, retry_after=2),
    ]
    with ModelServer([*replies, Reply("never")]) as server:
        message = post(server, messages=[{"role": "user", "content": "hello"}])["choices"][0]["message"]
        assert message["content"] == "one"
        assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": 1}'}
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server, "/responses", input="again")
        caught.value.close()
        assert (caught.value.code, caught.value.headers["retry-after"]) == (503, "2")
    assert [(request.path, request.text) for request in server.requests] == [
        ("/v1/chat/completions", "hello"),
        ("/v1/responses", "again"),
    ]
    with pytest.raises(AssertionError, match="1 replies"):
        server.assert_complete()


def test_requests_are_refused_in_tests() -> None:
    assert models.ALLOW_MODEL_REQUESTS is False


def test_a_test_with_a_server_may_send_some(model_server: Any) -> None:
    assert models.ALLOW_MODEL_REQUESTS is True
    assert model_server([]).count == 0


def test_the_server_needs_no_model_library() -> None:
    code = "import sys, flink_agents.testing.models; print('pydantic_ai' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
