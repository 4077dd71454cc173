"""The settings of the store ``kafka``, and the clients that it makes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flink_agents import redaction
from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import OptionError, StoreError, StoreUnavailableError
from flink_agents.api.settings.stores import read_options
from flink_agents.kafka_clients import UnreadableCodecError, consumer_class

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

OWN_OPTIONS = frozenset(
    (
        "acks",
        "enable_idempotence",
        "transactional_id",
        "delivery_timeout_ms",
        "bootstrap_servers",
        "partitioner",
    )
    + ("group_id", "group_instance_id", "enable_auto_commit", "auto_offset_reset", "isolation_level")
    + ("exclude_internal_topics", "allow_auto_create_topics", "max_request_size")
)
"""Options of kafka-python that the store sets itself, as its correctness depends on them."""

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SLACK_BYTES = 1024 * 1024
"""Bytes that a message may have besides two records of the largest size."""

REQUEST_MS = 30_000
RECONNECT_MS = 1000
"""The longest pause before the client tries a lost broker again; its own default is up to 30 s."""

FETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class KafkaSettings:
    """Options of the store.

    Attributes:
        bootstrap_servers: Addresses of some brokers, ``host:port``, separated by commas.
        topic: The journal topic; the claims topic has the suffix ``-claims``.
        partitions: The number of partitions if the store creates the topic.
        replication_factor: The number of replicas if the store creates a topic; -1: the brokers' default.
        min_insync_replicas: Number of replicas that must have a record; 0: the brokers' default.
        lease_seconds: Seconds that another job waits for this one after a crash.
        append_lease_seconds: Seconds for which appends count as done without another read of the claims; 0:
            each append reads them.
        append_seconds: Seconds that an append waits for the brokers.
        rebuild_seconds: Seconds after which a read without progress fails.
        max_record_bytes: Maximum size of a record's data in bytes.
        removals: Number of fully pruned keys that the store remembers, to reject states that are too old.
        client: Further options of kafka-python, by its own names.
    """

    bootstrap_servers: str
    topic: str = "flink-agents-action-state"
    partitions: int = 8
    replication_factor: int = -1
    min_insync_replicas: int = 0
    lease_seconds: float = 10.0
    append_lease_seconds: float = 1.0
    append_seconds: float = 120.0
    rebuild_seconds: float = 120.0
    max_record_bytes: int = MAX_RECORD_BYTES
    removals: int = REMOVALS
    client: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KafkaSettings:
        """Return the settings for the options of a job.

        Raises:
            OptionError: An option is unknown, missing or invalid.
        """
        values = read_options("kafka", options)
        return cls(
            values["bootstrap-servers"],
            values["topic"],
            values["partitions"],
            values["replication-factor"],
            values["min-insync-replicas"],
            values["lease"].total_seconds(),
            values["append-lease"].total_seconds(),
            values["append-timeout"].total_seconds(),
            values["rebuild-timeout"].total_seconds(),
            values["max-record-bytes"],
            values["max-tombstones"],
            {key.replace("-", "_"): value for key, value in values["client"].items()},
        )

    @property
    def claims_topic(self) -> str:
        """Name of the topic that decides which owner may append."""
        return f"{self.topic}-claims"

    @property
    def message_bytes(self) -> int:
        """Maximum size of a Kafka message in bytes."""
        return 2 * self.max_record_bytes + SLACK_BYTES

    def create_admin(self) -> KafkaAdminClient:
        """Return an admin client of kafka-python."""
        return self._create_client("KafkaAdminClient", request_timeout_ms=REQUEST_MS)

    def create_producer(self) -> KafkaProducer:
        """Return a producer that writes in order, each record once, acknowledged by all in-sync replicas."""
        return self._create_client(
            "KafkaProducer",
            acks="all",
            enable_idempotence=True,
            max_request_size=self.message_bytes,
            batch_size=SLACK_BYTES,
            delivery_timeout_ms=int(self.append_seconds * 1000),
            request_timeout_ms=request_ms(self.append_seconds),
            max_block_ms=int(self.append_seconds * 1000),
            metrics_enabled=False,
        )

    def create_consumer(self) -> KafkaConsumer:
        """Return a consumer without a consumer group and without assigned partitions."""
        return self._create_client(
            "KafkaConsumer",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=FETCH_BYTES,
            max_poll_records=10_000,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def _create_client(self, name: str, **options: Any) -> Any:
        try:
            import kafka
        except ImportError as error:
            raise StoreUnavailableError(
                "the store kafka needs the package kafka-python",
                found=str(error),
                fix=f"{install_command('kafka')}, in the workers of the cluster as well",
            ) from error
        client_class = consumer_class() if name == "KafkaConsumer" else getattr(kafka, name)
        default_config = client_class.DEFAULT_CONFIG
        redaction.add_secrets(self.client.get("sasl_plain_password"), self.client.get("ssl_password"))
        client_options = {
            key: _parse_value(key, value, default_config[key])
            for key, value in self.client.items()
            if key in default_config
        }
        with translate_errors(f"no broker of {self.bootstrap_servers} answers"):
            all_options = {"reconnect_backoff_max_ms": RECONNECT_MS, **options, **client_options}
            return client_class(bootstrap_servers=self.bootstrap_servers.split(","), **all_options)

    def check_client_options(self) -> None:
        """Check the options in ``client``.

        Raises:
            OptionError: No client of kafka-python has the option, its value is invalid, or the store sets it
                itself.
        """
        import kafka

        clients = (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient)
        default_config = {key: value for client in clients for key, value in client.DEFAULT_CONFIG.items()}
        for key, value in self.client.items():
            if key not in default_config:
                raise OptionError(
                    f"kafka-python has no option {key!r}",
                    expected="an option of its producer, consumer or admin client",
                    found=f"action-state.kafka.client.{key}",
                    fix="see https://kafka-python.readthedocs.io for their names",
                )
            if key in OWN_OPTIONS or key.endswith("serializer"):
                raise OptionError(
                    f"the option {key!r} of kafka-python is set by the store itself",
                    found=f"action-state.kafka.client.{key}",
                    fix="remove it",
                )
            _parse_value(key, value, default_config[key])


def request_ms(seconds: float) -> int:
    """Return the timeout in ms of one request, so that an operation of ``seconds`` can repeat it."""
    return min(REQUEST_MS, int(seconds * 1000))


def _parse_value(key: str, value: Any, default: Any) -> Any:
    """Convert a string, as configuration files have it, to the type of kafka-python's default.

    Values that are no strings are returned unchanged.

    Raises:
        OptionError: The string is no such value, or the security protocol is unknown.
    """
    expected = type(default).__name__
    if key == "security_protocol":
        # kafka-python would take anything else for PLAINTEXT.
        if value in SECURITY_PROTOCOLS:
            return value
        expected = ", ".join(SECURITY_PROTOCOLS)
    else:
        if not isinstance(value, str) or not isinstance(default, (bool, int, float)):
            return value
        try:
            if isinstance(default, bool):
                return {"true": True, "false": False}[value.strip().lower()]
            return type(default)(value)
        except (KeyError, ValueError):
            pass
    raise OptionError(
        f"the option {key!r} of kafka-python has an invalid value",
        expected=expected,
        found=repr(value),
        fix=f"correct action-state.kafka.client.{key}",
    )


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn errors of kafka-python inside the block into errors of the store.

    Args:
        what: The message of the error: what could not be done.

    Raises:
        StoreUnavailableError: The block raised an error that is not one of the store.
    """
    try:
        yield
    except StoreError:
        raise
    except UnreadableCodecError as error:
        raise unreadable_error(error) from error
    except Exception as error:
        raise unavailable_error(what, error) from error


def unavailable_error(what: str, error: BaseException) -> StoreUnavailableError:
    """Return the error with the message ``what`` for a failed request to Kafka, and its fix."""
    return StoreUnavailableError(
        what,
        found=f"{type(error).__name__}: {error}",
        fix="check that the brokers are running and reachable from here, and their permissions",
    )


def unreadable_error(error: UnreadableCodecError) -> StoreUnavailableError:
    """Return the error for records whose codec has no library here: a retry cannot help."""
    return StoreUnavailableError(str(error), expected=error.expected, found="it is missing", fix=error.fix)


def quiet_client() -> None:
    """Set kafka-python's loggers to WARNING: at INFO, they log each connection."""
    logging.getLogger("kafka").setLevel(logging.WARNING)
