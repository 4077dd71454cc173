"""A process that is an MCP server writes lines of any length: only so much of one is read."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    InputEvent,
    MCPServer,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    mcp_server,
)
from flink_agents.models.mcp.stdio import BoundedStdio
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

SCRIPT = Path(__file__).parent / "mcp_servers" / "lines.py"
LIMIT = 1_000_000
MOST = str(LIMIT + 1)


class Reader(Agent):
    """Makes each kind of request to a server."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", retry={"initial_interval": 0.001, "max_attempts": 2})

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        server = ctx.mcp_server("shop")
        if event.input == "tools/list":
            return OutputEvent(output=[tool.name for tool in await server.list_tools()])
        if event.input == "resources/read":
            return OutputEvent(output=await server.read_resource("shop://all"))
        return OutputEvent(output=await server.call_tool("pay"))


def harness_of(counts: Path, method: str, size: str) -> OperatorHarness:
    args = [str(SCRIPT), str(counts), method, size]
    settings = {"command": sys.executable, "args": args, "response_limit": LIMIT}
    options: dict[str, Any] = {f"mcp-servers.shop.{name}": value for name, value in settings.items()}
    return OperatorHarness(
        Reader(), config=options, crash=None, forced_replay=False, forced_serialization=False
    )


@each_case(
    ("method", "size", "error"),
    [
        ("tools/call", "300000000", "MCPOutcomeUnknownError"),
        ("tools/call", "endless", "MCPOutcomeUnknownError"),
        ("tools/call", MOST, "MCPOutcomeUnknownError"),
        ("tools/list", "endless", "MCPServerUnavailableError"),
        ("resources/read", "300000000", "MCPServerUnavailableError"),
        ("initialize", "300000000", "MCPServerUnavailableError"),
    ],
)
def test_a_line_is_read_up_to_a_limit(method: str, size: str, error: str) -> None:
    counts = Path(tempfile.mkdtemp()) / "counts.txt"
    with harness_of(counts, method, size) as harness:
        harness.push(method)
        [letter] = harness.dead_letters
        lines = counts.read_text("utf-8").split("\n")
    assert letter.error_type == error
    assert f"more than {LIMIT} bytes" in letter.error_message
    assert "too much was read" not in lines
    # A request that changes nothing is sent again; a call of a tool is not.
    assert lines.count(method) == 1 if method == "tools/call" else lines.count(method) > 1


def test_a_line_may_have_as_many_bytes_as_the_limit() -> None:
    counts = Path(tempfile.mkdtemp()) / "counts.txt"
    with harness_of(counts, "tools/call", str(LIMIT)) as harness:
        harness.push("tools/call")
        assert harness.outputs == ["paid"]


def test_the_next_request_starts_the_server_again() -> None:
    counts = Path(tempfile.mkdtemp()) / "counts.txt"
    with harness_of(counts, "resources/read", "endless") as harness:
        harness.push("resources/read")
        harness.push("tools/call")
        assert harness.outputs == ["paid"]
        assert len(harness.dead_letters) == 1


STUBBORN = """
import os
import pathlib
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def test_a_process_ends_also_if_its_connection_is_cancelled_twice(tmp_path: Path) -> None:
    number = tmp_path / "pid"

    async def body() -> None:
        with (tmp_path / "errors").open("w") as errors:
            transport = BoundedStdio(
                sys.executable,
                ["-c", STUBBORN, str(number)],
                env={},
                cwd=None,
                errors=errors,
                limit=LIMIT,
                too_large=lambda error: None,
            )

            async def connect() -> None:
                async with transport.connect_session():
                    await asyncio.sleep(600)

            task = asyncio.create_task(connect())
            while not (number.exists() and number.read_text()):
                await asyncio.sleep(0.01)
            for _ in range(2):
                task.cancel()
                await asyncio.wait([task], timeout=0.1)
            assert task.cancelled()

    asyncio.run(body())
    until = time.monotonic() + 30
    while is_alive(int(number.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False
