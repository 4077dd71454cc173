"""MCP servers for tests, each in its own process, and the agents that use them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    mcp_server,
)
from flink_agents.api.errors import MCPError
from flink_agents.testing.models import ScriptedModel

SCRIPT = Path(__file__).parent / "mcp_servers" / "shop.py"
QUICK: dict[str, Any] = {"initial_interval": 0.01, "max_attempts": 3}
MODEL: list[ScriptedModel] = []


def model() -> Any:
    """The model of the test."""
    return MODEL[0]


def script(*lines: Any) -> ScriptedModel:
    """Let the model of the test say these lines."""
    MODEL[:] = [ScriptedModel(list(lines))]
    return MODEL[0]


class Counts:
    """What servers did, as they write it into a file.

    Args:
        directory: Where the file is, and a copy of the server's script.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / "counts.txt"
        self.script = Path(shutil.copy(SCRIPT, directory))

    @property
    def lines(self) -> list[str]:
        """What was done, in order."""
        return self.file.read_text("utf-8").splitlines() if self.file.exists() else []

    @property
    def starts(self) -> int:
        """How often a server was started."""
        return len(self.processes)

    @property
    def processes(self) -> list[int]:
        """The process ids of all servers that were started."""
        return [int(line.split()[1]) for line in self.lines if line.startswith("start ")]

    @property
    def alive(self) -> list[int]:
        """Those of servers that still run."""
        return [pid for pid in self.processes if is_alive(pid)]

    @property
    def done(self) -> Counter[str]:
        """How often each thing was done, starts and keys of calls aside."""
        lines = [line for line in self.lines if not line.startswith("start ")]
        return Counter(" ".join(line.split()[:3]) for line in lines)


def is_alive(process: int) -> bool:
    """Whether a process still runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Any, what: str, seconds: float = 60) -> None:
    """Wait for a condition; the time is a bound and no measure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)


def free_port() -> int:
    """A port that nothing uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServerProcess:
    """A server that is reached by HTTP.

    Args:
        counts: Where it writes what it does.
        way: ``http`` or ``sse``.
        flags: More arguments of its script.
    """

    def __init__(self, counts: Counts, way: str, *flags: str) -> None:
        self._counts = counts
        self._flags = flags
        self._way = way
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/{'mcp' if way == 'http' else 'sse'}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, str(self._counts.script), str(self._counts.file)]
        command += [f"--{self._way}", str(self.port), *self._flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._listens, "the server listens")

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def served(counts: Counts, way: str, *flags: str) -> Iterator[ServerProcess]:
    """A server that is reached by HTTP."""
    server = ServerProcess(counts, way, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def by_stdio(counts: Counts, *flags: str, **options: Any) -> dict[str, Any]:
    """Options of a job whose server is a process of the subtask."""
    args = [str(counts.script), str(counts.file), *flags]
    settings = {"command": sys.executable, "args": args, "retry": QUICK, **options}
    return {f"mcp-servers.shop.{name}": value for name, value in settings.items()}


class Shop(Agent):
    """Has a server, about which options of the job say where it is."""

    @mcp_server
    def shop(self) -> ResourceDescriptor:
        return MCPServer(command="options-say-it", retry=QUICK, timeout=20)

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["shop"])


class Clerk(Shop):
    """Lets a model use the server."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("clerk", event.input)
        parts = [part for message in result.messages[1:] for part in message.parts]
        return OutputEvent(output=[result.output, [getattr(part, "content", None) for part in parts]])


class Direct(Shop):
    """Uses the server itself."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        server = ctx.mcp_server("shop")
        tool, arguments = event.input
        return OutputEvent(output=await server.call_tool(tool, **arguments))


class Careful(Shop):
    """Uses the server itself, and says what went wrong."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        tool, arguments = event.input
        try:
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool(tool, **arguments))
        except MCPError as error:
            return OutputEvent(output=f"{error.code}: {error.found}")
