"""Keys and values of records: what is read as which type, what is written, and what headers say."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.lineage import OutputLineage, TracedOutput, message_id_of
from flink_agents.connectors.kafka import KafkaDeadLetter, KafkaHeaders, KafkaRecord
from flink_agents.connectors.kafka.headers import read_lineage, without_letter
from flink_agents.connectors.kafka.headers.packed import INTERCEPTOR, pack_headers, unpack_headers
from flink_agents.connectors.kafka.sink import TimestampLimits, WriteRecords, as_record
from flink_agents.connectors.kafka.tables import BrokerConnection
from flink_agents.connectors.kafka.values import ValueReader, write_value
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case


class Order(BaseModel):
    customer: str
    amount: float


@dataclass
class Point:
    x: int
    at: datetime | None = None


VALUES: list[tuple[Any, Any, bytes]] = [
    (Order, Order(customer="Ada", amount=2.5), b'{"customer":"Ada","amount":2.5}'),
    (Point, Point(3, datetime(2026, 1, 2, tzinfo=UTC)), b'{"x":3,"at":"2026-01-02T00:00:00Z"}'),
    (dict, {"a": [1, None, "\u00e9"]}, '{"a":[1,null,"\u00e9"]}'.encode()),
    (list[Order], [Order(customer="A", amount=1)], b'[{"customer":"A","amount":1.0}]'),
    (str, "caf\u00e9 {", "caf\u00e9 {".encode()),
    (bytes, b"\x00\xff", b"\x00\xff"),
    (int, 7, b"7"),
    (Any, {"a": 1}, b'{"a":1}'),
    (str | None, "text", b"text"),
]


@pytest.mark.parametrize(("kind", "value", "raw"), VALUES)
def test_a_value_is_read_as_it_was_written(kind: Any, value: Any, raw: bytes) -> None:
    assert write_value(value, "value") == raw
    reader = ValueReader(kind, "value")
    reader.check()
    assert reader(raw) == value
    assert pickle.loads(pickle.dumps(reader))(raw) == value


@pytest.mark.parametrize("kind", [Order | None, dict | None, str | None, bytes | None, Any, None])
def test_a_type_with_none_takes_records_without_value(kind: Any) -> None:
    assert ValueReader(kind, "value")(None) is None
    assert write_value(None, "value") is None


@pytest.mark.parametrize("kind", [Order, dict, str, bytes, int])
def test_a_missing_value_is_an_error_for_other_types(kind: Any) -> None:
    with pytest.raises(KafkaValueError, match=r"missing \(null\)") as caught:
        ValueReader(kind, "key")(None)
    assert "declare key=... | None" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "raw", "found"),
    [
        (Order, b"{", "Invalid JSON"),
        (Order, b"", "Invalid JSON"),
        (Order, b'{"customer": "Ada"}', "Field required"),
        (Order | None, b'{"amount": 1}', "Field required"),
        (Point, b'{"x": "three"}', "valid integer"),
        (dict, b"[1]", "should be an object"),
        (dict, b"\xff", "Invalid JSON"),
        (str, b"\xff", "not UTF-8"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_why(kind: Any, raw: bytes, found: str) -> None:
    with pytest.raises(KafkaValueError, match=found):
        ValueReader(kind, "value")(raw)


def test_an_error_does_not_repeat_a_large_value() -> None:
    with pytest.raises(KafkaValueError) as caught:
        ValueReader(list[int], "value")(write_value(["x"] * 10_000, "value"))
    assert len(str(caught.value)) < 3000


def test_a_type_that_pydantic_does_not_know_is_refused_at_once() -> None:
    with pytest.raises(KafkaStreamError, match="cannot be read as"):
        ValueReader(type("Unknown", (), {}), "value").check()


def test_a_value_that_is_no_json_cannot_be_written() -> None:
    with pytest.raises(KafkaValueError, match="cannot be written as JSON") as caught:
        write_value(object(), "value")
    assert "object" in str(caught.value)


# -- records and headers --------------------------------------------------------------------

LINEAGE = OutputLineage("run1-0", "run1", "pricing", '"ada"', 4, "orders/0/17")


def test_a_plain_value_has_no_key_unless_somebody_gives_it() -> None:
    order = Order(customer="Ada", amount=1)
    assert as_record(order) == KafkaRecord(order)
    assert as_record(order, lambda value: value.customer).key == "Ada"


def test_a_record_keeps_its_key_headers_and_timestamp() -> None:
    record = KafkaRecord("v", key="k", headers={"a": b"\x00"}, timestamp=5, topic="other", offset=3)
    assert as_record(record) == KafkaRecord("v", "k", {"a": b"\x00"}, 5)
    assert as_record(record, lambda value: value + "!").key == "v!"


def test_the_lineage_of_an_output_is_read_from_the_headers_again() -> None:
    written = as_record(TracedOutput(KafkaRecord("v", headers={"own": b"1"}), LINEAGE))
    assert written.headers["own"] == b"1"
    assert written.headers["flink-agents-parent"] == b"orders/0/17"
    read = KafkaRecord("v", None, written.headers, 0, "prices", 1, 2)
    assert read.lineage == LINEAGE
    assert read.message_id == message_id_of(read) == "run1-0"


def test_the_headers_of_the_input_do_not_speak_for_the_output() -> None:
    """An agent that puts out the record which it got has its own lineage."""
    got = KafkaRecord("v", headers=as_record(TracedOutput("v", LINEAGE)).headers)
    for parent in (got.message_id, None):
        lineage = OutputLineage("run2-0", "run2", "billing", '"ada"', 0, parent)
        assert read_lineage(as_record(TracedOutput(got, lineage)).headers) == lineage
    assert as_record(got).headers == got.headers  # who hands a message on says so


def test_a_message_that_no_agent_wrote_is_known_by_its_place() -> None:
    assert KafkaRecord("v", topic="orders", partition=0, offset=17).message_id == "orders/0/17"
    assert KafkaRecord("v").message_id is None
    assert read_lineage({"flink-agents-id": b"x", "flink-agents-sequence": b"no"}) is None


def test_a_dead_letter_is_written_as_it_was_with_the_reason() -> None:
    raw: KafkaRecord[bytes | None] = KafkaRecord(b"{", b"\xff", {"own": b"1"}, 5, "orders", 0, 17)
    written = as_record(KafkaDeadLetter(raw, "ValidationError", "no JSON"))
    assert (written.value, written.key, written.timestamp) == (b"{", b"\xff", 5)
    assert written.headers == {
        "own": b"1",
        "flink-agents-error": b"no JSON",
        "flink-agents-error-type": b"ValidationError",
        "flink-agents-origin": b"orders/0/17",
    }


def test_a_header_is_text_or_bytes() -> None:
    text: Any = {"a": "t"}
    wrong: Any = {"a": 1}
    assert as_record(KafkaRecord("v", headers=text)).headers == {"a": b"t"}
    with pytest.raises(KafkaValueError, match="header 'a'"):
        as_record(KafkaRecord("v", headers=wrong))


def agent_letter(record: Any) -> DeadLetter:
    return DeadLetter(
        agent="clerk",
        action="book",
        key="ada",
        sequence_number=1,
        timestamp=None,
        event=None,
        event_type="Booked",
        error_type="ValueError",
        error_message="bad",
        where="here",
        traceback="",
        run_input=record,
    )


def customer_of(order: Order) -> str:
    return order.customer


DELETION: KafkaRecord[Any] = KafkaRecord(None, key="ada", headers={"a": b"1"})
DEAD_DELETION = KafkaDeadLetter(
    KafkaRecord(None, b"ada", KafkaHeaders(), 5, "orders", 0, 17), "ValueError", "bad"
)


@each_case(
    ("value", "key_of", "key"),
    [
        (DELETION, customer_of, "ada"),
        (DELETION, None, "ada"),
        (DELETION, lambda value: "other", "ada"),
        (KafkaRecord(None, key=""), customer_of, ""),
        (KafkaRecord(None, key=0), customer_of, 0),
        (KafkaRecord(None, key=b"\xff"), customer_of, b"\xff"),
        (TracedOutput(DELETION, OutputLineage("i", "r", "a", "sk", 0)), customer_of, "ada"),
        (DEAD_DELETION, customer_of, b"ada"),
        (agent_letter(DELETION), customer_of, "ada"),
        # Without a key of its own, key= decides.
        (None, lambda value: "none", "none"),
        (KafkaRecord(None), lambda value: "none", "none"),
        (None, None, None),
        # A value has the key that key= returns.
        (KafkaRecord(Order(customer="ada", amount=1), key="other"), customer_of, "ada"),
        (Order(customer="ada", amount=1), customer_of, "ada"),
    ],
)
def test_a_deletion_passes_a_sink_with_its_own_key(value: Any, key_of: Any, key: Any) -> None:
    record = as_record(value, key_of)
    assert (record.key, type(record.key)) == (key, type(key))
    assert (record.value is None) == (not isinstance(record.value, Order))


@each_case("value", [None, KafkaRecord(None), TracedOutput(None, OutputLineage("i", "r", "a", "sk", 0))])
def test_a_deletion_without_a_key_says_how_to_give_it_one(value: Any) -> None:
    with pytest.raises(KafkaValueError, match=r"KafkaRecord\(None, key=") as raised:
        as_record(value, customer_of)
    assert isinstance(raised.value.__cause__, AttributeError)


def test_what_key_raises_for_a_value_is_the_authors() -> None:
    with pytest.raises(AttributeError):
        as_record(7, customer_of)


ODD_HEADERS: dict[str, tuple[tuple[str, bytes | None], ...]] = {
    "none": (),
    "plain": (("a", b"1"), ("b", b"2")),
    "no value": (("a", None),),
    "empty value": (("a", b""),),
    "empty name": (("", b"1"), ("", None)),
    "repeated": (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")),
    "order": (("z", b"1"), ("a", b"2"), ("m", b"3")),
    "not UTF-8": (("a", b"\xff\x00"),),
    "name": (("caf\u00e9 \U0001f600", b"1"),),
    "large": (("a", b"x" * 100_000), ("b", b"")),
    "of an agent": (("flink-agents-own", b"1"), ("flink-agents-own", b"2")),
}


@each_case("name", ODD_HEADERS)
def test_headers_stay_as_they_were_on_every_way(name: str) -> None:
    pairs = ODD_HEADERS[name]
    headers = KafkaHeaders(pairs)
    assert unpack_headers(pack_headers(pairs)) == pairs
    assert pickle.loads(pickle.dumps(headers)) == headers
    codec = ValueCodec()
    assert codec.decode(codec.encode(headers)).pairs == pairs
    record: KafkaRecord[Any] = KafkaRecord(b"v", b"k", headers, 5, "orders", 0, 17)
    assert codec.decode(codec.encode(record)) == record
    for value in (record, KafkaRecord(b"v", headers=list(pairs))):  # pyright: ignore[reportArgumentType]
        assert KafkaHeaders.of(as_record(value).headers).pairs == pairs
    for letter in (KafkaDeadLetter(record, "ValueError", "bad"), agent_letter(record)):
        written = KafkaHeaders.of(as_record(letter).headers)
        assert written.pairs[: len(pairs)] == pairs
        read = KafkaHeaders(unpack_headers(pack_headers(written.pairs)))
        assert without_letter(read).without(["flink-agents-redrive"]).pairs == pairs
    own_pairs = [pair for pair in pairs if not pair[0].startswith("flink-agents-")]
    traced = KafkaHeaders.of(as_record(TracedOutput(record, LINEAGE)).headers)
    assert list(traced.pairs[: len(own_pairs)]) == own_pairs


def test_headers_are_a_mapping_with_the_last_value_of_a_name() -> None:
    headers = KafkaHeaders((("a", b"1"), ("b", None), ("a", b"2")))
    assert headers == {"a": b"2", "b": None}
    assert {"a": b"2", "b": None} == headers
    assert headers != KafkaHeaders((("a", b"2"), ("b", None)))
    assert (list(headers), len(headers), headers["a"], headers.get("c")) == (["a", "b"], 2, b"2", None)
    assert headers.all("a") == [b"1", b"2"]
    assert (headers | {"b": b"3"}).pairs == (("a", b"1"), ("a", b"2"), ("b", b"3"))
    assert ({"a": b"0", "c": b"4"} | headers).pairs == (("c", b"4"), *headers.pairs)
    with pytest.raises(KeyError):
        headers["c"]


@each_case(
    ("own", "reads", "order"),
    [
        (None, True, INTERCEPTOR),
        (None, False, INTERCEPTOR),
        ("mine.One", True, f"mine.One,{INTERCEPTOR}"),
        ("mine.One", False, f"{INTERCEPTOR},mine.One"),
    ],
)
def test_interceptors_of_the_author_see_headers_as_they_are(own: str | None, reads: bool, order: str) -> None:
    properties = {} if own is None else {"interceptor.classes": own}
    connection = BrokerConnection({"bootstrap_servers": "localhost:9092"}, properties)
    assert connection.options(reads=reads)["properties.interceptor.classes"] == order


# -- timestamps -----------------------------------------------------------------------------

NOW = 1_800_000_000_000
HOUR = 3_600_000


@each_case(
    ("timestamp", "max_ahead", "max_behind", "written"),
    [
        (NOW, timedelta(minutes=59), None, NOW),
        (NOW + HOUR // 2, timedelta(minutes=59), None, NOW + HOUR // 2),
        (NOW + HOUR, timedelta(minutes=59), None, None),
        (NOW + 48 * HOUR, timedelta(minutes=59), None, None),
        (NOW + 48 * HOUR, None, None, NOW + 48 * HOUR),
        (NOW + 48 * HOUR, timedelta(days=3), None, NOW + 48 * HOUR),
        (2**63 - 1, timedelta(minutes=59), None, None),
        (0, timedelta(minutes=59), None, 0),
        (0, timedelta(minutes=59), timedelta(days=7), None),
        (NOW - HOUR, None, timedelta(minutes=59), None),
        (NOW - HOUR, None, timedelta(hours=1), NOW - HOUR),
        (NOW + 1, timedelta(), None, None),
    ],
)
def test_a_timestamp_that_brokers_reject_becomes_the_present_time(
    timestamp: int, max_ahead: timedelta | None, max_behind: timedelta | None, written: int | None
) -> None:
    """By the timestamp of the record, and by that of the stream."""
    for value, at in ((KafkaRecord("v", timestamp=timestamp), None), ("v", timestamp)):
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flink_agents.connectors.kafka.sink.time.time", lambda: NOW / 1000)
            patch.setattr("flink_agents.connectors.kafka.sink._log.warning", recorded(lines))
            limits = TimestampLimits("orders", "my sink", max_ahead, max_behind)
            (row,) = WriteRecords(None, limits).process_element(value, Stamped(at))
        assert (row[1], row[3]) == (b"v", written)
        if written is None:
            assert unpack_headers(row[2]) == (("flink-agents-timestamp", str(timestamp).encode()),)
            (line,) = lines
            assert all(part in line for part in ("'my sink'", "'orders'", str(timestamp), "'v'"))
        else:
            assert (row[2], lines) == ({}, [])


@each_case("timestamp", [None, -1, -(2**63)])
def test_a_record_without_a_timestamp_is_written_as_of_now(timestamp: int | None) -> None:
    limits = TimestampLimits("orders", "sink", timedelta(minutes=59), timedelta(days=1))
    (row,) = WriteRecords(None, limits).process_element("v", Stamped(timestamp))
    assert (row[2], row[3]) == ({}, None)


def test_many_timestamps_that_brokers_reject_make_few_lines() -> None:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flink_agents.connectors.kafka.sink._log.warning", recorded(lines))
        write = WriteRecords(None, TimestampLimits("orders", "sink", timedelta(), None))
        for _ in range(1000):
            assert list(write.process_element("v", Stamped(2**62)))
    assert len(lines) == 10


class Stamped:
    """The context of a record."""

    def __init__(self, timestamp: int | None) -> None:
        self._timestamp = timestamp

    def timestamp(self) -> int | None:
        return self._timestamp


def recorded(lines: list[str]) -> Any:
    return lambda text, *arguments: lines.append(text % arguments)
