"""A secret that everything uses is in no error, dead letter, log, journal, state or output of a command."""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from typer.testing import CliRunner

from flink_agents import Agent, ChatModel, InputEvent, MCPServer, OutputEvent, RunnerContext, action, tool
from flink_agents.api.errors import ActionFailedError
from flink_agents.cli.main import app
from flink_agents.models.engine import FlinkDurability
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ToolCall
from tests.suite.canary import VARIABLE, Canary

Serve = Callable[..., ModelServer]

pytestmark = pytest.mark.own_conditions

SERVER = """
import os
from mcp.server.mcpserver import MCPServer
shop = MCPServer("shop")

@shop.tool()
def environment() -> dict[str, str]:
    return {"key": os.environ["KEY"], "all": str(dict(os.environ))}

@shop.tool()
def fail() -> str:
    raise ValueError("bad key " + os.environ["KEY"])

shop.run()
"""

FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "url": lambda text: quote(text, safe=""),
    "base64": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "repr": lambda text: repr({"headers": {"Authorization": f"Bearer {text}"}}),
}
"""Forms in which services repeat what they were sent."""

WHOLE: list[Any] = []
"""The whole agent of pydantic-ai that a test stands for; its tool shows the secret, too."""


class Leaking(Agent):
    """Whatever it does with the secret, it says it."""

    def __init__(self, url: str, folder: Path) -> None:
        (folder / "server.py").write_text(SERVER)
        key = {"env": VARIABLE}
        settings = {"extra_headers": {"x-extra": key}}
        self.add_resource(
            "model",
            "chat_model",
            ChatModel(
                "openai-chat:x",
                base_url=url,
                api_key=key,
                headers={"x-own": key},
                settings=settings,
                tools=["show"],
                retry={"max_attempts": 1},
            ),
        )
        command: Any = {"command": sys.executable, "args": [str(folder / "server.py"), "--token", key]}
        self.add_resource(
            "shop", "mcp_server", MCPServer(**command, env={"KEY": key}, retry={"max_attempts": 1})
        )

    @tool
    @staticmethod
    def show(form: str) -> dict[str, Any]:
        """Show the secret."""
        return {"shown": FORMS[form](os.environ[VARIABLE]), "in": [{"a": FORMS[form](os.environ[VARIABLE])}]}

    @action(InputEvent, on_error="dead-letter")
    async def use(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        what, form = event.input
        if what == "chat":
            return OutputEvent(output=(await ctx.chat("model", form)).output)
        if what == "whole":
            return OutputEvent(output=(await WHOLE[0].run(form)).output)
        if what == "server":
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool(form))
        secret = FORMS[form](os.environ[VARIABLE])
        if what == "durable":
            await ctx.durable_execute_async(fails, form)
        try:
            raise KeyError(f"inner {secret}")
        except KeyError as error:
            error.add_note(f"note {secret}")
            logging.getLogger("of.the.author").warning("it is %s", secret)
            raise ExceptionGroup("all", [ValueError(secret)]) from error


def fails(form: str) -> None:
    raise PermissionError(13, f"denied to {FORMS[form](os.environ[VARIABLE])}")


def answering(secret: str) -> Callable[[Any], Reply]:
    """A service that repeats its key: as an error, in an answer, or by asking for the tool that does."""

    def answer(request: Any) -> Reply:
        text = request.text
        if text in FORMS:
            return Reply(f"wrong key: {FORMS[text](secret)}", status=401)
        form = text.removeprefix("show ")
        if form in FORMS:
            return Reply(tool_calls=[ToolCall("show", {"form": form})])
        return Reply(f"the key is {secret}")

    return answer


def test_the_secret_is_nowhere(
    canary: Canary, model_server: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = model_server(answering(canary.value))
    provider = OpenAIProvider(base_url=server.base_url, api_key=canary.value)
    model = OpenAIChatModel("any", provider=provider)
    WHOLE[:] = [ModelAgent(model, name="whole", tools=[Leaking.show], capabilities=[FlinkDurability()])]
    store = tmp_path / "store" / "calls.db"
    store.parent.mkdir()
    config = {"action-state.store": "sqlite", "action-state.sqlite.path": str(store)}
    agent = Leaking(server.base_url, tmp_path)
    places: dict[str, str | bytes] = {"plan": compile_agent(agent).to_json()}
    inputs = [(what, form) for what in ("chat", "whole", "code", "durable") for form in FORMS]
    inputs += [(what, f"show {form}") for what in ("chat", "whole") for form in FORMS]
    inputs += [("server", "environment"), ("server", "fail")]
    unforced: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
    with OperatorHarness(agent, lambda pair: "-".join(pair), config=config, **unforced) as harness:
        for input_pair in inputs:
            places[f"output of {input_pair}"] = repr(harness.push(input_pair))
        places["dead letters"] = "\n".join(map(repr, harness.dead_letters))
        places["state"] = repr(harness.snapshot())
        failed = len(harness.dead_letters)
        command = ["journal", "show", "whole-plain", "--store", "sqlite", "--path", str(store), "--json"]
        shown = CliRunner().invoke(app, command)
        places["journal show"] = shown.output
    # The service was really given it, and it was really hidden.
    assert all(request.headers["authorization"] == f"Bearer {canary.value}" for request in server.requests)
    assert any(request.headers.get("x-extra") == canary.value for request in server.requests)
    assert failed == 4 * len(FORMS) + 1
    for name in ("dead letters", "output of ('chat', 'show plain')", "journal show"):
        assert "***" in str(places[name]), name
    places["log"] = caplog.text
    assert canary.places(places) == []
    assert canary.files(store.parent) == []


class Failing(Leaking):
    @action(InputEvent)
    async def use(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return await Leaking.use(self, event, ctx)


def test_the_failure_of_a_job_shows_nothing(canary: Canary, model_server: Serve, tmp_path: Path) -> None:
    """Flink shows the exception that ends a job, with all that led to it."""
    server = model_server(answering(canary.value))
    provider = OpenAIProvider(base_url=server.base_url, api_key=canary.value)
    model = OpenAIChatModel("any", provider=provider)
    WHOLE[:] = [ModelAgent(model, name="whole", capabilities=[FlinkDurability()])]
    unforced: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
    for what in ("chat", "whole", "code", "durable"):
        for form in FORMS:
            harness = OperatorHarness(Failing(server.base_url, tmp_path), **unforced)
            with pytest.raises(ActionFailedError) as caught:
                harness.push((what, form))
            text = "".join(traceback.format_exception(caught.value))
            assert "***" in text
            assert not canary.is_in(text), (what, form, text)


def test_the_canary_is_found(canary: Canary, tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    for name, form in FORMS.items():
        (tmp_path / name).write_text(f"before {form(canary.value)} behind")
    assert len(canary.files(tmp_path)) == len(FORMS)
