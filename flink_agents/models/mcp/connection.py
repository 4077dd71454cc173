"""One connection to a server, and its transport. It lives in its own task, not in the first caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import mcp_types
from fastmcp.client.transports import ClientTransport
from pydantic_ai.mcp import MCPToolset

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import AgentsError
from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.models.mcp.failures import Failure, FailureKind, HTTPAnswers, failure_of
from flink_agents.models.mcp.http import http_transport
from flink_agents.models.mcp.process_guardian import ProcessGuardian
from flink_agents.models.mcp.session import SharedTransport
from flink_agents.models.mcp.stdio import BoundedStdio
from flink_agents.models.setup.secrets import Secrets


def transport_of(
    spec: MCPServerSpec, secrets: Secrets, lifeline: ProcessGuardian | None, http: HTTPAnswers
) -> ClientTransport:
    """Create the transport to a server: to a new process, or to a URL.

    Args:
        spec: The description of the server.
        secrets: Resolves references to secrets in it.
        lifeline: Ends the process with this one; None if the server is a URL.
        http: Receives HTTP errors, answers that are too large, and the calls that leave.

    Raises:
        ResourceUnavailableError: A secret is missing.
    """
    if lifeline is not None:
        assert spec.command is not None
        command, arguments = lifeline.guard_command(
            spec.command, [secrets.text(argument, "an argument") for argument in spec.args]
        )
        return BoundedStdio(
            command,
            arguments,
            env=secrets.headers(spec.env),
            cwd=spec.cwd,
            errors=lifeline.errors,
            limit=spec.response_limit,
            too_large=http.note_too_large,
            leaving=http.note_left,
        )
    headers = secrets.headers(spec.headers)
    if spec.auth is not None:
        headers["Authorization"] = f"Bearer {secrets.read_secret(spec.auth)}"
    return http_transport(spec, headers, http)


_log = bounded_logger("flink_agents.mcp")

GRACE_SECONDS = 1.0
"""Seconds that the process of a server has to end before it is killed."""


@dataclass(frozen=True)
class Opened:
    """The result of opening a connection; exactly one attribute is not None.

    Attributes:
        toolset: The client of the server, if the connection is open.
        failure: The reason why it could not be opened.
        error: An error of this package as that reason: a secret is missing.
    """

    toolset: MCPToolset[Any] | None = None
    failure: Failure | None = None
    error: AgentsError | None = None


class Connection:
    """Connects to an MCP server at once, in its own task. Create it on the agent loop.

    Args:
        name: Name of the server.
        spec: Its description, with the options of the job.
        secrets: Resolves references to secrets, and hides the secrets in errors.

    Attributes:
        opened: Completes when the connection is open, or could not be opened.
        task: Holds the connection open; it is done when the connection has ended.
        http: HTTP errors of the connection, and calls that did not leave yet.
    """

    def __init__(self, name: str, spec: MCPServerSpec, secrets: Secrets) -> None:
        self._name = name
        self._spec = spec
        self._secrets = secrets
        self._end = asyncio.Event()
        self._uses = 0
        self._retired = False
        self._lifeline: ProcessGuardian | None = None
        self.http = HTTPAnswers()
        self.tools_changed = False
        """True if the server reported that its tools changed."""
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Opened] = loop.create_future()
        # Without the context of the first caller: the connection outlives it.
        self.task: asyncio.Task[None] = Context().run(loop.create_task, self._serve_requests())
        # A task that is cancelled before it starts executes none of its code.
        self.task.add_done_callback(self._note_end)

    @property
    def is_dead(self) -> bool:
        """True if the connection is known to have ended, or could not be opened."""
        if self.task.done():
            return True
        toolset = self.opened.result().toolset if self.opened.done() else None
        if toolset is None:
            return self.opened.done()
        # There is no public property for it. FastMCP checks the same attribute before it reuses a process; if
        # the attribute is missing, the next request fails instead.
        session = toolset.client.session if toolset.client.is_connected() else None
        return session is None or bool(getattr(getattr(session, "_dispatcher", None), "_closed", False))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the connection open during the block, even if it is retired in the meantime."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._end_if_unused()

    def retire(self) -> None:
        """End the connection as soon as it has no request in flight."""
        self._retired = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and self._uses == 0:
            self._end.set()

    def last_lines(self) -> str:
        """Return the latest error output of the process; empty if the server is not a process of ours."""
        return "" if self._lifeline is None else self._lifeline.last_lines()

    def kill(self) -> None:
        """End the connection at once: kill the process of the server, and cancel requests in flight."""
        if self._lifeline is not None:
            self._lifeline.kill_server()
        self.task.cancel()

    async def _serve_requests(self) -> None:
        """Open the connection, report the result in ``opened``, and hold it until it has to end."""
        try:
            async with AsyncExitStack() as stack:
                if self._spec.way == "stdio":
                    self._lifeline = ProcessGuardian(self._name, self._secrets.hide)
                    stack.callback(self._lifeline.close)
                toolset = await self._open_toolset(stack)
                if not self.opened.done():
                    self.opened.set_result(Opened(toolset))
                await self._end.wait()
                # The process has ended already, so there is nothing to kill.
                self._kill_later(GRACE_SECONDS)
        except AgentsError as error:
            self._fail_opening(Opened(error=error), error)
        except TimeoutError as error:
            text = f"it was not ready within {self._spec.connect_timeout:g} seconds"
            self._fail_opening(Opened(failure=Failure(FailureKind.NOT_DONE, text)), error)
        except Exception as error:
            failure = failure_of(error, self.http)
            # Nothing was sent to the server yet.
            kind = FailureKind.REFUSED if failure.kind is FailureKind.REFUSED else FailureKind.NOT_DONE
            self._fail_opening(Opened(failure=Failure(kind, failure.text, failure.retry_after)), error)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Report a connection that ended before it was open, so that no request waits for it."""
        if not self.opened.done():
            failure = Failure(FailureKind.NOT_DONE, "the connection was closed while it was opened")
            self.opened.set_result(Opened(failure=failure))

    async def _open_toolset(self, stack: AsyncExitStack) -> MCPToolset[Any]:
        """Open the connection in bounded time, and return its client, which ``stack`` closes.

        Raises:
            TimeoutError: The connection was not ready in time.
        """
        transport = transport_of(self._spec, self._secrets, self._lifeline, self.http)
        toolset: MCPToolset[Any] = MCPToolset(
            SharedTransport(transport, self._spec.on_invalid_result),
            id=self._name,
            tool_error_behavior="error",
            cache_tools=False,
            cache_resources=False,
            cache_prompts=False,
            # The calls below are inside a timeout, and each request has its own.
            init_timeout=0,
            read_timeout=self._spec.timeout + 5,
            message_handler=self._handle_message,
        )
        expiry = self._kill_later(self._spec.connect_timeout)
        try:
            async with asyncio.timeout(self._spec.connect_timeout):
                return await stack.enter_async_context(toolset)
        finally:
            expiry.cancel()

    def _kill_later(self, seconds: float) -> asyncio.TimerHandle:
        """Kill the process after a time, since the library waits for its end without a limit.

        Cancel the returned timer to let it live.
        """

        def kill_process() -> None:
            if self._lifeline is not None:
                self._lifeline.kill_server()

        return asyncio.get_running_loop().call_later(seconds, kill_process)

    async def _handle_message(self, message: Any) -> None:
        """Note a server's report that its tools changed; other messages are ignored."""
        if isinstance(getattr(message, "root", message), mcp_types.ToolListChangedNotification):
            self.tools_changed = True

    def _fail_opening(self, opened: Opened, error: Exception) -> None:
        """Report why the connection could not be opened; log an error that ended an open one."""
        if not self.opened.done():
            self.opened.set_result(opened)
        else:
            text = self._secrets.hide(error)
            _log.info(
                "the connection to the MCP server %s ended: %s: %s", self._name, type(error).__name__, text
            )
