"""Failures that are larger than a record: trimmed, so that what goes with them is recorded all the same."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, calls_of, crash, effect, forget, journal, one_action

from flink_agents import InputEvent
from flink_agents.api.action_state import ActionStateStore, RecordKind
from flink_agents.api.errors import RecordedFailureError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

LIMITS = (6_000, 100_000, 1_048_576)
LARGE = 3_000_000
Group: Any = getattr(builtins, "ExceptionGroup")  # noqa: B009


class Told(Exception):
    """An error of the author's, with attributes."""


def with_state(**state: Any) -> Exception:
    error = Told("it failed")
    vars(error).update(state)
    return error


def with_notes() -> Exception:
    error: Any = ValueError("noted")
    for number in range(200):
        error.add_note(str(number) * (LARGE // 100))
    return error


def chain(depth: int, error: Exception) -> Exception:
    return error if depth == 0 else Group("level", [chain(depth - 1, error), KeyError("y" * 5_000)])


MADE: dict[str, Callable[[], Exception]] = {
    "message": lambda: ValueError("x" * LARGE),
    "message of many bytes": lambda: ValueError("\U0001f600" * LARGE),
    "bytes": lambda: ValueError("short", b"x" * LARGE),
    "many arguments": lambda: ValueError(*range(LARGE // 10)),
    "list": lambda: RuntimeError("all of", ["z" * 1000] * 3_000),
    "dictionary": lambda: RuntimeError({f"name {n}": {"deep": ["z" * 50] * 10} for n in range(5_000)}),
    "attributes": lambda: with_state(body="b" * LARGE, code=500),
    "many attributes": lambda: with_state(**{f"a{n}": n for n in range(100_000)}),
    "message and attributes": lambda: with_state(args=("m" * LARGE,), body=b"b" * LARGE),
    "notes": with_notes,
    "file": lambda: FileNotFoundError(2, "s" * LARGE, "f" * LARGE),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff" * LARGE, 0, 1, "r" * LARGE),
    "json": lambda: json.JSONDecodeError("no", "d" * LARGE, 3),
    "group": lambda: Group("all", [ValueError("x" * 10_000) for _ in range(400)]),
    "group of many": lambda: Group("all", [ValueError(str(n)) for n in range(30_000)]),
    "group in groups": lambda: chain(9, ValueError("x" * LARGE)),
}


def fail_with(name: str) -> None:
    raise MADE[name]()


def is_alike(before: Any, after: Any) -> bool:
    """Whether two exceptions have the same type and, as far as both have it, the same message."""
    if isinstance(after, RecordedFailureError):
        return str(before).startswith(after.message[: failures.ALIKE])
    if type(before) is not type(after):
        return False
    if isinstance(before, Group):
        pairs = zip(before.exceptions, after.exceptions, strict=False)
        return before.message == after.message and all(is_alike(*pair) for pair in pairs)
    return str(before)[:8] == str(after)[:8]


async def catch_and_go_on(event: InputEvent, ctx: Any) -> None:
    """Fail side by side, catch it all, take effect; again and again."""
    names, count = event.input
    for number in range(2):
        calls = [ctx.durable_execute_async(fail_with, name) for name in names for _ in range(count)]
        SEEN.append(await asyncio.gather(*calls, return_exceptions=True))
        await ctx.durable_execute_async(effect, number)


def stores(limit: int, choose: Any = None) -> Faults:
    place = MemoryPlace()

    def make() -> ActionStateStore:
        return MemoryStore(place, max_record_bytes=limit)

    return Faults(choose, make)


def caught(names: list[str], count: int, limit: int) -> Faults:
    """Let an action catch failures, die where its end is recorded, and run again."""
    faults = stores(limit, at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(one_action(catch_and_go_on), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push((names, count))
        harness.restore(snapshot)
        harness.push((names, count))
    return faults


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


@pytest.mark.nightly(beyond=3)
@factors(strength=1, name=MADE, limit=LIMITS)
def test_a_success_is_recorded_behind_any_failure(name: str, limit: int) -> None:
    caught([name], 1, limit)
    assert EFFECTS == [0, 1]
    first = SEEN[:2]
    again = SEEN[2:]
    assert [len(errors) for errors in again] == [1, 1]
    for original, after in zip(first, again, strict=True):
        # What is trimmed is trimmed the first time as well.
        assert type(original[0]) is type(after[0]) and repr(original[0]) == repr(after[0])
        assert is_alike(MADE[name](), after[0])


@pytest.mark.parametrize(
    "limit", [LIMITS[0], *(pytest.param(limit, marks=pytest.mark.nightly) for limit in LIMITS[1:])]
)
def test_several_failures_go_with_one_append(limit: int) -> None:
    names = ["message", "group", "attributes", "file"]
    faults = caught(names, 6, limit)
    assert EFFECTS == [0, 1]
    assert len(calls_of(journal(faults))) == 2 * (1 + 6 * len(names))
    for _, records, _ in faults.appends:
        assert len(records) == 1 or sum(len(record.data) for record in records) <= limit
    # What is recorded first is what came about first.
    first = [record for _, records, fault in faults.appends if fault is None for record in records]
    calls = [record for record in first if record.kind is RecordKind.CALL]
    (success,) = [n for n, record in enumerate(calls) if record.index == 6 * len(names)]
    assert success == 6 * len(names)


@pytest.mark.nightly(beyond=3)
@pytest.mark.parametrize("name", [*MADE])
def test_what_is_kept_of_a_failure_has_as_many_bytes_as_there_are(name: str) -> None:
    codec = ValueCodec(False)
    error = MADE[name]()
    for limit in (failures.LEAST_BYTES, 2_000, 50_000, failures.MAX_BYTES):
        description = failures.describe(codec, error, limit)
        assert len(codec.encode(description)) <= limit
        assert is_alike(error, failures.rebuild(codec, description)), limit


@pytest.mark.parametrize("name", ["message", "bytes", "list", "dictionary", "attributes", "group", "file"])
def test_what_is_trimmed_keeps_its_type(name: str) -> None:
    codec = ValueCodec(False)
    error = MADE[name]()
    for limit in (2_000, 50_000, failures.MAX_BYTES):
        assert type(failures.rebuild(codec, failures.describe(codec, error, limit))) is type(error)


async def too_large_alone(event: InputEvent, ctx: Any) -> None:
    with contextlib.suppress(ValueError):
        await ctx.durable_execute_async(fail_with, "message")
    try:
        await ctx.durable_execute_async(_large)
    except Exception as error:
        SEEN.append(type(error).__name__)
    await ctx.durable_execute_async(effect, "next")


def _large() -> str:
    EFFECTS.append("large")
    return "x" * LARGE


def test_a_success_that_is_too_large_alone_is_the_documented_error_each_time() -> None:
    faults = stores(100_000, at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(one_action(too_large_alone), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push("x")
        harness.restore(snapshot)
        harness.push("x")
    assert EFFECTS == ["large", "next"]
    assert SEEN == ["DurableResultError"] * 2
