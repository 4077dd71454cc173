"""A signal reaches the key that it was sent to, whatever its type and sender; or the sender gets an error."""

from __future__ import annotations

import json
import math
import pickle
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any

import pytest
import typer
from pydantic import AfterValidator, BaseModel

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, Signal, action
from flink_agents.api.errors import AgentsError, KafkaValueError, KeyEncodingError
from flink_agents.api.events.approvals import ApprovalRequest
from flink_agents.api.events.key_requests import end_request, for_key_text
from flink_agents.cli.kafka import approvals
from flink_agents.cli.keys import shown_key
from flink_agents.connectors.kafka import KafkaApprovals, KafkaRecord
from flink_agents.connectors.kafka.requests.desk import SignalReader, message_key, signal_json
from flink_agents.connectors.kafka.requests.signal_keys import KeyReader, entered_key, text_to_enter
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.connectors.kafka.values import ValueReader, write_value
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing import OperatorHarness
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.consoles import console


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "small"


class Rank(IntEnum):
    FIRST = 1


@dataclass(frozen=True)
class Place:
    city: str
    number: uuid.UUID


class Account(BaseModel, frozen=True):
    bank: str
    opened: date


ID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
KEYS: list[Any] = [
    "r-17",
    "",
    "7",
    "true",
    "null",
    str(ID),
    "2026-11-22",
    "u",
    "x00",
    "é",
    "a\nb",
    "\ud800",
    '"',
    "{}",
]
KEYS += [f"u{ID}", "D2026-11-22", "NaN", "Infinity", "1.5", "[1]", '{"canonical": "n"}']
KEYS += [7, -1, 0, 10**30, 10**700, True, False, None, 1.5, 1.0, -0.0, 1e300, math.inf, -math.inf]
KEYS += [b"", b"\x00\xff", b"text", ID, date(2026, 11, 22), datetime(2026, 11, 22, 1, 2, 3)]
KEYS += [datetime(2026, 11, 22, 1, 2, 3, 4, tzinfo=UTC), Decimal("1.50"), Decimal(0), Decimal("Infinity")]
KEYS += [Colour.RED, Size.SMALL, Rank.FIRST, Place("Rome", ID), Account(bank="b", opened=date(2026, 1, 1))]
KEYS += [(), ("a", 1), ("a", ("b|", 2)), ("a", ID), (Colour.RED, (b"x",)), (None, True), ["a", 1]]


def read_by_job(record: bytes | None, modules: tuple[str, ...] = ()) -> Signal:
    """Return what the source of ``kafka_signals`` makes of a record, after its way to a worker."""
    kind = Annotated[Signal, AfterValidator(SignalReader(KeyReader(modules)))]
    return pickle.loads(pickle.dumps(ValueReader(kind, "value")))(record)


def text_of(key: Any) -> str:
    return encode_key(tuple(key) if isinstance(key, list) else key)


class Waits(Agent):
    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        paid = await ctx.wait_for_signal("paid")
        return OutputEvent(output=f"{event.input} {paid}")


def sent(key: Any) -> bytes:
    return signal_json(Signal("paid", 3, key))


def sent_by_a_sink(key: Any) -> bytes | None:
    record = as_record(Signal("paid", 3, key))
    assert record.key == message_key(Signal("paid", 3, key)), "signals of a key keep their order"
    return write_value(record.value, "value")


def sent_by_a_sink_as_record(key: Any) -> bytes | None:
    record = as_record(KafkaRecord(Signal("paid", 3, key), key="mine"), lambda signal: signal.name)
    assert record.key == "paid"
    return write_value(record.value, "value")


def sent_as_request(key: Any) -> bytes:
    return signal_json(for_key_text(end_request(None, "run"), text_of(key)))


def entered_from_console(key: Any) -> bytes:
    """The console fills its form with the key of a page."""
    return sent(entered_key(text_to_enter(text_of(key))))


SENDERS: dict[str, Callable[[Any], bytes | None]] = {
    "send": sent,
    "sink": sent_by_a_sink,
    "record": sent_by_a_sink_as_record,
    "request": sent_as_request,
    "console": entered_from_console,
}


@pytest.mark.own_conditions
@each_case("sender", SENDERS)
@each_case("key", KEYS)
def test_a_signal_has_the_key_that_it_was_sent_to(sender: str, key: Any) -> None:
    read = read_by_job(SENDERS[sender](key))
    assert text_of(read.key) == text_of(key)
    assert type(read.key) is type(tuple(key) if isinstance(key, list) else key)


@pytest.mark.own_conditions
@each_case("key", ["r-17", 7, True, 1.5, ("a", ("b", 2)), None])
def test_keys_of_json_are_written_as_json(key: Any) -> None:
    written = json.loads(sent(key))
    assert written.get("key") == json.loads(json.dumps(key))


@each_case("key", [key for key in KEYS if not isinstance(key, list)])
def test_a_run_of_the_key_goes_on(key: Any) -> None:
    with OperatorHarness(Waits, key_selector=lambda record: key) as harness:
        harness.push("order")
        signal = read_by_job(sent(key))
        assert harness.signal(signal.key, signal.name, signal.value) == ["order 3"]


# -- the command -----------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Any]:
    """Run the command ``signal`` for a key, and return the key of what it sent, or its error."""
    records: list[bytes] = []

    class Desk(KafkaApprovals):
        def send(self, signals: Any) -> None:
            records.extend(map(signal_json, signals))

    monkeypatch.setattr(approvals, "_open_desk", lambda *_, **__: Desk())

    def run(key: str) -> Any:
        records.clear()
        try:
            approvals.signal("s", "paid", key)
        except typer.Exit as ended:
            assert (ended.exit_code, records) == (2, [])
            return Refused(capsys.readouterr().err)
        return read_by_job(records[0]).key

    return run


class Refused(str):
    """The error of a command."""

    __slots__ = ()


@pytest.mark.own_conditions
def test_the_command_takes_each_key_as_the_console_fills_it_in(command: Callable[[str], Any]) -> None:
    for key in KEYS:
        assert text_of(command(text_to_enter(text_of(key)))) == text_of(key)


@pytest.mark.own_conditions
def test_the_command_takes_each_key_as_other_commands_show_it_or_says_how_to_enter_it(
    command: Callable[[str], Any],
) -> None:
    for key in KEYS:
        text = shown_key(text_of(key))
        if text.startswith("{") and isinstance(key, str):
            # A string that looks like an object of JSON; it is entered in quotes.
            continue
        answer = command(text)
        if text == text_of(key) and type(key) is not str:
            assert json.dumps({"canonical": text})[1:-1] in answer.replace("\\\\", "\\"), key
        elif isinstance(answer, Refused):
            assert json.dumps(key) in answer
        else:
            assert text_of(answer) == text_of(key)


@pytest.mark.own_conditions
@each_case(
    ("text", "canonical"),
    [
        (str(ID), f"u{ID}"),
        (str(ID).upper(), f"u{ID}"),
        ("2026-11-22", "D2026-11-22"),
        ("2026-11-22 10:00", "L2026-11-22T10:00:00"),
        ("2026-11-22T10:00:00+01:00", "Z2026-11-22T09:00:00+00:00"),
        (f"u{ID}", f"u{ID}"),
        ("D2026-11-22", "D2026-11-22"),
        ("d15E-1", "d15E-1"),
        ("x00ff", "x00ff"),
        ("eshop:Colour:RED", "eshop:Colour:RED"),
        ("cshop.orders:Order:number:2:i7", "cshop.orders:Order:number:2:i7"),
    ],
)
def test_a_text_of_two_readings_is_refused_with_both(text: str, canonical: str) -> None:
    with pytest.raises(KafkaValueError, match="may be a string") as raised:
        entered_key(text)
    assert f'"{text}"' in str(raised.value)
    assert json.dumps({"canonical": canonical}) in str(raised.value)
    assert entered_key(f'"{text}"') == text
    assert entered_key(json.dumps({"canonical": canonical})) == {"canonical": canonical}


@pytest.mark.own_conditions
@each_case(
    "text",
    ["r-17", "order 7", "u12", "deadbeef", ID.hex, "D-day", "e:x", "x1", "c4", "n", "s1", "it's"],
)
def test_other_texts_are_strings(text: str) -> None:
    assert entered_key(text) == text


# -- the console -----------------------------------------------------------------------


def test_the_console_sends_to_the_key_or_shows_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[bytes] = []
    monkeypatch.setattr(
        KafkaApprovals, "send", lambda self, signals: records.extend(map(signal_json, signals))
    )
    with console(ConsoleSettings(signals="s")) as (browser, _, _):
        for key in KEYS:
            records.clear()
            form = {"name": "paid", "value": "3", "key": text_to_enter(text_of(key))}
            browser.submit("/signals/send", form, "/signals")
            assert [text_of(read_by_job(record).key) for record in records] == [text_of(key)], key
        records.clear()
        page = browser.submit("/signals/send", {"name": "paid", "value": "3", "key": str(ID)}, "/signals")
        assert (records, "may be a string" in page) == ([], True)


# -- errors ----------------------------------------------------------------------------


@pytest.mark.own_conditions
@each_case(
    "key",
    [
        math.nan,
        {"a": 1},
        {"canonical": 7},
        {"canonical": "q"},
        {"canonical": "i007"},
        {"canonical": ""},
        object(),
    ]
    + [{"canonical": "s7", "more": 1}, {1, 2}, Decimal("NaN"), ("a", {"b": 1})],
)
@each_case("sender", [sent, sent_by_a_sink])
def test_what_no_key_is_is_refused_where_it_is_sent(key: Any, sender: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyEncodingError):
        sender(key)


@pytest.mark.own_conditions
@each_case(
    "key",
    [
        '{"canonical": "i007"}',
        '{"canonical": "q"}',
        '{"canonical": "enowhere:Colour:RED"}',
        '{"canonical": 1}',
    ]
    + [
        '{"canonical": "t18:enowhere:Colour:RED"}',
        '{"canonical": "eos:path:RED"}',
        '{"canonical": "s1", "b": 1}',
    ],
)
def test_a_record_with_what_no_key_is_is_invalid(key: str) -> None:
    with pytest.raises(KafkaValueError, match="no run has the key"):
        read_by_job(f'{{"name": "paid", "key": {key}}}'.encode())


@pytest.mark.own_conditions
@each_case(
    "template",
    ['{"name": "a", "key": {"canonical": "%s"}}', '{"name": "a", "wait": "%s|0|pay||0"}'],
)
def test_a_class_that_no_worker_has_loaded_yet_is_imported_if_the_driver_had_it(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record may come before the agent's code, which would import it; nothing else is imported."""
    monkeypatch.delitem(sys.modules, "tests.kafka.late_keys", raising=False)
    record = (template % "etests.kafka.late_keys:Region:NORTH").encode()
    with pytest.raises(KafkaValueError):
        read_by_job(record, ("tests.kafka", "late_keys", "tests.kafka.late_key"))
    assert "tests.kafka.late_keys" not in sys.modules
    key = read_by_job(record, ("tests.kafka", "tests.kafka.late_keys")).key
    assert key is sys.modules["tests.kafka.late_keys"].Region.NORTH


@pytest.mark.own_conditions
def test_the_list_of_requests_shows_keys_as_a_signal_takes_them() -> None:
    for key, text in (("r-17", "'r-17'"), (7, "7"), (ID, f"u{ID}"), (Colour.RED, encode_key(Colour.RED))):
        request = ApprovalRequest(f"{encode_key(key)}|0|pay||0|1", "Pays", "pay", key, "pay")
        assert approvals._shown_key(request) == text  # pyright: ignore[reportPrivateUsage]


assert issubclass(KeyEncodingError, AgentsError), "commands and the console show it"
