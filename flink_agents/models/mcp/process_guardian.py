"""Ends the process of a server together with the process that started it, and reads its error output.

A server that hangs does not notice that its input ended, and a killed process cannot stop another one. So a
shell in the server's process group waits for the end of a pipe whose other end this process holds. When this
process ends for any reason, the system closes the pipe, and the shell kills the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

from flink_agents.api.common.logs import bounded_logger

_log = bounded_logger("flink_agents.mcp")

_SHELL = "/bin/sh"

_GUARD = """
(exec <"$1" >/dev/null 2>&1; read -r _; rm -f "$1"; rmdir "${1%/*}"; kill -KILL 0) &
shift
exec "$@"
"""
"""The server replaces this shell, so it has the shell's process id, input and output."""

_LINES = 20
"""Number of lines of error output that are kept."""

_READS = 4
"""Number of reads of error output before the loop gets its turn."""

_CHUNK_BYTES = 65536
"""Maximum number of bytes of one such read."""

_CHARACTERS = 500
"""Number of characters of a line that are logged and kept."""


class ProcessGuardian:
    """The pipes of one server process, which end it, and read its error output. Create it on the agent loop.

    Args:
        name: Name of the server, for the log.
        hide: Returns a text without secrets, for the server's error output.
    """

    def __init__(self, name: str, hide: Callable[[object], str]) -> None:
        self._name = name
        self._hide = hide
        self._loop = asyncio.get_running_loop()
        self._path = Path(tempfile.mkdtemp(prefix="flink-agents-mcp-")) / "lifeline"
        os.mkfifo(self._path, 0o600)
        # For reading as well: if opened for writing only, it would wait for a reader.
        self._lifeline_fd: int | None = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._errors_fd, write_fd = os.pipe()
        os.set_blocking(self._errors_fd, False)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._incomplete_line = b""
        self._is_open = True
        self._loop.add_reader(self._errors_fd, self._read_output)
        self.errors = TextIOWrapper(os.fdopen(write_fd, "wb", 0), encoding="utf-8", write_through=True)
        """The file to pass to the server as its standard error."""

    def guard_command(self, command: str, arguments: list[str]) -> tuple[str, list[str]]:
        """Return the program and arguments that start a server in such a way that it ends with this process.

        Args:
            command: The program of the server.
            arguments: Its arguments.
        """
        return _SHELL, ["-c", _GUARD, "sh", str(self._path), command, *arguments]

    def kill_server(self) -> None:
        """Kill the server and all its descendants, if they still run."""
        if self._lifeline_fd is not None:
            lifeline_fd = self._lifeline_fd
            self._lifeline_fd = None
            os.close(lifeline_fd)

    def last_lines(self) -> str:
        """Return the last lines of the server's error output; empty if there are none."""
        self._read_output()
        return "\n".join([*self._lines, *filter(None, [self._line_text(self._incomplete_line)])])

    def close(self) -> None:
        """Kill the server if it still runs, and close the pipes."""
        self.kill_server()
        self._read_output()
        self._is_open = False
        self._loop.remove_reader(self._errors_fd)
        os.close(self._errors_fd)
        self.errors.close()
        # The shell removes them as well; the second one to do so finds nothing.
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()

    def _read_output(self) -> None:
        """Log the error output that is there, and keep its last lines; never wait for more."""
        if not self._is_open:
            return
        with contextlib.suppress(BlockingIOError):
            # Not to the end: a server that writes without a pause must not stop the loop of all keys.
            for _ in range(_READS):
                if not (chunk := os.read(self._errors_fd, _CHUNK_BYTES)):
                    return
                *lines, incomplete_line = (self._incomplete_line + chunk).split(b"\n")
                # A line without an end must not fill the memory.
                self._incomplete_line = incomplete_line[-_CHARACTERS:]
                for line in map(self._line_text, lines):
                    if line:
                        self._lines.append(line)
                        _log.info("MCP server %s: %s", self._name, line)

    def _line_text(self, line: bytes) -> str:
        """Return a line of error output as text, cut and without secrets."""
        return self._hide(line.decode("utf-8", "replace").rstrip())[:_CHARACTERS]
