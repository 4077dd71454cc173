"""Options of kafka-python as properties of the Java client, and where sources begin and end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka import client
from flink_agents.connectors.kafka.client import (
    BOOTSTRAP_MS,
    CLIENT_OPTIONS,
    SHADED,
    create_client,
    java_properties,
)
from flink_agents.connectors.kafka.source import start_options, stop_options
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.testing.kafka.settings import free_port
from tests.suite.tables import each_case

CA = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nREVG\n-----END PRIVATE KEY-----"
OLD_KEY = "-----BEGIN RSA PRIVATE KEY-----\nREVG\n-----END RSA PRIVATE KEY-----"
SERVERS = {"bootstrap_servers": "kafka-1:9092"}


def java(**client: Any) -> dict[str, str]:
    return java_properties({**SERVERS, **client}, {})


def test_all_options_are_options_of_kafka_python() -> None:
    import kafka

    kafka_options = kafka.KafkaConsumer.DEFAULT_CONFIG.keys() & kafka.KafkaProducer.DEFAULT_CONFIG.keys()
    assert set(CLIENT_OPTIONS) <= kafka_options


def test_servers_and_times() -> None:
    assert java_properties(
        {"bootstrap_servers": ["a:1", "b:2"], "client_id": "me", "request_timeout_ms": 5}, {"linger.ms": "7"}
    ) == {
        "bootstrap.servers": "a:1,b:2",
        "client.id": "me",
        "request.timeout.ms": "5",
        "security.protocol": "PLAINTEXT",
        "linger.ms": "7",
    }


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    chain = tmp_path / "chain.pem"
    ca.write_text(f"a comment\n{CA}\nmore\n{CA}\n")
    chain.write_text(f"{KEY}\n{CA}\n")
    properties = java(security_protocol="SSL", ssl_cafile=str(ca), ssl_certfile=chain, ssl_password="pw")
    assert properties["ssl.truststore.type"] == properties["ssl.keystore.type"] == "PEM"
    assert properties["ssl.truststore.certificates"] == f"{CA}\n{CA}"
    assert properties["ssl.keystore.certificate.chain"] == CA
    assert (properties["ssl.keystore.key"], properties["ssl.key.password"]) == (KEY, "pw")
    assert "ssl.endpoint.identification.algorithm" not in properties
    assert (
        java(security_protocol="SSL", ssl_check_hostname=False)["ssl.endpoint.identification.algorithm"] == ""
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [(OLD_KEY, "openssl pkcs8 -topk8"), ("nothing", "nothing in PEM"), (None, "No such file")],
)
def test_a_key_that_java_cannot_read(tmp_path: Path, content: str | None, message: str) -> None:
    chain = tmp_path / "chain.pem"
    key = tmp_path / "key.pem"
    chain.write_text(CA)
    if content is not None:
        key.write_text(content)
    with pytest.raises(KafkaStreamError, match="ssl_keyfile") as caught:
        java(security_protocol="SSL", ssl_certfile=chain, ssl_keyfile=key)
    assert message in str(caught.value)


def test_the_login_is_written_for_javas_parser() -> None:
    login = {"sasl_plain_username": "me", "sasl_plain_password": 'a"b\\c'}
    properties = java(security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", **login)
    assert properties["sasl.mechanism"] == "SCRAM-SHA-512"
    assert properties["sasl.jaas.config"] == (
        f'{SHADED}.scram.ScramLoginModule required username="me" password="a\\"b\\\\c";'
    )


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ({"bootstrap_servers": "kafka"}, "host:port"),
        ({"bootstrap_servers": None}, "host:port"),
        ({"security_protocol": "TLS"}, "SASL_SSL"),
        ({"sasl_mechanisms": "PLAIN"}, "did you mean 'sasl_mechanism'?"),
        ({"linger_ms": 5}, "properties={'linger.ms': '5'}"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl.jaas.config"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl_plain_username"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(client: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaStreamError) as caught:
        java(**client)
    assert text in str(caught.value)


def test_a_password_is_in_no_error() -> None:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_password": "secret"}
    with pytest.raises(KafkaStreamError) as caught:
        java(**login)
    assert "secret" not in str(caught.value)


def test_a_property_that_arguments_decide_is_refused() -> None:
    with pytest.raises(KafkaStreamError, match=r"'group\.id' follows"):
        java_properties(SERVERS, {"group.id": "x"})


# -- where a source begins and ends -----------------------------------------------------------

AT = datetime(2026, 1, 2, tzinfo=UTC)


def test_positions() -> None:
    assert start_options("earliest", ["a"], None) == {"scan.startup.mode": "earliest-offset"}
    assert start_options("committed", ["a"], "g") == {"scan.startup.mode": "group-offsets"}
    assert stop_options(None, ["a"], None) == {}
    assert stop_options("latest", ["a", "b"], None) == {"scan.bounded.mode": "latest-offset"}
    assert start_options(AT, ["a"], None) == {
        "scan.startup.mode": "timestamp",
        "scan.startup.timestamp-millis": "1767312000000",
    }
    assert stop_options({0: 5, 1: 7}, ["a"], None) == {
        "scan.bounded.mode": "specific-offsets",
        "scan.bounded.specific-offsets": "partition:0,offset:5;partition:1,offset:7",
    }


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("begin", "'earliest'"),
        ("committed", "group=..."),
        (AT.replace(tzinfo=None), "tzinfo=UTC"),
        ({}, "mapping of partitions"),
        ({0: 1}, "one source for each topic"),
    ],
)
def test_a_start_that_there_is_not(start: Any, text: str) -> None:
    with pytest.raises(KafkaStreamError) as caught:
        start_options(start, ["a", "b"], None)
    assert text in str(caught.value)


def test_a_source_cannot_stop_at_the_earliest_record() -> None:
    with pytest.raises(KafkaStreamError, match="'latest', 'committed'"):
        stop_options("earliest", ["a"], None)  # pyright: ignore[reportArgumentType]


class Unreachable:
    """A client of brokers that do not answer."""

    DEFAULT_CONFIG = {"bootstrap_timeout_ms": 30_000}

    def __init__(self, **options: Any) -> None:
        raise KafkaTimeoutError(f"{options['bootstrap_timeout_ms']}")


def test_brokers_that_do_not_answer_are_named_soon() -> None:
    with pytest.raises(KafkaStreamError, match="the brokers at nowhere:1 cannot be reached") as caught:
        create_client(Unreachable, bootstrap_servers="nowhere:1")
    assert caught.value.found == f"KafkaTimeoutError: {BOOTSTRAP_MS}"
    with pytest.raises(KafkaStreamError) as caught:
        create_client(Unreachable, bootstrap_servers="nowhere:1", bootstrap_timeout_ms=5)
    assert caught.value.found == "KafkaTimeoutError: 5"


DAY = timedelta(days=1)
LOGIN = {"sasl.mechanism": "OAUTHBEARER"}

LIMITS: list[tuple[str, list[str] | None, dict[str, str], timedelta]] = [
    ("one broker", ["86400000"], {}, DAY),
    ("brokers that differ", ["86400000", "900000", "7200000"], {}, timedelta(minutes=15)),
    ("brokers that cannot be asked", None, {}, timedelta(minutes=15)),
    ("a login that only Java has", ["86400000"], LOGIN, timedelta(minutes=15)),
    ("other properties of Java", ["86400000"], {"linger.ms": "5"}, DAY),
]


@each_case(("limits", "properties", "longest"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS])
def test_transactions_last_as_long_as_brokers_allow(
    limits: list[str] | None, properties: dict[str, str], longest: timedelta
) -> None:
    def settings(name: str, options: Any) -> list[str]:
        assert (name, options) == ("transaction.max.timeout.ms", SERVERS)
        if limits is None:
            raise KafkaStreamError("unreachable", found="NoBrokersAvailable")
        return limits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "broker_settings", settings)
        assert client.longest_transaction(SERVERS, properties) == longest


def test_a_broker_for_development_allows_a_day(kafka_broker: KafkaBroker) -> None:
    assert client.longest_transaction(kafka_broker.client_options, {}) == DAY


def test_a_broker_that_is_away_is_named(caplog: pytest.LogCaptureFixture) -> None:
    away = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "bootstrap_timeout_ms": 100}
    assert client.longest_transaction(away, {}) == timedelta(minutes=15)
    assert "the brokers cannot be asked for transaction.max.timeout.ms" in caplog.text
