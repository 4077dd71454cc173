"""Messages between jobs as lines of JSON: what is written is read again, with its lineage."""

from __future__ import annotations

import dataclasses
import json
import pickle
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import EnvelopeError
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.api.tables import TableChange
from flink_agents.connectors.envelopes import EnvelopeReader, Message, write_envelope
from flink_agents.connectors.kafka.records import KafkaRecord
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


class Price(BaseModel):
    item: str
    amount: float
    at: datetime | None = None


@dataclass
class Pair:
    left: int
    right: str


LINEAGE = OutputLineage("r-0", "r", "Pricing", "sada", 3, "orders/0/7")


@each_case(
    ("kind", "value"),
    [
        (Price, Price(item="tea \N{GRINNING FACE}", amount=2.5, at=datetime(2024, 2, 29, 1, 2, 3))),
        (Pair, Pair(1, "x\ny")),
        (dict[str, Any], {"a": [1, None, "b"]}),
        (str, "text"),
        (int | None, None),
    ],
)
def test_a_value_is_read_as_it_was_written(kind: Any, value: Any) -> None:
    line = write_envelope(TracedOutput(value, LINEAGE))
    assert "\n" not in line
    read = pickle.loads(pickle.dumps(EnvelopeReader(kind)))(line)
    assert (read.value, read.lineage, read.message_id) == (value, LINEAGE, "r-0")
    assert EnvelopeReader(kind)(write_envelope(value)) == Message(value, None)


class Passes(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=Price(item=event.input.value.item, amount=1))


def test_the_way_of_an_output_is_followed_over_jobs() -> None:
    read = EnvelopeReader(Price)
    lines = [write_envelope(Price(item="tea", amount=1))]
    ids: list[Any] = []
    for job in ("first", "second", "third"):
        with OperatorHarness(Passes, name=job, lineage=True, job_id=job) as harness:
            lines = [write_envelope(output) for output in harness.push_all([read(line) for line in lines])]
        ids.append(read(lines[0]).lineage)
    assert [lineage.agent for lineage in ids] == ["first", "second", "third"]
    assert [lineage.parent for lineage in ids] == [None, ids[0].id, ids[1].id]


@each_case(
    ("line", "found"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (json.dumps({"version": 2, "lineage": None, "value": {}}), "version 2"),
        (json.dumps({"version": 1, "lineage": None, "value": {"item": "tea"}}), "amount"),
        (
            json.dumps({"version": 1, "lineage": {"id": 1}, "value": {"item": "tea", "amount": 1}}),
            "TypeError",
        ),
    ],
)
def test_what_is_no_envelope_is_named(line: str, found: str) -> None:
    with pytest.raises(EnvelopeError, match="not an envelope") as error:
        EnvelopeReader(Price)(line)
    assert found in str(error.value)


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(EnvelopeError, match="cannot be written"):
        write_envelope(object())


@each_case("record", [TableChange, KafkaRecord, Message])
def test_a_generic_record_is_made_with_its_type(record: Any) -> None:
    """Python 3.11 cannot set the type of a frozen object with slots."""
    values = {field.name: None for field in dataclasses.fields(record)}
    assert record[int](**values) == record(**values)
