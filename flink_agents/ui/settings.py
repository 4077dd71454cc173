"""Settings of the console: its sources, its address and its token."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flink_agents.api.errors.console import UnsafeAddressError
from flink_agents.plan.model import AgentPlan

CHOSEN_JOB: ContextVar[str] = ContextVar("flink-agents-ui-job", default="")
"""The job that a visitor chose, while a page is made: queries and links keep to it. Empty: all jobs."""

JournalReader = Callable[[str, int | None], list[dict[str, Any]]]
"""Returns the journals of a key by its canonical text, and by the sequence number of a run if given."""


@dataclass(frozen=True)
class ConsoleSettings:
    """Sources of the console. Pages show which of them are not set.

    Attributes:
        trace: Directory or file of trace records; None for none.
        trace_topic: Topic of trace records.
        client: Options of kafka-python for all topics.
        requests: Topic of requests for approvals.
        signals: Topic that the job reads signals from.
        answers: Topic of the job's answers to requests.
        dead_letters: Topics of dead letters.
        cluster: Address of Flink's REST interface; None for none.
        plans: Plans of agents, for the graph.
        journals: Reads journals; None if there is no store.
        state_dirs: Further directories with folders of local jobs, besides those near the trace.
    """

    trace: Path | None = None
    trace_topic: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])
    requests: str | None = None
    signals: str | None = None
    answers: str | None = None
    dead_letters: tuple[str, ...] = ()
    cluster: str | None = None
    plans: tuple[AgentPlan, ...] = ()
    journals: JournalReader | None = None
    state_dirs: tuple[Path, ...] = ()

    @property
    def can_ask(self) -> bool:
        """True if a job can be asked about a key, and its answer can be read."""
        return self.signals is not None and (self.answers is not None or self.cluster is not None)


@dataclass(frozen=True)
class Access:
    """Address and token of the console.

    Attributes:
        host: The address to listen at.
        port: The port to listen at.
        token: Token that visitors need, without surrounding space. None: every user of this machine has
            access.
        names: Further host names in the browser's address, such as the name of a proxy.

    Raises:
        UnsafeAddressError: Other machines reach the address, and there is no token; or the token cannot be
            typed.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    token: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.token is not None:
            object.__setattr__(self, "token", self.token.strip())
            _check_token(self.token)
        if self.token is None and not is_loopback(self.host):
            raise UnsafeAddressError(
                f"the console would listen at {self.host} without a token",
                expected="a token, or an address of this machine such as 127.0.0.1",
                found="an address that other machines reach",
                fix="set FLINK_AGENTS_UI_TOKEN to a long random text, or leave --host out",
            )

    def admits_host(self, header: str) -> bool:
        """Return True if a Host header names this console.

        Other names are rejected: an attacker can let a name point to this machine (DNS rebinding).
        """
        name, _, port = header.rpartition(":") if header.rpartition(":")[2].isdecimal() else (header, "", "")
        name = name.strip("[]").lower().rstrip(".")
        if name in {console_name.lower() for console_name in self.names}:
            return True
        if port != str(self.port) and not (port == "" and self.port in (80, 443)):
            return False
        if is_loopback(self.host):
            return name in ("localhost", "127.0.0.1", "::1", self.host)
        # A number cannot be made to point elsewhere, as a name can.
        return _is_ip_address(name) or name in (self.host, socket.gethostname().lower())


def _check_token(token: str) -> None:
    """Check that a token can be typed into the login form.

    Raises:
        UnsafeAddressError: It is blank, or has control characters.
    """
    if token and token.isprintable():
        return
    raise UnsafeAddressError(
        "the token is blank" if not token else "the token has characters that cannot be typed",
        expected="one line of printable characters",
        found="nothing but space" if not token else "a line break or another control character inside it",
        fix="set FLINK_AGENTS_UI_TOKEN to a long random text, or unset it",
    )


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
