"""One connection to a server: it lives in a task of its own, whoever asks for it first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import mcp_types
from pydantic_ai.mcp import MCPToolset

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import AgentsError
from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.models.mcp.failures import Failure, HTTPAnswers, Kind, failure_of
from flink_agents.models.mcp.lifeline import Lifeline
from flink_agents.models.mcp.transports import transport_of
from flink_agents.models.setup.secrets import Secrets

_log = bounded_logger("flink_agents.mcp")

GRACE_SECONDS = 1.0
"""How long the process of a server may take for its end before it is killed."""


@dataclass(frozen=True)
class Opened:
    """What came of opening a connection.

    Attributes:
        toolset: What speaks with the server; None where it could not be opened.
        failure: Why not.
        error: An error of this package that says why not: a secret is missing.
    """

    toolset: MCPToolset[Any] | None = None
    failure: Failure | None = None
    error: AgentsError | None = None


class Connection:
    """Connects to an MCP server. It is made on the agent loop.

    Args:
        name: Name of the server.
        spec: What is said of it.
        secrets: Reads its secrets.
    """

    def __init__(self, name: str, spec: MCPServerSpec, secrets: Secrets) -> None:
        self._name = name
        self._spec = spec
        self._secrets = secrets
        self._end = asyncio.Event()
        self._uses = 0
        self._retired = False
        self._lifeline: Lifeline | None = None
        self.http = HTTPAnswers()
        self.tools_changed = False
        """Whether the server said that it has other tools now."""
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Opened] = loop.create_future()
        # Without the context of the call that asks first: the connection outlives it.
        self.task: asyncio.Task[None] = Context().run(loop.create_task, self._live())
        # A task that is cancelled before it begins executes nothing of its code.
        self.task.add_done_callback(self._ended)

    @property
    def is_dead(self) -> bool:
        """Whether the connection is known to have ended before anything more is sent."""
        if self.task.done():
            return True
        toolset = self.opened.result().toolset if self.opened.done() else None
        if toolset is None:
            return self.opened.done()
        # There is no public way to ask. FastMCP looks at the same place before it reuses a process; where it
        # is gone, the next request finds out.
        session = toolset.client.session if toolset.client.is_connected() else None
        return session is None or bool(getattr(getattr(session, "_dispatcher", None), "_closed", False))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the connection open for the time of one request, even where it is retired meanwhile."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._end_if_unused()

    def retire(self) -> None:
        """End the connection as soon as no request is under way on it."""
        self._retired = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and self._uses == 0:
            self._end.set()

    def said(self) -> str:
        """What the process wrote as errors, last; empty where the server is none of ours."""
        return "" if self._lifeline is None else self._lifeline.said()

    def kill(self) -> None:
        """End it at once."""
        if self._lifeline is not None:
            self._lifeline.cut()
        self.task.cancel()

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._spec.way == "stdio":
                    self._lifeline = Lifeline(self._name, self._secrets.hide)
                    stack.callback(self._lifeline.close)
                toolset = await self._enter(stack)
                if not self.opened.done():
                    self.opened.set_result(Opened(toolset))
                await self._end.wait()
                # Behind the process's own end, nothing is left to be killed.
                self._expire(GRACE_SECONDS)
        except AgentsError as error:
            self._failed(Opened(error=error), error)
        except TimeoutError as error:
            text = f"it was not ready within {self._spec.connect_timeout:g} seconds"
            self._failed(Opened(failure=Failure(Kind.NOT_DONE, text)), error)
        except Exception as error:
            failure = failure_of(error, self.http)
            # Nothing was asked of the server yet.
            kind = Kind.REFUSED if failure.kind is Kind.REFUSED else Kind.NOT_DONE
            self._failed(Opened(failure=Failure(kind, failure.text, failure.retry_after)), error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.opened.done():
            failure = Failure(Kind.NOT_DONE, "the connection was closed while it was opened")
            self.opened.set_result(Opened(failure=failure))

    async def _enter(self, stack: AsyncExitStack) -> MCPToolset[Any]:
        """Open the connection, in bounded time.

        Raises:
            TimeoutError: It takes too long.
        """
        transport = transport_of(self._spec, self._secrets, self._lifeline, self.http)
        toolset: MCPToolset[Any] = MCPToolset(
            transport,
            id=self._name,
            tool_error_behavior="error",
            cache_tools=False,
            cache_resources=False,
            cache_prompts=False,
            # What is below has a time-out around it, and requests have one each.
            init_timeout=0,
            read_timeout=self._spec.timeout + 5,
            message_handler=self._heard,
        )
        expiry = self._expire(self._spec.connect_timeout)
        try:
            async with asyncio.timeout(self._spec.connect_timeout):
                return await stack.enter_async_context(toolset)
        finally:
            expiry.cancel()

    def _expire(self, seconds: float) -> asyncio.TimerHandle:
        """Kill the process after a time: the library waits for its end."""

        def cut() -> None:
            if self._lifeline is not None:
                self._lifeline.cut()

        return asyncio.get_running_loop().call_later(seconds, cut)

    async def _heard(self, message: Any) -> None:
        if isinstance(getattr(message, "root", message), mcp_types.ToolListChangedNotification):
            self.tools_changed = True

    def _failed(self, opened: Opened, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_result(opened)
        else:
            text = self._secrets.hide(error)
            _log.info(
                "the connection to the MCP server %s ended: %s: %s", self._name, type(error).__name__, text
            )
