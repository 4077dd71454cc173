"""A source begins and ends as it is told to, or its declaration is refused; discovery is as declared."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.subscription import positions
from flink_agents.connectors.kafka.subscription.positions import (
    check_positions,
    discovery_options,
    needs_brokers,
    start_options,
    stop_options,
)
from flink_agents.connectors.kafka.subscription.topics_read import topic_options
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

SERVERS: dict[str, Any] = {"bootstrap_servers": "k:1"}
NOW = datetime.now(UTC)


class Consumer:
    """A consumer of brokers with the topics ``orders`` and ``orders-eu``."""

    ends = {("orders", 0): 10, ("orders", 1): 0, ("orders-eu", 0): 5}
    group: dict[tuple[str, int], int] = {}

    def topics(self) -> set[str]:
        return {topic for topic, _ in self.ends}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {number for name, number in self.ends if name == topic}

    def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return {partition: self.ends[partition.topic, partition.partition] for partition in partitions}

    def committed(self, partition: Any) -> int | None:
        return self.group.get((partition.topic, partition.partition))

    def close(self) -> None:
        pass


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> type[Consumer]:
    monkeypatch.setattr(Consumer, "group", {})
    monkeypatch.setattr(positions, "create_consumer", lambda **_: Consumer())
    return Consumer


# -- times -----------------------------------------------------------------------------


@each_case("options", [start_options, stop_options])
@each_case(
    "time",
    [NOW + timedelta(days=1), NOW + timedelta(days=1000), datetime(9999, 1, 1, tzinfo=UTC)]
    + [(NOW + timedelta(days=1)).astimezone(timezone(timedelta(hours=-12)))],
)
def test_a_time_to_come_is_refused(options: Any, time: datetime) -> None:
    with pytest.raises(KafkaStreamError, match="a time that has passed"):
        options(time, ["orders"], None)


@each_case("options", [start_options, stop_options])
@each_case("time", [NOW, NOW.astimezone(timezone(timedelta(hours=14))), datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_time_that_has_passed_is_not(options: Any, time: datetime) -> None:
    assert f"{round(time.timestamp() * 1000)}" in options(time, ["orders"], None).values()


# -- offsets ---------------------------------------------------------------------------


@each_case("options", [start_options, stop_options])
@each_case("offsets", [{0: -1}, {-1: 0}, {0: -2}, {0: "1"}, {"0": 1}, {0: 1.5}, {0: True}, {0: None}, {}])
def test_what_is_no_offset_is_refused(options: Any, offsets: Any) -> None:
    with pytest.raises(KafkaStreamError, match="cannot (start|stop) at"):
        options(offsets, ["orders"], None)


@each_case("options", [start_options, stop_options])
@each_case("topics", [["a", "b"], re.compile("a"), re.compile("a|b")])
def test_offsets_are_those_of_one_topic(options: Any, topics: Any) -> None:
    names, connector = topic_options(topics)
    with pytest.raises(KafkaStreamError, match="one topic"):
        # As kafka_source passes them: a pattern may match any number.
        options({0: 1}, names if "topic" in connector else [], None)


@each_case(
    ("start", "stop", "text"),
    [
        ({0: 1, 1: 0}, None, None),
        ({0: 10, 1: 0}, None, None),
        ("earliest", {0: 1, 1: 0}, None),
        # The stream ends when they are there.
        ("earliest", {0: 1000, 1: 10}, None),
        ({0: 1}, None, "name each partition: start={0: ..., 1: ...}"),
        ({1: 0}, {0: 1, 1: 0}, "cannot start"),
        ({0: 1, 1: 0}, {0: 1}, "name each partition: stop={0: ..., 1: ...}"),
        ({0: 1, 1: 0, 2: 0}, None, "an offset for each partition: 0, 1"),
        ({0: 11, 1: 0}, None, "0: 11; the ends are {0: 10, 1: 0}"),
        ({0: 1, 1: 1}, None, "1: 1; the ends are"),
    ],
)
def test_each_partition_has_an_offset(consumer: Any, start: Any, stop: Any, text: str | None) -> None:
    assert needs_brokers(start, stop)
    if text is None:
        check_positions("orders", start, stop, None, SERVERS, {})
        return
    with pytest.raises(KafkaStreamError, match=re.escape(text)):
        check_positions(["orders"], start, stop, None, SERVERS, {})


@each_case(
    ("topics", "group", "missing"),
    [
        ("orders", {("orders", 0): 1, ("orders", 1): 0}, None),
        ("orders", {("orders", 0): 1}, "none for orders/1"),
        ("orders", {}, "none for orders/0, orders/1"),
        (["orders", "orders-eu"], {("orders", 0): 1, ("orders", 1): 0}, "none for orders-eu/0"),
        (re.compile("orders-.*"), {("orders-eu", 0): 0}, None),
        (re.compile("orders.*"), {("orders-eu", 0): 0}, "none for orders/0, orders/1"),
        ("nowhere", {}, None),
    ],
)
def test_a_group_has_committed_where_the_source_ends(
    consumer: Any, topics: Any, group: Any, missing: str | None
) -> None:
    consumer.group = group
    if missing is None:
        check_positions(topics, "earliest", "committed", "mine", SERVERS, {})
        return
    with pytest.raises(KafkaStreamError, match=missing):
        check_positions(topics, "earliest", "committed", "mine", SERVERS, {})


def test_other_positions_ask_no_broker() -> None:
    for start in ("earliest", "latest", "committed", NOW):
        for stop in (None, "latest", NOW):
            assert not needs_brokers(start, stop)  # type: ignore[arg-type]


def test_brokers_that_cannot_be_asked_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver may not reach the brokers that the workers reach, or not have their login."""

    def fail(**_: Any) -> Any:
        raise KafkaStreamError("away", found="nobody")

    monkeypatch.setattr(positions, "create_consumer", fail)
    check_positions("orders", {0: 1}, None, None, SERVERS, {})
    assert "nobody" in caplog.text
    check_positions("orders", {0: 1}, None, None, SERVERS, {"sasl.mechanism": "GSSAPI"})


# -- partitions and topics ---------------------------------------------------------------


@each_case(
    ("text", "interval"),
    [("1000", "1000 ms"), ("0", "0 ms"), ("-1", "0 ms"), (" 7 ", "7 ms"), ("300000", "300000 ms")],
)
def test_the_property_of_discovery_is_honoured(text: str, interval: str) -> None:
    options = discovery_options({"partition.discovery.interval.ms": text, "linger.ms": "5"})
    assert options == {"scan.topic-partition-discovery.interval": interval}


def test_without_it_flink_has_its_default() -> None:
    assert discovery_options({"linger.ms": "5"}) == {}


@each_case("text", ["", "5 min", "1.5", "never"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(KafkaStreamError, match="the default is 5 minutes"):
        discovery_options({"partition.discovery.interval.ms": text})


@each_case("topics", ["", [], [""], [1], re.compile(b"orders"), re.compile("")])
def test_what_are_no_topics_is_refused(topics: Any) -> None:
    with pytest.raises(KafkaStreamError, match="needs topics"):
        topic_options(topics)
