"""Communicates with the process of a server: one message per line, and lines of limited length.

The client of the MCP library reads a line of any length into memory. This one has a bounded buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any, TextIO

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp.client.session import ClientSession
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.models.mcp.wire import answered_by, unreadable_answer_error
from flink_agents.models.setup.bodies import (
    ResponseTooLargeError,
    TooManyObjectsError,
    most_objects,
    objects_in,
)

_log = bounded_logger("flink_agents.mcp")

_EXIT_SECONDS = 2.0
"""Seconds that a process has to end after its input is closed, and again after SIGTERM."""

_CHUNK = 65536
"""Bytes that are read from a process at a time."""

_Out = MemoryObjectSendStream[SessionMessage | Exception]
_In = MemoryObjectReceiveStream[SessionMessage]
"""The streams of the library between a transport and its session, as the transport sees them."""


class BoundedStdio(ClientTransport):
    """The transport to one process, for one connection.

    Args:
        command: The program to start.
        arguments: Its arguments.
        env: Environment variables, in addition to ``HOME``, ``PATH`` and similar ones.
        cwd: Its working directory; None for that of this process.
        errors: The file for its standard error.
        limit: Maximum length of a line, in bytes.
        too_large: Called with the error if a line is so long that its rest is not read; then the connection
            ends.
        leaving: Called with each message of the session before the process gets it.
    """

    def __init__(
        self,
        command: str,
        arguments: list[str],
        *,
        env: dict[str, str],
        cwd: str | None,
        errors: TextIO,
        limit: int,
        too_large: Callable[[ResponseTooLargeError], None],
        leaving: Callable[[object], None] | None = None,
    ) -> None:
        self._command = [command, *arguments]
        self._env = get_default_environment() | env
        self._cwd = cwd
        self._errors = errors
        self._limit = limit
        self._too_large = too_large
        self._leaving = leaving

    @override
    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncGenerator[ClientSession]:
        options = transport_options or TransportOptions()
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            env=self._env,
            cwd=self._cwd,
            limit=_CHUNK,
            # A new process group, which can be killed as a whole.
            start_new_session=True,
        )
        received, session_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        session_writes, sent = anyio.create_memory_object_stream[SessionMessage](0)
        reader = asyncio.create_task(self._pass_lines(process, received))
        writer = asyncio.create_task(self._send_messages(process, sent, received))
        try:
            async with options.session_class(session_reads, session_writes, **session_kwargs) as session:
                yield session
        finally:
            for stream in (session_reads, session_writes):
                stream.close()
            await _end_process(process)
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            for stream in (received, sent):
                stream.close()

    async def _pass_lines(self, process: asyncio.subprocess.Process, out: _Out) -> None:
        """Pass on the lines of the process until it ends or writes a line without an end."""
        assert process.stdout is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError), out:
            try:
                async for line in _read_lines(process.stdout, self._limit):
                    for message in _parse_messages(line):
                        await out.send(message)
            except ResponseTooLargeError as error:
                # It may never end. The session sees that the connection ended.
                self._too_large(error)
                _kill_process(process, signal.SIGKILL)

    async def _send_messages(self, process: asyncio.subprocess.Process, messages: _In, out: _Out) -> None:
        """Send the session's messages to the process, and end the connection if it accepts no more."""
        assert process.stdin is not None
        try:
            async with messages:
                async for session_message in messages:
                    message = session_message.message
                    try:
                        text = message.model_dump_json(by_alias=True, exclude_unset=True)
                    except ValueError as error:
                        # Only this message fails: other keys wait for theirs.
                        if isinstance(message, mcp_types.JSONRPCRequest):
                            await out.send(SessionMessage(unreadable_answer_error(message.id, error)))
                        continue
                    if self._leaving is not None:
                        self._leaving(message.model_dump())
                    process.stdin.write(f"{text}\n".encode())
                    await process.stdin.drain()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            out.close()


_EDGE = 1000
"""Bytes that are kept from the begin and the end of a line that is too long: they have the id."""

_MOST_READ = 8
"""Factor of the limit that is read of a line before the connection ends: it may have no end."""


class _Line:
    """A line that is being read: all of it up to the limit in bytes, and of a longer line its edges."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._data = bytearray()

    def add_part(self, part: bytes) -> None:
        """Add a part of the line.

        Raises:
            ResponseTooLargeError: The line is so long that its rest is not read.
        """
        self._size += len(part)
        self._data += part
        if self._size > self._limit:
            if self._size > _MOST_READ * self._limit:
                raise ResponseTooLargeError(self._limit)
            del self._data[_EDGE:-_EDGE]

    def take_line(self) -> tuple[bytes, ResponseTooLargeError | None]:
        """Return the line, and the error if it is too large to be read; begin the next one."""
        line = bytes(self._data)
        size = self._size
        self._data.clear()
        self._size = 0
        if size > self._limit:
            return line, ResponseTooLargeError(self._limit)
        if objects_in(line) > most_objects(self._limit):
            return line, TooManyObjectsError(self._limit)
        return line, None


_Read = tuple[bytes, ResponseTooLargeError | None]
"""A line, and the error if it is too large to be read."""


async def _read_lines(stream: asyncio.StreamReader, limit: int) -> AsyncGenerator[_Read]:
    """Yield lines, each with the reason if it is too large; each byte is inspected once, even in long lines.

    Raises:
        ResponseTooLargeError: The rest of a line that is too long is not read.
    """
    line = _Line(limit)
    while chunk := await stream.read(_CHUNK):
        *ended, unfinished_part = chunk.split(b"\n")
        for part in ended:
            line.add_part(part)
            yield line.take_line()
        line.add_part(unfinished_part)
    yield line.take_line()


def _parse_messages(line: _Read) -> list[SessionMessage | Exception]:
    """Return the message in a line; for an unreadable one, an error for each request that it answers.

    If it answers none, return the exception that says why it cannot be read.
    """
    content, too_large = line
    try:
        if too_large is None:
            return [SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(content, by_name=False))]
        reason: Exception = too_large
    except ValueError as invalid:
        reason = invalid
    if content.strip():
        _log.info("the MCP server wrote a line of %d bytes that is not a message", len(content))
    text = str(too_large) if too_large else f"the answer cannot be read: {reason}"
    errors = [SessionMessage(unreadable_answer_error(request, text)) for request in answered_by(content)]
    return [*errors] if errors else [reason]


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Close the input of a process, wait for its end, and kill its group if it does not end in time."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        if not await _ends_in_time(process):
            _kill_process(process, signal.SIGTERM)
            if not await _ends_in_time(process):
                _kill_process(process, signal.SIGKILL)
                await _ends_in_time(process)
    finally:
        # A second cancellation may have ended the wait.
        _kill_process(process, signal.SIGKILL)
        # A descendant may hold its output open, so nothing waits for that.
        transport: Any = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


async def _ends_in_time(process: asyncio.subprocess.Process) -> bool:
    """Wait for the end of a process, at most ``_EXIT_SECONDS``; return True if it has ended."""
    # Not wait(): that waits for the end of the output as well.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_SECONDS):
            while process.returncode is None:
                await asyncio.sleep(0.01)
    return process.returncode is not None


def _kill_process(process: asyncio.subprocess.Process, signal_number: signal.Signals) -> None:
    """Send a signal to the group of a process, if the process still runs."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal_number)
