"""Lets the process of a server end with the process that started it, and says what it wrote as errors.

A server that hangs does not see that its input ended, and a process that is killed can end no other one. So
a shell beside the server, in its process group, waits for the end of a pipe whose other end this process
holds: however it ends, the system closes the pipe, and the shell kills the group.
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
"""The server takes the place of this shell: its process id, input and output are those of the server."""

_LINES = 20
"""How many of the last lines of its errors are kept."""

_CHARACTERS = 500
"""How much of a line is logged and kept."""


class Lifeline:
    """The pipes that belong to the process of one server. It is made on the loop that it belongs to.

    Args:
        name: Name of the server, for the log.
        hide: Takes secrets out of what the server wrote.
    """

    def __init__(self, name: str, hide: Callable[[object], str]) -> None:
        self._name = name
        self._hide = hide
        self._loop = asyncio.get_running_loop()
        self._path = Path(tempfile.mkdtemp(prefix="flink-agents-mcp-")) / "lifeline"
        os.mkfifo(self._path, 0o600)
        # For reading as well: opened for writing alone, it would wait for a reader.
        self._held: int | None = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._errors, written = os.pipe()
        os.set_blocking(self._errors, False)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = b""
        self._open = True
        self._loop.add_reader(self._errors, self._read)
        self.errors = TextIOWrapper(os.fdopen(written, "wb", 0), encoding="utf-8", write_through=True)
        """What the server writes its errors to."""

    def guarded(self, command: str, arguments: list[str]) -> tuple[str, list[str]]:
        """Command and arguments that start a server which ends with this process."""
        return _SHELL, ["-c", _GUARD, "sh", str(self._path), command, *arguments]

    def cut(self) -> None:
        """Kill the server and all that it started, if they still run."""
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)

    def said(self) -> str:
        """The last lines of errors that the server wrote; empty where there are none."""
        self._read()
        return "\n".join([*self._lines, *filter(None, [self._text(self._rest)])])

    def close(self) -> None:
        """Kill the server, if it still runs, and let go of the pipes."""
        self.cut()
        self._read()
        self._open = False
        self._loop.remove_reader(self._errors)
        os.close(self._errors)
        self.errors.close()
        # The shell removes them as well; whoever comes second finds nothing.
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()

    def _read(self) -> None:
        if not self._open:
            return
        with contextlib.suppress(BlockingIOError):
            while got := os.read(self._errors, 65536):
                *lines, rest = (self._rest + got).split(b"\n")
                # A line without end must not fill the memory.
                self._rest = rest[-_CHARACTERS:]
                for line in map(self._text, lines):
                    if line:
                        self._lines.append(line)
                        _log.info("MCP server %s: %s", self._name, line)

    def _text(self, line: bytes) -> str:
        return self._hide(line.decode("utf-8", "replace").rstrip())[:_CHARACTERS]
