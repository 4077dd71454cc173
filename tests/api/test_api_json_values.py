"""What leaves a job as JSON: numbers that JSON lacks, and half of an emoji."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf, isnan, nan
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr, TypeAdapter, computed_field, field_serializer

from flink_agents import DeadLetter, InputEvent
from flink_agents.api.errors import EnvelopeError, KafkaValueError
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.connectors.envelopes import EnvelopeReader, write_envelope
from flink_agents.connectors.kafka.headers import letter_headers, lineage_headers
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.connectors.kafka.values import ValueReader, write_value
from flink_agents.trace.answers import answer_line
from flink_agents.trace.records import TraceRecord
from tests.suite.tables import each_case

untyped: Any = Any
HALF = "half \ud83d"
SENT = "half \ufffd"


class Reading(BaseModel):
    level: float
    several: dict[str, float] = {}
    either: float | None = None
    secret: float = Field(default=0.0, exclude=True)


class Loose(BaseModel):
    anything: dict[str, Any]


class Open(BaseModel):
    model_config = {"extra": "allow"}


class Odd(Enum):
    HALF = HALF


class Derived(BaseModel):
    @computed_field
    @property
    def text(self) -> str:
        return HALF


class Strict(BaseModel, strict=True):
    level: float
    several: list[float | None] = []
    by_name: dict[str, float] = {}


class Either(BaseModel):
    level: float | str


class Login(BaseModel):
    password: SecretStr
    hidden: SecretStr = Field(default=SecretStr("b"), exclude=True)


class Shown(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def _show(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Shade(str, Enum):  # noqa: UP042 - a string of another class
    DARK = "dark"


@dataclass
class Plain:
    level: float
    texts: list[str] = field(default_factory=list)


NUMBERS: list[tuple[Any, Any, Any]] = [
    (Reading(level=nan), Reading, {"level": "NaN", "several": {}, "either": None}),
    (
        Reading(level=1, several={"a": -inf}),
        Reading,
        {"level": 1.0, "several": {"a": "-Infinity"}, "either": None},
    ),
    (Reading(level=1, either=inf), Reading, {"level": 1.0, "several": {}, "either": "Infinity"}),
    (Reading(level=1, secret=nan), Reading, {"level": 1.0, "several": {}, "either": None}),
    (Plain(nan), Plain, {"level": "NaN", "texts": []}),
    ({"a": [nan, None, 1.5]}, dict[str, list[float | None]], {"a": ["NaN", None, 1.5]}),
    ([Reading(level=inf)], list[Reading], [{"level": "Infinity", "several": {}, "either": None}]),
    (deque([nan]), deque[float], ["NaN"]),
    (nan, float, "NaN"),
    (Strict(level=nan), Strict, {"level": "NaN", "several": [], "by_name": {}}),
    (Strict(level=1, several=[inf, None]), Strict, {"level": 1, "several": ["Infinity", None], "by_name": {}}),  # noqa: E501
    (Strict(level=1, by_name={"a": -inf}), Strict, {"level": 1, "several": [], "by_name": {"a": "-Infinity"}}),  # noqa: E501
    ([Strict(level=nan)], list[Strict], [{"level": "NaN", "several": [], "by_name": {}}]),
    ((1, nan), tuple[int, float], [1, "NaN"]),
    (deque([inf]), deque[float], ["Infinity"]),
    ({1: {2: nan}}, dict[int, dict[int, float]], {"1": {"2": "NaN"}}),
    ({"a": None, "b": "NaN"}, dict[str, str | None], {"a": None, "b": "NaN"}),
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    return str(one) == str(other)


@each_case(("value", "kind", "written"), NUMBERS)
def test_a_number_that_json_lacks_is_read_back(value: Any, kind: Any, written: Any) -> None:
    data = write_value(value, "value")
    assert data is not None and json.loads(data) == written
    expected = value
    assert b"NaN," not in data.replace(b'"NaN"', b"")
    if isinstance(value, Reading):
        expected = value.model_copy(update={"secret": 0.0})
    assert same(ValueReader(kind, "value")(data), expected)
    envelope = write_envelope(value)
    assert json.loads(envelope)["value"] == written
    assert same(EnvelopeReader(kind)(envelope).value, expected)


@each_case("value", [Loose(anything={"a": nan}), [Loose(anything={"a": [inf]})]])
def test_a_number_that_would_become_null_is_refused(value: Any) -> None:
    with pytest.raises(KafkaValueError, match=r"would become null"):
        write_value(value, "value")
    with pytest.raises(EnvelopeError, match=r"would become null"):
        write_envelope(value)


@each_case("value", [Either(level=nan), [Either(level=inf)], {"a": [Either(level=nan)]}])
def test_a_number_that_would_be_read_as_a_string_is_refused(value: Any) -> None:
    with pytest.raises(KafkaValueError, match=r"would be read as a string"):
        write_value(value, "value")
    with pytest.raises(EnvelopeError, match=r"would be read as a string"):
        write_envelope(value)


@each_case(
    "value", [SecretStr("a"), SecretBytes(b"a"), Login(password=SecretStr("a")), [{"a": SecretStr("a")}]]
)
def test_a_secret_that_would_become_asterisks_is_refused(value: Any) -> None:
    with pytest.raises(KafkaValueError, match=r"a secret would be written as asterisks"):
        write_value(value, "value")
    with pytest.raises(EnvelopeError, match=r"a secret would be written as asterisks"):
        write_envelope(value)


@each_case(
    ("value", "kind"),
    [
        (Shown(password=SecretStr("a")), Shown),
        ({"a": "**********"}, dict[str, str]),
        (Login(password=SecretStr("")), Login),
    ],
)
def test_what_only_looks_like_a_secret_is_written(value: Any, kind: Any) -> None:
    data = write_value(value, "value")
    assert ValueReader(kind, "value")(data) == value


TEXTS: list[tuple[Any, Any]] = [
    (Shade.DARK, Shade),
    ("a", Literal["a", "b"]),
    ("3", Literal["3"]),
    (3, Literal["a", 3]),
    (Shade.DARK, Shade | None),
]


@each_case(("value", "kind"), TEXTS)
def test_a_string_of_another_type_is_read_back(value: Any, kind: Any) -> None:
    read = ValueReader(kind, "value")
    assert same(read(write_value(value, "value")), value)
    assert same(read(json.dumps(value).encode()), value)
    with pytest.raises(KafkaValueError):
        read(b"neither")


def test_a_dead_letter_is_written_with_the_numbers_of_its_input() -> None:
    value = Strict(level=nan, several=[inf])
    letter = DeadLetter(
        agent="a", action=None, key=1, sequence_number=0, timestamp=None, event=InputEvent(input=value),
        event_type="_input_event", error_type="E", error_message="NaN", where="", traceback="",
    )  # fmt: skip
    record = as_record(letter)
    data = write_value(record.value, "value")
    assert same(ValueReader(Strict, "value")(data), value)


@each_case(
    ("value", "sent"),
    [
        (HALF, SENT),
        ({HALF: [HALF, {"a": (HALF,)}]}, {SENT: [SENT, {"a": [SENT]}]}),
        (Plain(1.0, [HALF]), {"level": 1.0, "texts": [SENT]}),
        (Loose(anything={HALF: HALF}), {"anything": {SENT: SENT}}),
        ("\ud83d\ude00", "\U0001f600"),
        ({"a": {HALF}}, {"a": [SENT]}),
        (OrderedDict({HALF: HALF}), {SENT: SENT}),
        (defaultdict(list, {"a": [HALF]}), {"a": [SENT]}),
        (Counter([HALF]), {SENT: 1}),
        (deque([HALF]), [SENT]),
        (Open.model_validate({"a": {"b": HALF}}), {"a": {"b": SENT}}),
        ([Odd.HALF], [SENT]),
        (Derived(), {"text": SENT}),
    ],
)
def test_half_an_emoji_is_sent_as_the_replacement_character(value: Any, sent: Any) -> None:
    data = write_value(value, "value")
    assert data is not None
    assert (data.decode() if isinstance(value, str) else json.loads(data)) == sent
    envelope = write_envelope(value)
    assert TypeAdapter(Any).validate_json(envelope)["value"] == sent
    assert EnvelopeReader(untyped)(envelope).value == sent


def test_headers_and_origins_are_utf_8() -> None:
    lineage = OutputLineage(HALF, HALF, HALF, HALF, 1, None, None)
    headers = {**lineage_headers(lineage), **letter_headers(HALF, HALF, HALF)}
    assert {SENT, "1"} >= {content.decode() for content in headers.values()}
    line = write_envelope(TracedOutput(1, lineage))
    assert EnvelopeReader(int)(line).lineage == OutputLineage(SENT, SENT, SENT, SENT, 1, None, None)


def test_a_trace_has_no_number_that_json_lacks() -> None:
    record = TraceRecord(
        "run", "a", "ok", "j", "a", 0, 0, "k", 1, "r" * 24, "s" * 16, None, 1.5, attributes={"a": [nan, inf]}
    )

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    half = replace(record, name=HALF)
    for line in (record.to_bytes(), record.to_json(), half.to_bytes(), half.to_json()):
        assert json.loads(line, parse_constant=refuse)["attributes"] == {"a": ["NaN", "Infinity"]}
        assert TraceRecord.from_json(line).attributes == {"a": ["NaN", "Infinity"]}
    answer = answer_line({"memory": {"a": nan, "b": [-inf]}}, 1000)
    assert json.loads(answer, parse_constant=refuse) == {"memory": {"a": "NaN", "b": ["-Infinity"]}}


@each_case(
    "value",
    ["text", "é", 3, None, ["a", ("b",)], {"a": {"b": 1}}, Plain(nan, ["a"]), Loose(anything={"a": 1})],
)
def test_a_value_without_halves_is_the_same_object(value: Any) -> None:
    assert sendable(value) is value


def test_an_object_that_many_refer_to_is_searched_once() -> None:
    pair: list[Any] = [HALF]
    for _ in range(50):
        pair = [pair, pair]
    sent = sendable(pair)
    for _ in range(50):
        assert sent[0] is sent[1]
        sent = sent[0]
    assert sent == [SENT]


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = [HALF]
    value += [value, value]
    with pytest.raises(KafkaValueError, match="Circular reference"):
        write_value(value, "value")
    with pytest.raises(EnvelopeError, match="Circular reference"):
        write_envelope(value)


def test_not_a_number_is_read_as_one() -> None:
    data = write_value(Reading(level=nan), "value")
    assert data is not None and isnan(ValueReader(Reading, "value")(data).level)
