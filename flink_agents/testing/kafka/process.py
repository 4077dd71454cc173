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
    """Return the process with an id if it is the broker with these properties; else None.

    The id may belong to another program by now. A broker that has ended, but was not reaped, does not count.
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
    """Terminate a process, wait for its end, and kill it if it has not ended after ``seconds``."""
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
    """Return True if a process executes nothing any more, even if its parent has not reaped it."""
    import psutil

    try:
        # The first thread can end while others still hold files and ports.
        if process.status() == psutil.STATUS_ZOMBIE:
            return process.num_threads() <= 1
        return not process.is_running()
    except psutil.NoSuchProcess:
        return True


def is_answering(options: dict[str, Any]) -> bool:
    """Return True if the broker that a client with these options reaches describes its cluster."""
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
    """Return True if something listens at ``host:port``. Clients of kafka-python log each failed attempt."""
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            # From exactly the port that it tries to reach, a client can connect to itself.
            return connection.getsockname() != connection.getpeername()
    except OSError:
        return False


def error_lines(text: str) -> str:
    """Return the lines of Java output that name errors, and then its last lines, without stack frames."""
    lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
    earlier = lines[:-TAIL_LINES]
    last = lines[-TAIL_LINES:]
    severe = [line for line in earlier if _SEVERE.search(line)][:TAIL_LINES]
    shown = [*severe, "...", *last] if severe else last
    return "\n".join(f"    {line}" for line in shown)
