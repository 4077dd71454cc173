"""Options of kafka-python as properties of Kafka's Java client, which Flink's connector uses.

The names are those of ``action-state.kafka.client.*``, so that a job configures its brokers once.
Certificates and keys travel as strings: the machines of a cluster need no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from flink_agents import redaction
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import KafkaStreamError
from flink_agents.api.errors.base import suggest
from flink_agents.kafka_clients import UnreadableCodecError, consumer_class

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


class KafkaClientOptions(TypedDict, total=False):
    """Options of kafka-python that a source and a sink accept. Other settings go into ``properties``.

    Annotate a dictionary with it to pass it as ``**kafka``: then a type checker knows its entries.
    """

    bootstrap_servers: str | Sequence[str]
    security_protocol: str
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    client_id: str
    request_timeout_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    retry_backoff_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int


CLIENT_OPTIONS = tuple(KafkaClientOptions.__annotations__)

MAX_TRANSACTION = "transaction.max.timeout.ms"
"""The setting of brokers that limits the timeout of transactions."""

DEFAULT_LONGEST_TRANSACTION = timedelta(minutes=15)
"""Kafka's default of that setting. Flink's own default for transactions, an hour, is rejected then."""

QUESTION_MS = 5_000
"""Time that a client looks for brokers to ask for an optional setting."""

BOOTSTRAP_MS = 12_000
"""Time that a client looks for brokers, unless its options set it."""

_OWN_PROPERTIES = frozenset(
    ("bootstrap.servers", "group.id", "transactional.id", "key.deserializer", "value.deserializer")
    + ("key.serializer", "value.serializer", "enable.auto.commit")
)
"""Properties that Flink, or the arguments of the source and the sink, decide."""

_log = bounded_logger("flink_agents.kafka")


@contextmanager
def translate_client_errors(servers: Any = None) -> Iterator[None]:
    """Turn errors of kafka-python inside the block into errors with a fix.

    Args:
        servers: Addresses of the brokers for the error: a string or several; None if they are not known.

    Raises:
        KafkaStreamError: The brokers cannot be reached, or reject the request, or records cannot be read.
    """
    from kafka.errors import KafkaError

    try:
        yield
    except UnreadableCodecError as error:
        raise KafkaStreamError(
            str(error), expected=error.expected, found="it is missing", fix=error.fix
        ) from error
    except KafkaError as error:
        at = f" at {servers if isinstance(servers, str) else ','.join(servers)}" if servers else ""
        raise KafkaStreamError(
            f"the brokers{at} cannot be reached, or reject the request",
            expected="brokers that answer at bootstrap_servers, and accept the login of the client",
            found=_describe_error(error),
            fix="start the brokers, or correct bootstrap_servers and the options of the client; "
            "`flink-agents kafka start` starts a broker for development",
        ) from error


def _describe_error(error: Exception) -> str:
    name = type(error).__name__
    text = str(error)
    # kafka-python writes the class into the text of some errors.
    return text if text.startswith(name) else f"{name}: {text}"


def know_passwords(options: Mapping[str, Any]) -> None:
    """Register the passwords in the options of a client, so that errors and logs do not show them."""
    for name in ("sasl_plain_password", "ssl_password"):
        redaction.add_secrets(options.get(name))


def create_client(kind: Callable[..., Any], **options: Any) -> Any:
    """Create a client of kafka-python; waits up to :data:`BOOTSTRAP_MS` for a broker.

    Args:
        kind: The class of the client.
        **options: Its options.

    Raises:
        KafkaStreamError: The options are invalid, or the brokers cannot be reached.
    """
    know_passwords(options)
    if "bootstrap_timeout_ms" in getattr(kind, "DEFAULT_CONFIG", ()):
        options = {"bootstrap_timeout_ms": BOOTSTRAP_MS, **options}
    with translate_client_errors(options.get("bootstrap_servers")):
        try:
            return kind(**options)
        except (TypeError, ValueError, AssertionError, OSError) as error:
            raise KafkaStreamError(
                "kafka-python cannot create a client with these options",
                expected="bootstrap_servers as 'host:port', and options of kafka-python with valid values",
                found=f"{type(error).__name__}: {error}",
                fix="correct the named option",
            ) from error


def create_consumer(**options: Any) -> Any:
    """Create a consumer of kafka-python that names a missing library of a codec.

    Wrap calls of its ``poll`` in :func:`translate_client_errors`.

    Args:
        **options: Its options.

    Raises:
        KafkaStreamError: The options are invalid, or the brokers cannot be reached.
    """
    return create_client(consumer_class(), **options)


def check_topic(
    topic: str, client: Mapping[str, Any], expected: str, create: str = "KafkaApprovals.create_topics"
) -> None:
    """Check that a topic exists. All topics are listed, since brokers may create one that a client asks for.

    Args:
        topic: Name of the topic.
        client: Options of kafka-python. Those that an admin client does not have are ignored.
        expected: What the topic is for, as ``expected`` of the error.
        create: The call or command that creates it, for the fix.

    Raises:
        KafkaStreamError: It does not exist, or the brokers cannot be reached.
    """
    from kafka import KafkaAdminClient

    default_config: Any = KafkaAdminClient.DEFAULT_CONFIG
    admin = create_client(
        KafkaAdminClient, **{name: client[name] for name in client if name in default_config}
    )
    try:
        names = admin.list_topics()
    finally:
        admin.close()
    if topic not in names:
        raise KafkaStreamError(
            f"topic {topic!r} does not exist",
            expected=expected,
            found=", ".join(sorted(name for name in names if not name.startswith("__"))[:20]) or "no topics",
            fix=suggest(topic, names, f"correct the name, or create the topic: {create}"),
        )


def longest_transaction(client: Mapping[str, Any], properties: Mapping[str, str]) -> timedelta:
    """Return the longest transaction timeout that the brokers allow.

    If they cannot be asked, return Kafka's default of 15 minutes: the job itself will report the brokers.

    Args:
        client: Options of kafka-python.
        properties: Properties of the Java client. If they have the login, kafka-python cannot connect.
    """
    if any(name.startswith(("sasl.", "ssl.", "security.")) for name in properties):
        return DEFAULT_LONGEST_TRANSACTION
    try:
        limits = broker_settings(MAX_TRANSACTION, client)
    except KafkaStreamError as error:
        _log.warning(
            "the brokers cannot be asked for %s, so transactions end after %s min: %s",
            MAX_TRANSACTION,
            DEFAULT_LONGEST_TRANSACTION // timedelta(minutes=1),
            error.found,
        )
        return DEFAULT_LONGEST_TRANSACTION
    return timedelta(milliseconds=min(map(int, limits)))


def broker_settings(name: str, client: Mapping[str, Any]) -> list[str]:
    """Ask for a setting of each broker, and return its values in the order of the brokers.

    Args:
        name: Name of the setting.
        client: Options of kafka-python.

    Raises:
        KafkaStreamError: The brokers cannot be reached, or do not allow the request.
    """
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    default_config: Any = KafkaAdminClient.DEFAULT_CONFIG
    options = {option: client[option] for option in client if option in default_config}
    admin = create_client(KafkaAdminClient, **{"bootstrap_timeout_ms": QUESTION_MS, **options})
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            brokers = [str(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"]]
            resources = [ConfigResource(ConfigResourceType.BROKER, broker) for broker in brokers]
            answer = admin.describe_configs(resources, config_filter="all")
    finally:
        admin.close()
    return [answer["broker"][broker][name]["value"] for broker in brokers]


def java_properties(client: Mapping[str, Any], properties: Mapping[str, str]) -> dict[str, str]:
    """Translate options of kafka-python to properties of Kafka's Java client, for the same brokers and login.

    Args:
        client: Options of kafka-python, with ``bootstrap_servers``.
        properties: Further properties of the Java client by Java's own names, which take precedence.

    Raises:
        KafkaStreamError: An option is unknown, missing or invalid.
    """
    _check_names(client, properties)
    know_passwords(client)
    java_options = {"bootstrap.servers": _servers(client.get("bootstrap_servers"))}
    java_options |= {name.replace("_", "."): str(client[name]) for name in _SAME_MEANING if name in client}
    protocol = client.get("security_protocol", "PLAINTEXT")
    if protocol not in SECURITY_PROTOCOLS:
        raise _invalid_option_error("security_protocol", ", ".join(SECURITY_PROTOCOLS), protocol)
    java_options["security.protocol"] = protocol
    if protocol.endswith("SSL"):
        java_options |= _tls_options(client)
    if protocol.startswith("SASL"):
        java_options |= _login_options(client)
    return java_options | dict(properties)


def _check_names(client: Mapping[str, Any], properties: Mapping[str, str]) -> None:
    for name in client:
        if name not in CLIENT_OPTIONS:
            default_fix = "pass settings of the Java client by its own names: properties={'linger.ms': '5'}"
            raise KafkaStreamError(
                f"a Kafka source or sink has no option {name!r}",
                expected="its arguments, or an option of kafka-python: " + ", ".join(CLIENT_OPTIONS),
                found=name,
                fix=suggest(name, CLIENT_OPTIONS, default_fix),
            )
    for name in properties:
        if name in _OWN_PROPERTIES:
            raise KafkaStreamError(
                f"the property {name!r} follows from the arguments of the source or sink",
                found=f"properties={{{name!r}: ...}}",
                fix="remove it, and use the argument for it",
            )


def _servers(bootstrap_servers: Any) -> str:
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers or ())
    if not servers or not all(re.search(r"\S:\d+$", server.strip()) for server in servers.split(",")):
        raise _invalid_option_error(
            "bootstrap_servers", "'host:port', several separated by commas", bootstrap_servers
        )
    return servers


def _tls_options(client: Mapping[str, Any]) -> dict[str, str]:
    """Return the Java client's properties for TLS; certificates and keys are read from their files."""
    tls_options: dict[str, str] = {}
    if client.get("ssl_cafile") is not None:
        tls_options["ssl.truststore.type"] = "PEM"
        tls_options["ssl.truststore.certificates"] = _read_pem(
            "ssl_cafile", client["ssl_cafile"], "CERTIFICATE"
        )
    if client.get("ssl_certfile") is not None:
        tls_options["ssl.keystore.type"] = "PEM"
        tls_options["ssl.keystore.certificate.chain"] = _read_pem(
            "ssl_certfile", client["ssl_certfile"], "CERTIFICATE"
        )
        # As in Python, the key may be in the certificate's file.
        name = "ssl_certfile" if client.get("ssl_keyfile") is None else "ssl_keyfile"
        tls_options["ssl.keystore.key"] = _read_pem(name, client[name], "(?:ENCRYPTED )?PRIVATE KEY")
        if client.get("ssl_password") is not None:
            tls_options["ssl.key.password"] = str(client["ssl_password"])
    if client.get("ssl_check_hostname") is False:
        tls_options["ssl.endpoint.identification.algorithm"] = ""
    return tls_options


def _read_pem(name: str, path: Any, label: str) -> str:
    """Return the blocks of a PEM file with a label, such as ``CERTIFICATE``.

    Args:
        name: The option with the path, for errors.
        path: The file.
        label: A regular expression for the label.

    Raises:
        KafkaStreamError: The file cannot be read, or has no such block.
    """
    try:
        text = Path(path).read_text("ascii", "replace")
    except OSError as error:
        raise _invalid_option_error(
            name, "a PEM file that can be read here", f"{path}: {error.strerror}"
        ) from error
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
    raise _invalid_option_error(name, expected, f"{path}: {kinds}")


def _login_options(client: Mapping[str, Any]) -> dict[str, str]:
    """Return the Java client's properties for a user and password."""
    mechanism = client.get("sasl_mechanism")
    if mechanism not in LOGIN_MODULES:
        raise KafkaStreamError(
            f"sasl_mechanism={mechanism!r} cannot be translated for Flink's connector",
            expected=", ".join(LOGIN_MODULES),
            found=repr(mechanism),
            fix="pass sasl.mechanism, sasl.jaas.config and its other settings as properties=, with "
            f"security.protocol; the connector's classes start with {SHADED}",
        )
    user = client.get("sasl_plain_username")
    password = client.get("sasl_plain_password")
    if user is None or password is None:
        missing = "sasl_plain_username" if user is None else "sasl_plain_password"
        raise _invalid_option_error(missing, "a user and a password", None)
    module = f"{SHADED}.{LOGIN_MODULES[mechanism]}"
    jaas = f"{module} required username={_quote(user)} password={_quote(password)};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _quote(text: str) -> str:
    """Return text as a quoted string of a JAAS configuration, which takes the escapes of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _invalid_option_error(name: str, expected: str, found: Any) -> KafkaStreamError:
    return KafkaStreamError(
        f"the option {name!r} of a Kafka source or sink is invalid",
        expected=expected,
        found=found if isinstance(found, str) else repr(found),
        fix=f"correct {name}",
    )
