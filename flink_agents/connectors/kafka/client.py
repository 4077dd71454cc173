"""Options of kafka-python as properties of Kafka's Java client, which Flink's connector uses.

The names are those of ``action-state.kafka.client.*``, so that a job configures its brokers once.
Certificates and keys travel as strings: the machines of a cluster need no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors import KafkaStreamError
from flink_agents.api.errors.base import suggest

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

LOGIN_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
"""Java's login class for a user with a password, by mechanism; in ``common.security`` of Kafka's client."""

SHADED = "org.apache.flink.kafka.shaded.org.apache.kafka.common.security"
"""The package in the connector's jar file that holds its copy of the Kafka client."""

_SAME_MEANING = ("client_id", "request_timeout_ms", "reconnect_backoff_ms", "reconnect_backoff_max_ms")
_SAME_MEANING += ("retry_backoff_ms", "connections_max_idle_ms", "metadata_max_age_ms")
_SECURITY = ("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_SECURITY += ("ssl_check_hostname", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")

CLIENT_OPTIONS = ("bootstrap_servers", *_SECURITY, *_SAME_MEANING)
"""Options that a source and a sink accept; other settings of the Java client go into ``properties``."""

BOOTSTRAP_MS = 12_000
"""Time that a client looks for brokers, unless its options set it."""

_OWN_PROPERTIES = frozenset(
    ("bootstrap.servers", "group.id", "transactional.id", "key.deserializer", "value.deserializer")
    + ("key.serializer", "value.serializer", "enable.auto.commit")
)
"""Properties that Flink, or the arguments of the source and the sink, decide."""


@contextmanager
def reaching(servers: Any = None) -> Iterator[None]:
    """Turn errors of kafka-python into errors with a fix.

    Args:
        servers: The addresses of the brokers, if they are known.

    Raises:
        KafkaStreamError: The brokers cannot be reached, or reject the request.
    """
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        at = f" at {servers if isinstance(servers, str) else ','.join(servers)}" if servers else ""
        raise KafkaStreamError(
            f"the brokers{at} cannot be reached, or reject the request",
            expected="brokers that answer at bootstrap_servers, and accept the login of the client",
            found=_told(error),
            fix="start the brokers, or correct bootstrap_servers and the options of the client; "
            "`flink-agents kafka start` starts a broker for development",
        ) from error


def _told(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    # kafka-python writes the class into the text of some errors.
    return text if text.startswith(name) else f"{name}: {text}"


def know_passwords(options: Mapping[str, Any]) -> None:
    """Keep the passwords of a client out of errors and logs."""
    for name in ("sasl_plain_password", "ssl_password"):
        redaction.know(options.get(name))


def made_client(kind: Callable[..., Any], **options: Any) -> Any:
    """Return a client of kafka-python.

    Args:
        kind: The class of the client.
        **options: Options of the client.

    Raises:
        KafkaStreamError: The options are invalid, or the brokers cannot be reached.
    """
    know_passwords(options)
    if "bootstrap_timeout_ms" in getattr(kind, "DEFAULT_CONFIG", ()):
        options = {"bootstrap_timeout_ms": BOOTSTRAP_MS, **options}
    with reaching(options.get("bootstrap_servers")):
        try:
            return kind(**options)
        except (TypeError, ValueError, AssertionError, OSError) as error:
            raise KafkaStreamError(
                "kafka-python cannot create a client with these options",
                expected="bootstrap_servers as 'host:port', and options of kafka-python with valid values",
                found=f"{type(error).__name__}: {error}",
                fix="correct the named option",
            ) from error


def check_topic(topic: str, client: Mapping[str, Any], expected: str) -> None:
    """Check that a topic exists, without creating it, as brokers do for a client that asks for one topic.

    Args:
        topic: Its name.
        client: Options of kafka-python; options that an admin client does not have are ignored.
        expected: The purpose of the topic, for the error.

    Raises:
        KafkaStreamError: It does not exist, or the brokers cannot be reached.
    """
    from kafka import KafkaAdminClient

    known: Any = KafkaAdminClient.DEFAULT_CONFIG
    admin = made_client(KafkaAdminClient, **{name: client[name] for name in client if name in known})
    try:
        names = admin.list_topics()
    finally:
        admin.close()
    if topic not in names:
        raise KafkaStreamError(
            f"topic {topic!r} does not exist",
            expected=expected,
            found=", ".join(sorted(one for one in names if not one.startswith("__"))[:20]) or "no topics",
            fix=suggest(topic, names, "correct the name, or create the topic: KafkaApprovals.create_topics"),
        )


def java_properties(client: Mapping[str, Any], properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a Java client that reaches the same brokers in the same way.

    Args:
        client: Options of kafka-python, ``bootstrap_servers`` among them.
        properties: Properties of the Java client by Java's own names, which take precedence.

    Raises:
        KafkaStreamError: An option is unknown, missing or invalid.
    """
    _check_names(client, properties)
    know_passwords(client)
    found = {"bootstrap.servers": _servers(client.get("bootstrap_servers"))}
    found |= {name.replace("_", "."): str(client[name]) for name in _SAME_MEANING if name in client}
    protocol = client.get("security_protocol", "PLAINTEXT")
    if protocol not in SECURITY_PROTOCOLS:
        raise _wrong("security_protocol", ", ".join(SECURITY_PROTOCOLS), protocol)
    found["security.protocol"] = protocol
    if protocol.endswith("SSL"):
        found |= _tls(client)
    if protocol.startswith("SASL"):
        found |= _login(client)
    return found | dict(properties)


def _check_names(client: Mapping[str, Any], properties: Mapping[str, str]) -> None:
    for name in client:
        if name not in CLIENT_OPTIONS:
            otherwise = "pass settings of the Java client by its own names: properties={'linger.ms': '5'}"
            raise KafkaStreamError(
                f"a Kafka source or sink has no option {name!r}",
                expected="its arguments, or an option of kafka-python: " + ", ".join(CLIENT_OPTIONS),
                found=name,
                fix=suggest(name, CLIENT_OPTIONS, otherwise),
            )
    for name in properties:
        if name in _OWN_PROPERTIES:
            raise KafkaStreamError(
                f"the property {name!r} follows from the arguments of the source or sink",
                found=f"properties={{{name!r}: ...}}",
                fix="remove it, and use the argument for it",
            )


def _servers(given: Any) -> str:
    servers = given if isinstance(given, str) else ",".join(given or ())
    if not servers or not all(re.search(r"\S:\d+$", one.strip()) for one in servers.split(",")):
        raise _wrong("bootstrap_servers", "'host:port', several separated by commas", given)
    return servers


def _tls(client: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    if client.get("ssl_cafile") is not None:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = _pem("ssl_cafile", client["ssl_cafile"], "CERTIFICATE")
    if client.get("ssl_certfile") is not None:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _pem("ssl_certfile", client["ssl_certfile"], "CERTIFICATE")
        # As in Python, the key may be in the certificate's file.
        name = "ssl_certfile" if client.get("ssl_keyfile") is None else "ssl_keyfile"
        found["ssl.keystore.key"] = _pem(name, client[name], "(?:ENCRYPTED )?PRIVATE KEY")
        if client.get("ssl_password") is not None:
            found["ssl.key.password"] = str(client["ssl_password"])
    if client.get("ssl_check_hostname") is False:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _pem(name: str, path: Any, label: str) -> str:
    """Return the parts of a PEM file with a given label, in Java's format."""
    try:
        text = Path(path).read_text("ascii", "replace")
    except OSError as error:
        raise _wrong(name, "a PEM file that can be read here", f"{path}: {error.strerror}") from error
    parts = re.findall(rf"-----BEGIN {label}-----.*?-----END {label}-----", text, re.DOTALL)
    if parts:
        return "\n".join(parts)
    kinds = ", ".join(re.findall("-----BEGIN (.*?)-----", text)) or "nothing in PEM"
    if "KEY" in label and "PRIVATE KEY" in kinds:
        raise KafkaStreamError(
            f"the key of {name} has a form that Java does not read",
            expected="PKCS #8: BEGIN PRIVATE KEY, or BEGIN ENCRYPTED PRIVATE KEY",
            found=f"{path}: {kinds}",
            fix="convert it: openssl pkcs8 -topk8 -nocrypt -in key.pem -out key8.pem",
        )
    expected = "a private key in PEM" if "KEY" in label else "certificates in PEM"
    raise _wrong(name, expected, f"{path}: {kinds}")


def _login(client: Mapping[str, Any]) -> dict[str, str]:
    mechanism = client.get("sasl_mechanism")
    if mechanism not in LOGIN_MODULES:
        raise KafkaStreamError(
            f"sasl_mechanism={mechanism!r} cannot be translated for Flink's connector",
            expected=", ".join(LOGIN_MODULES),
            found=repr(mechanism),
            fix="pass sasl.mechanism, sasl.jaas.config and its other settings as properties=, with "
            f"security.protocol; the connector's classes start with {SHADED}",
        )
    user, password = client.get("sasl_plain_username"), client.get("sasl_plain_password")
    if user is None or password is None:
        missing = "sasl_plain_username" if user is None else "sasl_plain_password"
        raise _wrong(missing, "a user and a password", None)
    module = f"{SHADED}.{LOGIN_MODULES[mechanism]}"
    jaas = f"{module} required username={_quoted(user)} password={_quoted(password)};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _quoted(text: str) -> str:
    """Return a value as a quoted string of a JAAS configuration, whose lexer knows C's escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _wrong(name: str, expected: str, found: Any) -> KafkaStreamError:
    return KafkaStreamError(
        f"the option {name!r} of a Kafka source or sink is invalid",
        expected=expected,
        found=found if isinstance(found, str) else repr(found),
        fix=f"correct {name}",
    )
