"""What a replay gives back: values with their types, exceptions with type and message."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from durable_tools import (
    EFFECTS,
    SEEN,
    Money,
    Order,
    Point,
    calls_of,
    crash,
    crash_and_replay,
    effect,
    forget,
    journal,
    one_action,
)
from pydantic import ValidationError

from flink_agents import InputEvent, OutputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import (
    ActionFailedError,
    ActionTimeoutError,
    DurableResultError,
    RecordedFailureError,
    UnserializableValueError,
)
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.raised_texts import text_of
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


class Color(Enum):
    RED = "red"


VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**70),
    1.5,
    "ü\x00\ud800",
    b"\x00\xff",
    (1, "a", (2,)),
    [1, [2]],
    {1, 2, 3},
    frozenset({"a"}),
    {"a": 1, 2: "b", (1, 2): None},
    datetime(2024, 2, 29, 12, 0, 0, 5, UTC),
    date(2024, 1, 1),
    timedelta(days=1, microseconds=3),
    Decimal("1.10"),
    uuid.UUID(int=7),
    Color.RED,
    Order(number=3, lines=["x"]),
    Money(Decimal("2.50"), "EUR"),
    Point(1, 2),
    [Order(number=1), (Money(Decimal(1), "EUR"), {Color.RED})],
]


def make_value(number: int) -> Any:
    EFFECTS.append(number)
    return VALUES[number]


async def take_value(event: InputEvent, ctx: Any) -> None:
    SEEN.append(await ctx.durable_execute_async(make_value, event.input))


@pytest.mark.parametrize("number", range(len(VALUES)), ids=lambda number: type(VALUES[number]).__name__)
def test_a_replay_gives_an_equal_value_of_the_same_type(number: int) -> None:
    crash_and_replay(one_action(take_value), number)
    assert EFFECTS == [number]
    assert SEEN == [VALUES[number]] * 2
    assert {type(value) for value in SEEN} == {type(VALUES[number])}


class Other:
    """Nothing that can be recorded as it is."""

    def __init__(self, number: int) -> None:
        self.number = number


def make_dict(number: Any) -> Any:
    EFFECTS.append(number)
    return {"number": number, "lines": ("a",)}


async def take_order(event: InputEvent, ctx: Any) -> None:
    try:
        SEEN.append(await ctx.durable_execute_async(make_dict, event.input, result_type=Order))
    except DurableResultError as error:
        SEEN.append(("refused", error.expected, error.found))


def test_a_result_is_of_the_declared_type_the_first_time_as_well() -> None:
    crash_and_replay(one_action(take_order), 5)
    assert SEEN == [Order(number=5, lines=["a"])] * 2
    assert EFFECTS == [5]


def test_a_result_that_is_not_of_the_declared_type_is_refused_each_time() -> None:
    crash_and_replay(one_action(take_order), "five")
    assert [seen[0] for seen in SEEN] == ["refused", "refused"]
    assert SEEN[0][1].endswith("Order") and "at number" in SEEN[0][2]
    assert SEEN[0] == SEEN[1]
    assert EFFECTS == ["five"]


# -- exceptions -------------------------------------------------------------------------


class OwnError(Exception):
    pass


class WithConstructor(Exception):
    def __init__(self, code: int, *, retry: bool = False) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.retry = retry


class WithState(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.order = Order(number=7)


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _circular() -> Exception:
    parts: list[Any] = []
    parts.append(parts)
    return OwnError(parts)


def _local() -> Exception:
    class Local(Exception):
        pass

    return Local("nobody can import me")


def _validation() -> Exception:
    try:
        Order.model_validate({"number": "x"})
    except ValidationError as error:
        return error
    raise AssertionError


ERRORS: dict[str, Callable[[], Any]] = {
    "value": lambda: ValueError("no"),
    "several": lambda: ValueError("no", 3, (1, 2)),
    "empty": lambda: ValueError(),
    "key": lambda: KeyError("k"),
    "two files": lambda: OSError(18, "other device", "a.txt", None, "b.txt"),
    "syntax": lambda: SyntaxError("bad", ("a.py", 3, 5, "x = = 1")),
    "os": lambda: FileNotFoundError(2, "no such file", "x.txt"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "stop": lambda: StopAsyncIteration("end"),
    "own": lambda: OwnError("mine"),
    "constructor": lambda: WithConstructor(3, retry=True),
    "state": lambda: WithState("s"),
    "timeout": lambda: TimeoutError("late"),
    "agents": lambda: ActionTimeoutError("slow", seconds=3.0),
    "exit": lambda: SystemExit(3),
    "exit with a text": lambda: SystemExit("not now"),
}


FOREIGN: dict[str, Callable[[], Any]] = {
    "local": _local,
    "pydantic": _validation,
    "unrecordable": lambda: OwnError(Other(1)),
    "circular": _circular,
    "text": lambda: BadText(Other(1)),
}


def fail_with(name: str) -> None:
    EFFECTS.append(name)
    raise {**ERRORS, **FOREIGN}[name]()


async def fail_with_async(name: str) -> None:
    fail_with(name)


async def take_error(event: InputEvent, ctx: Any) -> None:
    function, name = event.input
    try:
        await ctx.durable_execute_async(fail_with if function == "def" else fail_with_async, name)
    except (Exception, SystemExit) as error:
        SEEN.append(error)


@pytest.mark.parametrize(
    ("name", "function"),
    # Python itself makes a RuntimeError of the one that is left out.
    [(name, kind) for kind in ("def", "async") for name in ERRORS if (name, kind) != ("stop", "async")],
)
def test_a_replay_raises_an_equal_exception(name: str, function: str) -> None:
    crash_and_replay(one_action(take_error), (function, name))
    expected = ERRORS[name]()
    assert EFFECTS == [name] * 2, "a failure is recorded once the action went on after it"
    first, second = SEEN
    assert type(first) is type(second) is type(expected)
    assert str(first) == str(second) == str(expected)


async def go_on_after_error(event: InputEvent, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(fail_with, event.input)
    except (Exception, SystemExit) as error:
        SEEN.append(error)
    await ctx.durable_execute_async(effect, "next")


@pytest.mark.parametrize("name", [*ERRORS])
def test_a_failure_that_the_action_went_on_after_is_not_repeated(name: str) -> None:
    crash_and_replay(one_action(go_on_after_error), name)
    expected = ERRORS[name]()
    assert EFFECTS == [name, "next"]
    first, second = SEEN
    assert type(first) is type(second) is type(expected)
    assert str(first) == str(second) == str(expected)
    assert second.args == expected.args
    assert {**vars(second)} == {**vars(expected)}


@pytest.mark.parametrize("name", [*FOREIGN])
def test_an_exception_that_cannot_be_made_again_is_named(name: str) -> None:
    crash_and_replay(one_action(go_on_after_error), name)
    expected = FOREIGN[name]()
    assert EFFECTS == [name, "next"]
    first, second = SEEN
    # Also the first time it is what a replay can make of the record.
    assert type(first) is type(second) and text_of(first) == text_of(second)
    if type(second) is type(expected):
        # Better than what is promised. A text may have the address of an object.
        assert text_of(first).partition(" at 0x")[0] == text_of(expected).partition(" at 0x")[0]
        return
    assert str(first) == str(second)
    assert type(second) is RecordedFailureError
    assert second.error_type.endswith(f":{type(expected).__qualname__}")
    assert second.message == text_of(first.__cause__)
    assert type(first.__cause__).__qualname__ == type(expected).__qualname__


# -- results that cannot be recorded ------------------------------------------------------


def make_other(number: int) -> Other:
    EFFECTS.append(number)
    return Other(number)


async def take_other(event: InputEvent, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(make_other, event.input)
    except DurableResultError as error:
        SEEN.append(str(error))


def test_a_result_that_cannot_be_recorded_is_an_error_and_its_effect_is_not_repeated() -> None:
    crash_and_replay(one_action(take_other), 4)
    assert EFFECTS == [4]
    first, second = SEEN
    assert first == second
    for part in ("make_other", "call 0", "'act'", "key 0", "sequence 0", "not repeated"):
        assert part in first


async def take_other_and_fail(event: InputEvent, ctx: Any) -> None:
    await ctx.durable_execute_async(make_other, event.input)


def test_not_even_where_the_action_fails_because_of_it() -> None:
    harness = OperatorHarness(one_action(take_other_and_fail))
    snapshot = harness.snapshot()
    for _ in range(3):
        with pytest.raises(ActionFailedError, match="cannot be recorded"):
            harness.push(1)
        harness.restore(snapshot)
    assert EFFECTS == [1]


SIZES: list[int] = []


def make_bytes(count: int) -> bytes:
    EFFECTS.append(count)
    return b"x" * count


async def take_bytes(event: InputEvent, ctx: Any) -> OutputEvent:
    try:
        return OutputEvent(output=len(await ctx.durable_execute_async(make_bytes, event.input)))
    except DurableResultError as error:
        return OutputEvent(output=error.found)


def test_the_size_limit_of_a_record_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 8 * 1024 * 1024
    # How long a call takes is written in as many bytes as it needs.
    pack = CallRecord.pack
    monkeypatch.setattr(CallRecord, "pack", lambda self, codec: pack(self._replace(elapsed=0), codec))
    faults = Faults()
    with OperatorHarness(one_action(take_bytes), store=faults.store) as harness:
        # How much a record needs besides the value, at a size whose length is written in as many bytes.
        harness.push(limit - 10_000)
        call = next(record for record in journal(faults) if record.kind is RecordKind.CALL)
        largest = limit - (len(call.data) - (limit - 10_000))
        assert harness.push(largest) == [largest]
        records = [record for record in journal(faults) if record.kind is RecordKind.CALL]
        assert max(len(record.data) for record in records) == limit
        (refused,) = harness.push(largest + 1)
        assert f"{limit + 1} bytes" in refused
        assert "RecordTooLargeError" in refused or "too large" in refused or "limit" in refused
        # The failure stands in the place of the result.
        assert calls_of(journal(faults))[-1].error is not None
    assert EFFECTS == [limit - 10_000, largest, largest + 1]


# -- arguments --------------------------------------------------------------------------


async def pass_other(event: InputEvent, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(effect, Other(1))
    except UnserializableValueError as error:
        SEEN.append(str(error))
    await ctx.durable_execute_async(effect, 2)


def test_arguments_that_cannot_be_encoded_are_refused_before_the_call() -> None:
    crash_and_replay(one_action(pass_other))
    assert EFFECTS == [2]
    assert len(SEEN) == 2 and "Other" in SEEN[0]


# -- time and chance --------------------------------------------------------------------


async def look_around(event: InputEvent, ctx: Any) -> None:
    seen = [ctx.now(), ctx.uuid4(), ctx.random().random()]
    seen.append(await ctx.durable_execute_async(effect, "call"))
    SEEN.append([*seen, ctx.now(), ctx.uuid4(), ctx.random().random()])


def test_time_and_chance_are_the_same_on_replay() -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(one_action(look_around), store=faults.store)
    snapshot = harness.snapshot()
    with crash():
        harness.push(1)
    harness.restore(snapshot)
    harness.advance_time(timedelta(hours=1))
    harness.push(1)
    first, second = SEEN
    assert first == second
    assert first[0] == first[4] and first[1] != first[5]
    assert EFFECTS == ["call"]
