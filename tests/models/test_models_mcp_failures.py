"""Servers that are missing, die, hang, refuse, talk nonsense or too much; and processes left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mcp_agents import (
    QUICK,
    Careful,
    Clerk,
    Counts,
    Direct,
    ServerProcess,
    Shop,
    by_stdio,
    script,
    served,
    wait_until,
)

from flink_agents import (
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.api.errors import (
    ActionFailedError,
    AgentsError,
    DurableResultError,
    MCPOutcomeUnknownError,
    MCPRequestError,
    MCPServerUnavailableError,
    ResourceUnavailableError,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ToolCall

Make = Callable[..., OperatorHarness]
TOKEN = "token-never-to-be-seen-0123456789"


@pytest.fixture(autouse=True)
def counts(tmp_path: Path) -> Iterator[Counts]:
    """What the servers of a test did. None of them outlives the test, whose harness is closed before."""
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


def failure(harness: OperatorHarness, tool: str, **arguments: Any) -> AgentsError:
    """What a direct call of a tool fails by."""
    with pytest.raises(ActionFailedError) as caught:
        harness.push((tool, arguments))
    cause = caught.value.__cause__
    assert isinstance(cause, AgentsError)
    return cause


MISSING = [
    ({"command": "no-such-program"}, "not found"),
    ({"args": ["no-such-script.py"]}, "can't open file"),
    ({"args": ["-c", "import sys; print('broken', file=sys.stderr)"]}, "it wrote: broken"),
    ({"args": ["-c", "print('this is no message')"]}, "Connection closed"),
    ({"args": ["-c", "import time; time.sleep(60)"], "connect_timeout": 0.3}, "not ready within 0.3 seconds"),
]


@pytest.mark.executes_once
@pytest.mark.parametrize(("options", "text"), MISSING)
def test_a_server_that_cannot_be_started(
    agent_harness: Make, counts: Counts, options: dict[str, Any], text: str
) -> None:
    retry = {"initial_interval": 0.01, "max_attempts": 2}
    error = failure(
        agent_harness(Direct(), config=by_stdio(counts, **options, retry=retry)), "price_of", item="a"
    )
    assert isinstance(error, MCPServerUnavailableError)
    assert text in (error.found or "")


@pytest.mark.executes_once
def test_an_address_where_nothing_is(agent_harness: Make, counts: Counts) -> None:
    for way in ("http", "sse"):
        url = ServerProcess(counts, way).url
        config = {"mcp-servers.shop.url": url, "mcp-servers.shop.retry": QUICK}
        error = failure(agent_harness(Direct(), config=config), "price_of", item="a")
        assert isinstance(error, MCPServerUnavailableError)
        assert "ConnectError" in (error.found or "")


def test_a_refusal_goes_to_the_action(agent_harness: Make, counts: Counts) -> None:
    error = failure(agent_harness(Direct(), config=by_stdio(counts)), "refuse", reason="no")
    assert isinstance(error, MCPRequestError)
    assert "Error executing tool refuse" in (error.found or "")


@pytest.mark.nightly(beyond=1)
@pytest.mark.executes_once
@pytest.mark.parametrize("way", ["stdio", "http", "sse"])
def test_a_server_that_dies_in_the_middle_of_a_call(agent_harness: Make, counts: Counts, way: str) -> None:
    """A call that may have been done is not repeated, unless the tool says that this does no harm."""
    server = None if way == "stdio" else ServerProcess(counts, way)
    if server is None:
        config = by_stdio(counts)
    else:
        server.start()
        config = {"mcp-servers.shop.url": server.url, "mcp-servers.shop.retry": QUICK}
    harness = agent_harness(Careful(), config=config)
    [answer] = harness.push(("die", {}))
    assert answer.startswith("FA9203: ")
    assert counts.done == {"die": 1}
    if server is not None:
        server.stop()
        server.start()
    # The connection is opened anew.
    assert harness.push(("price_of", {"item": "tea"})) == [7.5]
    if server is not None:
        server.stop()
    harness.close()


def test_a_tool_that_may_be_repeated_is(agent_harness: Make, counts: Counts) -> None:
    assert agent_harness(Direct(), config=by_stdio(counts)).push(("die_once", {})) == ["alive"]
    assert counts.done["die_once"] >= 2


@pytest.mark.executes_once
@pytest.mark.parametrize("way", ["http", "sse"])
def test_a_server_that_was_started_again_is_found_again(
    agent_harness: Make, counts: Counts, way: str
) -> None:
    with served(counts, way) as server:
        config = {"mcp-servers.shop.url": server.url, "mcp-servers.shop.retry": QUICK}
        harness = agent_harness(Careful(), config=config)
        assert harness.push(("order", {"item": "tea", "number": 1}))
        server.stop()
        server.start()
        # Of a call that was on its way over the lost connection nobody knows what became.
        first = harness.push(("price_of", {"item": "tea"}))
        assert first == [7.5] or first[0].startswith("FA9203: ")
        assert harness.push(("price_of", {"item": "tea"})) == [7.5]
        harness.close()


@pytest.mark.executes_once
def test_what_takes_too_long_is_told_to_the_model_and_costs_no_other_key_anything(counts: Counts) -> None:
    """One key waits for a server that stopped; the others get another process of it."""
    config = by_stdio(counts, timeout=0.5)
    with OperatorHarness(Careful(), lambda record: record[0], config=config) as harness:
        harness.push(("price_of", {"item": "tea"}))
        assert harness.push(("freeze", {})) == ["FA9203: it gave no answer within 0.5 seconds"]
        assert harness.push(("order", {"item": "tea", "number": 1})) == [{"item": "tea", "number": 1}]
        wait_until(lambda: len(counts.alive) == 1, "the process that stopped is killed")


class Patient(Clerk):
    """Gives a model less time than the server."""

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        import mcp_agents

        return ChatModel(clazz=mcp_agents.model, tools=["shop"], tool_timeout=0.3)


class Terse(Clerk):
    """Lets a model read little."""

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        import mcp_agents

        return ChatModel(clazz=mcp_agents.model, tools=["shop"], tool_result_limit=1000)


TOLD = [
    (ToolCall("refuse", {"reason": "no"}), "Error executing tool refuse"),
    (ToolCall("order", {"item": "tea", "number": "many"}), "validation error"),
    (ToolCall("big", {"size": 10_000_000}), "of which 1000 can be read. Ask for less."),
]


@pytest.mark.nightly(beyond=1)
@pytest.mark.executes_once
@pytest.mark.parametrize(("call", "text"), TOLD)
def test_what_the_model_is_told(agent_harness: Make, counts: Counts, call: ToolCall, text: str) -> None:
    script(call, "done")
    config = by_stdio(counts, timeout=60)
    [[output, contents]] = agent_harness(Terse(), config=config).push("hi")
    assert output == "done"
    assert any(text in str(content) for content in contents)


class Lenient(Clerk):
    """Tells its model whatever goes wrong."""

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        import mcp_agents

        return ChatModel(clazz=mcp_agents.model, tools=["shop"], on_tool_error="tell-model")


@pytest.mark.executes_once
def test_a_server_that_dies_ends_the_conversation(agent_harness: Make, counts: Counts) -> None:
    script(ToolCall("die", {}), "done")
    with pytest.raises(ActionFailedError) as caught:
        agent_harness(Clerk(), config=by_stdio(counts)).push("hi")
    assert isinstance(caught.value.__cause__, MCPOutcomeUnknownError)


UNKNOWN = [
    (Patient, ToolCall("slow", {"seconds": 30}), "it gave no answer within 0.3 seconds"),
    (Lenient, ToolCall("die", {}), "the tool 'die' of the MCP server 'shop' took effect"),
]


@pytest.mark.executes_once
@pytest.mark.parametrize(("agent", "call", "text"), UNKNOWN, ids=["slow", "die"])
def test_an_unknown_outcome_is_not_told_and_not_repeated(
    counts: Counts, agent: type[Any], call: ToolCall, text: str
) -> None:
    script(call, "done")
    with OperatorHarness(agent(), config=by_stdio(counts, timeout=60), crash=None) as harness:
        snapshot = harness.snapshot()
        for _ in range(2):
            with pytest.raises(ActionFailedError) as caught:
                harness.push("hi")
            assert isinstance(caught.value.__cause__, MCPOutcomeUnknownError)
            assert text in str(caught.value)
            harness.restore(snapshot)
    assert len([line for line in counts.lines if line.startswith(call.name)]) == 1


def test_ten_megabytes_over_http(agent_harness: Make, counts: Counts) -> None:
    with served(counts, "http") as server:
        harness = agent_harness(Direct(), config={"mcp-servers.shop.url": server.url})
        error = failure(harness, "big", size=10_000_000)
        harness.close()
    # It came through the connection, and is too much for the store.
    assert isinstance(error, DurableResultError)
    assert "too large for the store: 100001" in (error.found or "")


def test_lines_that_are_no_messages_are_passed_over(agent_harness: Make, counts: Counts) -> None:
    assert agent_harness(Direct(), config=by_stdio(counts)).push(("chatter", {})) == ["heard"]


class _Gate(BaseHTTPRequestHandler):
    """Answers each request with the status in its path, and says what it was given."""

    seen: list[str | None] = []

    def do_POST(self) -> None:
        self.seen.append(self.headers.get("authorization"))
        status = int(self.path.split("/")[1])
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", "0")
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(f"<p>refused {self.headers.get('authorization')}</p>".encode())

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def gate() -> Iterator[str]:
    """The address of a service that lets nobody in."""
    _Gate.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gate)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


GATES = [
    (401, MCPRequestError),
    (403, MCPRequestError),
    (429, MCPServerUnavailableError),
    (503, MCPServerUnavailableError),
    (200, MCPServerUnavailableError),
]


@pytest.mark.executes_once
@pytest.mark.parametrize(("status", "kind"), GATES)
def test_a_status_of_http(
    agent_harness: Make, gate: str, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[AgentsError]
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    config = {
        "mcp-servers.shop.url": f"{gate}/{status}/mcp",
        "mcp-servers.shop.retry": {"initial_interval": 0.01, "max_attempts": 2},
        "mcp-servers.shop.auth": {"env": "SHOP_TOKEN"},
    }
    error = failure(agent_harness(Direct(), config=config), "price_of", item="a")
    assert isinstance(error, kind)
    assert TOKEN not in str(error)
    assert set(_Gate.seen) == {f"Bearer {TOKEN}"}


def test_a_secret_that_is_not_there(agent_harness: Make, counts: Counts) -> None:
    config = by_stdio(counts, env={"SHOP_TOKEN": {"env": "NO_SUCH_VARIABLE"}})
    error = failure(agent_harness(Direct(), config=config), "secret")
    assert isinstance(error, ResourceUnavailableError)
    assert "NO_SUCH_VARIABLE" in (error.expected or "")


def test_secrets_reach_the_server_and_no_text(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    caplog.set_level("INFO", "flink_agents.mcp")
    loud = [
        "-c",
        "import os, sys; print(os.environ['SHOP_TOKEN'], file=sys.stderr); sys.argv = {['x']}; exit(3)",
    ]
    config = by_stdio(counts, args=loud, env={"SHOP_TOKEN": {"env": "SHOP_TOKEN"}})
    with OperatorHarness(Direct(), config=config) as harness:
        error = failure(harness, "secret")
    assert "it wrote: ***" in (error.found or "")
    assert TOKEN not in caplog.text
    with OperatorHarness(
        Direct(), config=by_stdio(counts, env={"SHOP_TOKEN": {"env": "SHOP_TOKEN"}})
    ) as harness:
        # The server has it, and what it shows of it reaches nobody.
        assert harness.push(("secret", {})) == ["***"]


class Stubborn(Shop):
    """Starts a server that ends by itself neither with its input nor at a signal."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=len(await ctx.mcp_server("shop").list_tools()))


STUBBORN = """
import signal, subprocess, sys, runpy, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
script, counts = sys.argv[1:3]
open(counts, "a").write(f"start {child.pid}\\n")
threading.Thread(target=time.sleep, args=[600]).start()
sys.argv = [script, counts]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.executes_once
def test_a_server_that_does_not_end_is_killed_with_all_that_it_started(counts: Counts) -> None:
    config = by_stdio(counts, args=["-c", STUBBORN, str(counts.script), str(counts.file)])
    with OperatorHarness(Stubborn(), config=config) as harness:
        assert harness.push("hi") == [10]
        assert len(counts.alive) == 2
    wait_until(lambda: counts.alive == [], "the processes are killed")


@pytest.mark.executes_once
def test_no_process_is_left_where_the_worker_is_killed(counts: Counts, tmp_path: Path) -> None:
    """A process that is killed can end no other one: the server hangs, and ends nevertheless."""
    worker = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from mcp_agents import Counts, Direct, by_stdio
        from flink_agents.testing import OperatorHarness
        from pathlib import Path
        harness = OperatorHarness(Direct(), config=by_stdio(Counts(Path({str(tmp_path)!r}))))
        harness.push(("freeze", {{}}))
        """
    )
    running = subprocess.Popen([sys.executable, "-c", worker], stderr=subprocess.DEVNULL)
    wait_until(lambda: "freeze" in counts.lines, "the server hangs", 60)
    assert len(counts.alive) == 1
    previous_pipes = set(Path("/tmp").glob("flink-agents-mcp-*"))
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    wait_until(lambda: counts.alive == [], "the server is killed")
    wait_until(lambda: previous_pipes - set(Path("/tmp").glob("flink-agents-mcp-*")), "its pipe is removed")
