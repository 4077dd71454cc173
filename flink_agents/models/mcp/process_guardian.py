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

_CHARACTERS = 500
"""Number of characters of a line that are logged and kept."""


class ProcessGuardian:
    """The pipes of one server process. Create it on the loop that uses it.

    Args:
        name: Name of the server, for the log.
        hide: Removes secrets from the server's error output.
    """

    def __init__(self, name: str, hide: Callable[[object], str]) -> None:
        self._name = name
        self._hide = hide
        self._loop = asyncio.get_running_loop()
        self._path = Path(tempfile.mkdtemp(prefix="flink-agents-mcp-")) / "lifeline"
        os.mkfifo(self._path, 0o600)
        # For reading as well: if opened for writing only, it would wait for a reader.
        self._held: int | None = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._errors, written = os.pipe()
        os.set_blocking(self._errors, False)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = b""
        self._open = True
        self._loop.add_reader(self._errors, self._read_output)
        self.errors = TextIOWrapper(os.fdopen(written, "wb", 0), encoding="utf-8", write_through=True)
        """The server's standard error."""

    def guard_command(self, command: str, arguments: list[str]) -> tuple[str, list[str]]:
        """Return command and arguments that start a server which ends with this process."""
        return _SHELL, ["-c", _GUARD, "sh", str(self._path), command, *arguments]

    def kill_server(self) -> None:
        """Kill the server and all its descendants, if they still run."""
        if self._held is not None:
            held = self._held
            self._held = None
            os.close(held)

    def last_lines(self) -> str:
        """Return the last lines of the server's error output; empty if there are none."""
        self._read_output()
        return "\n".join([*self._lines, *filter(None, [self._line_text(self._rest)])])

    def close(self) -> None:
        """Kill the server if it still runs, and close the pipes."""
        self.kill_server()
        self._read_output()
        self._open = False
        self._loop.remove_reader(self._errors)
        os.close(self._errors)
        self.errors.close()
        # The shell removes them as well; the second one to do so finds nothing.
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()

    def _read_output(self) -> None:
        if not self._open:
            return
        with contextlib.suppress(BlockingIOError):
            # Not to the end: a server that writes without a pause must not stop the loop of all keys.
            for _ in range(_READS):
                if not (got := os.read(self._errors, 65536)):
                    return
                *lines, incomplete_line = (self._rest + got).split(b"\n")
                # A line without an end must not fill the memory.
                self._rest = incomplete_line[-_CHARACTERS:]
                for line in map(self._line_text, lines):
                    if line:
                        self._lines.append(line)
                        _log.info("MCP server %s: %s", self._name, line)

    def _line_text(self, line: bytes) -> str:
        return self._hide(line.decode("utf-8", "replace").rstrip())[:_CHARACTERS]
