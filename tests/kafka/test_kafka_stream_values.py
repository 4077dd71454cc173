"""Keys and values of records: what is read as which type, what is written, and what headers say."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.lineage import OutputLineage, TracedOutput, message_id_of
from flink_agents.connectors.kafka import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.headers import read_lineage
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.connectors.kafka.values import ValueReader, write_value


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
    assert as_record(order, lambda one: one.customer).key == "Ada"


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
        own = OutputLineage("run2-0", "run2", "billing", '"ada"', 0, parent)
        assert read_lineage(as_record(TracedOutput(got, own)).headers) == own
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
