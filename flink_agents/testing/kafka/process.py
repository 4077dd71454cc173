"""The process of a broker: identified by its command line, never by its id alone."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

MAIN_CLASS = "kafka.Kafka"

TAIL_LINES = 15
"""Number of lines of a broker's log in an error."""

_SEVERE = re.compile(r" (ERROR|FATAL) |^(Caused by: )?[\w.]+(Exception|Error): ")
_POLL_SECONDS = 0.02
_LIMITS: dict[str, Any] = {"bootstrap_timeout_ms": 5_000, "request_timeout_ms": 5_000}


def find_process(pid: int, properties: Path) -> psutil.Process | None:
    """Return the process with this id if it is the broker that was started with these properties.

    An id may now belong to another program, which is not returned; nor is a process that has ended and
    that its parent has not reaped yet.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        arguments = [] if _has_ended(process) else process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Gone, or another user's.
        return None
    return process if arguments[-2:] == [MAIN_CLASS, str(properties)] else None


def end_process(process: psutil.Process, seconds: float) -> None:
    """Terminate a process, and kill it if it does not end in time."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        # A paused process would not receive it.
        process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + seconds
    while not _has_ended(process):
        if time.monotonic() >= deadline:
            return kill_process(process)
        time.sleep(_POLL_SECONDS)


def kill_process(process: psutil.Process) -> None:
    """Kill a process, and wait until it has ended."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    while not _has_ended(process):
        time.sleep(_POLL_SECONDS)


def _has_ended(process: psutil.Process) -> bool:
    """Return True if the process no longer executes anything, even if its parent has not noticed."""
    import psutil

    try:
        # The first thread can end while others still hold files and ports.
        if process.status() == psutil.STATUS_ZOMBIE:
            return process.num_threads() <= 1
        return not process.is_running()
    except psutil.NoSuchProcess:
        return True


def is_answering(options: dict[str, Any]) -> bool:
    """Return True if a broker answers requests: it describes its cluster, and itself in it."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    if not _is_listening(options["bootstrap_servers"]):
        return False
    try:
        admin = KafkaAdminClient(**{**options, **_LIMITS})
    except (KafkaError, OSError):
        return False
    try:
        return bool(admin.describe_cluster()["brokers"])
    except (KafkaError, OSError):
        return False
    finally:
        admin.close()


def _is_listening(address: str) -> bool:
    """Return True if the port is open: a client that waits for it instead logs each failure."""
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            # From exactly the port that it tries to reach, a client can connect to itself.
            return connection.getsockname() != connection.getpeername()
    except OSError:
        return False


def error_lines(text: str) -> str:
    """Return the lines of a program's output that name errors, then the last lines, without Java frames."""
    lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
    earlier = lines[:-TAIL_LINES]
    last = lines[-TAIL_LINES:]
    severe = [line for line in earlier if _SEVERE.search(line)][:TAIL_LINES]
    shown = [*severe, "...", *last] if severe else last
    return "\n".join(f"    {line}" for line in shown)
