"""Secrets of resources are nowhere but in requests: all that takes one is used, and everything is searched.

The service repeats all headers in its errors, and a script prints its environment.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from skill_folders import skill, write

from flink_agents import (
    Agent,
    ChatModel,
    ChatModelConnection,
    InputEvent,
    MCPServer,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    Skills,
    action,
)
from flink_agents.api.errors import AgentDefinitionError, AgentsError
from flink_agents.plan import compile_agent, load_yaml
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from flink_agents.testing.models.blocking import requests_allowed

pytestmark = pytest.mark.own_conditions

VARIABLES = (
    "CHAT_KEY",
    "CHAT_HEADER",
    "SHARED_KEY",
    "SHARED_HEADER",
    "EMBED_KEY",
    "EMBED_HEADER",
    "STORE_TOKEN",
    "SKILL_KEY",
    "SERVER_TOKEN",
    "SERVER_HEADER",
    "PROCESS_KEY",
)
FILES = ("FILE_KEY",)


def secret(name: str) -> str:
    """The value of a secret; no two are alike, and none occurs by chance."""
    return f"sk-{name.lower().replace('_', '-')}-0123456789abcdef"


class Repeating(BaseHTTPRequestHandler):
    """Refuses each request, and repeats its headers."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append(str(self.headers))  # type: ignore[attr-defined]
        body = json.dumps({"error": {"message": f"wrong: {dict(self.headers)}", "type": "x", "code": None}})
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Repeating)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with requests_allowed():
        yield server
    server.shutdown()
    thread.join()
    server.server_close()


LOUD = "import os, sys; print(dict(os.environ), file=sys.stderr, flush=True); sys.exit(3)"
"""A server that says what it was given, and ends."""

script: list[ScriptedModel] = []


def scripted() -> Any:
    return script[0]


class Everything(Agent):
    """Has one of each resource that takes a secret, and uses the one that its input names."""

    def __init__(self, port: int, skills: str, file: str) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        header = {"env": "CHAT_HEADER"}
        retry = {"max_attempts": 1}
        add = self.add_resource
        add(
            "own",
            "chat_model",
            ChatModel(
                "openai-chat:x",
                base_url=url,
                api_key={"env": "CHAT_KEY"},
                headers={"x-a": header},
                retry=retry,
            ),
        )
        add("file", "chat_model", ChatModel("openai:x", base_url=url, api_key={"file": file}, retry=retry))
        shared = ChatModelConnection(
            base_url=url, api_key={"env": "SHARED_KEY"}, headers={"x-b": {"env": "SHARED_HEADER"}}
        )
        add("gateway", "chat_model_connection", shared)
        add("shared", "chat_model", ChatModel("openai-chat:x", connection="gateway", retry=retry))
        embed = {
            "base_url": url,
            "api_key": {"env": "EMBED_KEY"},
            "headers": {"x-c": {"env": "EMBED_HEADER"}},
        }
        add("words", "embedding_model", ResourceDescriptor(model="openai:x", **embed))
        add("shared_words", "embedding_model", ResourceDescriptor(model="openai:x", connection="gateway"))
        token = {"x-chroma-token": {"env": "STORE_TOKEN"}}
        add(
            "texts",
            "vector_store",
            ResourceDescriptor(
                store="chroma", host="127.0.0.1", port=port, headers=token, embedding_model="words"
            ),
        )
        headers = {"x-d": {"env": "SERVER_HEADER"}}
        auth = {"env": "SERVER_TOKEN"}
        add("shop", "mcp_server", MCPServer(url=f"{url}/mcp", auth=auth, headers=headers, retry=retry))
        environment = {"KEY": {"env": "PROCESS_KEY"}}
        add(
            "stock",
            "mcp_server",
            MCPServer(command=sys.executable, args=["-c", LOUD], env=environment, retry=retry),
        )
        add("manuals", "skills", Skills(skills, environment={"KEY": {"env": "SKILL_KEY"}}))
        add("clerk", "chat_model", ChatModel(clazz=f"{__name__}:scripted", skills=["manuals"]))

    @action(InputEvent)
    async def use(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        kind, name = event.input
        try:
            if kind == "chat":
                return OutputEvent(output=(await ctx.chat(name, "hello")).output)
            if kind == "embed":
                return OutputEvent(output=await ctx.embed(name, "hello"))
            if kind == "server":
                return OutputEvent(output=await ctx.mcp_server(name).call_tool("reserve", item="tea"))
            return OutputEvent(output=await ctx.vector_store(name).count())
        except AgentsError as error:
            # The failure is recorded, since the action goes on behind it.
            ctx.short_term_memory.set("failed", str(error))
            raise ValueError("not to be had") from error


USES = [
    ("chat", "own", ("CHAT_KEY", "CHAT_HEADER")),
    ("chat", "file", ("FILE_KEY",)),
    ("chat", "shared", ("SHARED_KEY", "SHARED_HEADER")),
    ("embed", "words", ("EMBED_KEY", "EMBED_HEADER")),
    ("embed", "shared_words", ("SHARED_KEY", "SHARED_HEADER")),
    ("store", "texts", ("STORE_TOKEN",)),
    ("server", "shop", ("SERVER_TOKEN", "SERVER_HEADER")),
    ("server", "stock", ()),
]
STATUS_ALONE = ("shop",)
"""Those of which an error has the status, and not what the service said."""


@pytest.fixture
def earlier_objects() -> list[Any]:
    """Return what knows secrets and exists before the test; the collector sees it no longer."""
    gc.unfreeze()
    objects = knowing(gc.get_objects())
    gc.freeze()
    return objects


def test_secrets_are_nowhere(
    earlier_objects: list[Any],
    service: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in VARIABLES:
        monkeypatch.setenv(name, secret(name))
    (tmp_path / "key").write_text(secret("FILE_KEY"))
    printing = "import os, sys; print(os.environ['KEY']); print(dict(os.environ), file=sys.stderr)"
    skills = write(tmp_path / "skills", skill("do", show=printing))
    agent = Everything(service.server_port, str(skills), str(tmp_path / "key"))
    config = {
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(tmp_path / "store" / "calls.db"),
    }
    (tmp_path / "store").mkdir()
    places: dict[str, str] = {"plan": compile_agent(agent).to_json()}
    # A key for each use, whose records the next attempt does not take for its own.
    unforced: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
    harness = OperatorHarness(agent, lambda use: use[1], config=config, **unforced)
    script[:] = [
        ScriptedModel([ToolCall("run_script", {"skill": "do", "script": "scripts/show.py"}), "done"])
    ]
    snapshot = harness.snapshot()
    assert harness.push(("chat", "clerk")) == ["done"]
    transcript = str(script[0].asked[1][-1])
    assert "'stdout': '***" in transcript
    places |= {"transcript": transcript, "state of the script": repr(harness.snapshot())}
    for kind, name, sent in USES:
        seen = len(service.seen)
        with pytest.raises(Exception) as caught:
            harness.push((kind, name))
        headers = "".join(service.seen[seen:])
        assert all(secret(secret_name) in headers for secret_name in sent), f"{name} has not sent {sent}"
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert ("***" if name not in STATUS_ALONE else "status 401") in text
        places[f"error of {name}"] = text
        places[f"state with {name}"] = repr(harness.snapshot())
        places[f"objects with {name}"] = "\n".join(map(repr, [*earlier_objects, *knowing(gc.get_objects())]))
        harness.restore(snapshot)
    harness.close()
    places["log"] = caplog.text
    written = [file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()]
    places["store"] = b"".join(written).decode("latin-1")
    assert "run_script" in places["store"]
    for where, text in places.items():
        for name in (*VARIABLES, *FILES):
            assert secret(name) not in text, f"the secret {name} is in: {where}"


def knowing(objects: list[Any]) -> list[Any]:
    """Those of the rooms that know secrets."""
    # A session has millions of objects, and thousands of types.
    types = {
        class_
        for class_ in set(map(type, objects))
        if str(class_.__module__).startswith("flink_agents.models")
    }
    return [candidate for candidate in objects if type(candidate) in types]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("chat_model", {"model": "openai:x", "api_key": secret("CHAT_KEY")}),
        ("chat_model_connection", {"api_key": secret("CHAT_KEY")}),
        ("embedding_model", {"model": "openai:x", "api_key": secret("CHAT_KEY")}),
        ("vector_store", {"store": "chroma", "host": "x", "token": secret("CHAT_KEY")}),
        ("mcp_server", {"url": "http://x/mcp", "auth": secret("CHAT_KEY")}),
        ("mcp_server", {"command": "x", "env": {"KEY": {"value": secret("CHAT_KEY")}}}),
        ("skills", {"path": "x", "environment": {"KEY": {"value": secret("CHAT_KEY")}}}),
    ],
)
def test_a_secret_that_is_written_out_is_refused_without_it(kind: str, said: dict[str, Any]) -> None:
    agent = Agent(name="A").add_action("use", InputEvent, use)
    agent.add_resource("it", kind, ResourceDescriptor(**said))
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(agent)
    assert secret("CHAT_KEY") not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "section",
    [
        "chat_models: [{name: it, model: 'openai:x', api_key: SECRET}]",
        "chat_models: [{name: it, model: 'openai:x', apikey: SECRET}]",
        "chat_model_connections: [{name: it, api_key: {value: SECRET}}]",
        "embedding_models: [{name: it, model: 'openai:x', api_key: SECRET}]",
        "mcp_servers: [{name: it, url: 'http://x/mcp', auth: SECRET}]",
        "mcp_servers: [{name: it, command: x, env: {KEY: {value: SECRET}}}]",
        "skills: [{name: it, path: x, environment: {KEY: {value: SECRET}}}]",
        "vector_stores: [{name: it, store: chroma, host: x, headers: {token: {value: SECRET}}}]",
        "resources: [{name: it, type: skills, arguments: {path: x, key: SECRET}}]",
    ],
)
def test_a_secret_that_is_written_into_a_file_is_refused_without_it(tmp_path: Path, section: str) -> None:
    file = tmp_path / "agents.yaml"
    text = section.replace("SECRET", secret("CHAT_KEY"))
    run = f"{{name: use, triggers: [_input_event], function: '{__name__}:use'}}"
    file.write_text(f"agents:\n  - name: A\n    actions: [{run}]\n    {text}\n")
    with pytest.raises(AgentsError) as caught:
        compile_agent(load_yaml(file)["A"])
    assert secret("CHAT_KEY") not in "".join(traceback.format_exception(caught.value))
    assert "agents.yaml" in str(caught.value)


def use(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=event.input)
