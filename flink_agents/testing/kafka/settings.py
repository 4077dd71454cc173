"""Settings of a broker: the state in its directory, its properties, and the options of its clients."""

from __future__ import annotations

import base64
import json
import random
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from flink_agents.api.errors import BrokerPortInUseError
from flink_agents.testing.kafka.artifacts import replace_text

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
"""Security of client connections: with or without encryption, and with or without authentication."""

SECURITIES: tuple[str, ...] = get_args(Security)

DEFAULT_DATA = Path(".flink-agents") / "kafka"
"""The default directory of a broker."""

HOST = "127.0.0.1"

FREE_PORTS = range(12_000, 30_000)
"""Below the ports that systems assign to clients. A client that tries to reach a stopped broker from the
broker's port would connect to itself, and the broker could not start again."""

LOG4J = """\
# Otherwise, the log would lack the end of the broker.
shutdownHook=disable
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
# These print every setting, of the broker and of each client inside of it.
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=warn
"""
"""Logging of the broker, for Log4j 2."""

_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    # Relative to the broker's working directory: a comma in a path would split it in two.
    "log.dirs": "data",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    # A job with exactly-once outputs may be down for a night.
    "transaction.max.timeout.ms": str(24 * 3600 * 1000),
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    # A killed broker may register again when its session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
}


@dataclass(frozen=True)
class BrokerState:
    """The content of ``broker.json``, which persists in a broker's directory.

    Attributes:
        port: The port for clients.
        controller_port: The port that the node uses to talk to itself.
        security: Encryption and authentication of clients.
        user: Name of the only user, with SASL.
        password: Password of that user.
        store_password: Password of the file with the broker's private key.
        cluster: Kafka's id of the cluster.
        pid: Process id at the last start; None after a stop.
    """

    port: int
    controller_port: int
    security: Security
    user: str
    password: str
    store_password: str
    cluster: str
    pid: int | None = None

    def write(self, path: Path) -> None:
        """Write the state as JSON, readable only for its owner."""
        replace_text(path, json.dumps(asdict(self), indent=2))


def new_state(security: Security, port: int | None) -> BrokerState:
    """Choose ports, passwords and ids for the first start in a directory."""
    client_port = free_port() if port is None else port
    return BrokerState(
        port=client_port,
        controller_port=free_port(client_port),
        security=security,
        user="agents",
        password=secrets.token_urlsafe(12),
        store_password=secrets.token_urlsafe(12),
        cluster=_cluster_id(),
    )


def _cluster_id() -> str:
    """Return a random id in Kafka's format; one that starts with a dash would be taken for an option."""
    first, *remaining_bytes = secrets.token_bytes(16)
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *remaining_bytes])).decode().rstrip("=")


def read_state(path: Path) -> BrokerState | None:
    """Read the state of a broker; return None if the file does not exist."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return BrokerState(**{field.name: content[field.name] for field in fields(BrokerState)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def client_options(state: BrokerState, certificate: Path) -> dict[str, Any]:
    """Return the options with which clients of kafka-python reach the broker."""
    options: dict[str, Any] = {
        "bootstrap_servers": f"{HOST}:{state.port}",
        "security_protocol": state.security,
    }
    if state.security.endswith("SSL"):
        options["ssl_cafile"] = str(certificate)
    if state.security.startswith("SASL"):
        options["sasl_mechanism"] = "PLAIN"
        options["sasl_plain_username"] = state.user
        options["sasl_plain_password"] = state.password
    return options


def broker_properties(state: BrokerState, extra: Mapping[str, str]) -> str:
    """Return the content of the file with the properties of the broker.

    Args:
        state: Ports, security and passwords.
        extra: Further properties, which take precedence.
    """
    broker_properties = {
        **_DEFAULTS,
        "controller.quorum.voters": f"1@{HOST}:{state.controller_port}",
        "listeners": f"CLIENT://{HOST}:{state.port},CONTROLLER://{HOST}:{state.controller_port}",
        "advertised.listeners": f"CLIENT://{HOST}:{state.port}",
        "listener.security.protocol.map": f"CLIENT:{state.security},CONTROLLER:PLAINTEXT",
    }
    if state.security.endswith("SSL"):
        broker_properties["ssl.keystore.type"] = "PKCS12"
        broker_properties["ssl.keystore.location"] = "broker.p12"
        broker_properties["ssl.keystore.password"] = broker_properties["ssl.key.password"] = (
            state.store_password
        )
        broker_properties["ssl.truststore.type"] = "PEM"
        broker_properties["ssl.truststore.location"] = "ca.pem"
    if state.security.startswith("SASL"):
        broker_properties["sasl.enabled.mechanisms"] = "PLAIN"
        broker_properties["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
        broker_properties["listener.name.client.plain.sasl.jaas.config"] = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' username="{state.user}" password="{state.password}" user_{state.user}="{state.password}";'
        )
    return "".join(f"{name}={_escape(value)}\n" for name, value in {**broker_properties, **extra}.items())


def _escape(value: str) -> str:
    """Return a value in the escapes of Java properties files, which are Latin-1."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n")
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in pairs)


def free_port(*used_ports: int) -> int:
    """Return a port of this machine on which nothing listens, except ``used_ports``."""
    for port in random.sample(FREE_PORTS, 200):
        if port not in used_ports and is_free(port):
            return port
    raise BrokerPortInUseError(
        "No free port was found.",
        expected=f"a free port from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}",
        fix="name a port that is free",
    )


def is_free(port: int) -> bool:
    """Return True if nothing listens on a port, so that a broker could."""
    with socket.socket() as probe:
        # Like Java: closing connections of an earlier broker do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Check that nothing listens on a port.

    Raises:
        BrokerPortInUseError: Another program does.
    """
    if not is_free(port):
        raise port_in_use(f"port {port}")


def port_in_use(what: str) -> BrokerPortInUseError:
    """Return the error for a port on which another program listens; ``what`` names the port."""
    return BrokerPortInUseError(
        f"A Kafka broker cannot listen on {HOST}, {what}.",
        expected="a port that is free, and that this user may listen on",
        found="another program has it, or it is reserved",
        fix="end that program, or name another port",
    )
