"""Groups of exceptions that durable calls raise come back on replay, with all of their members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import EFFECTS, SEEN, crash_and_replay, effect, forget, one_action

from flink_agents import InputEvent
from flink_agents.api.errors import RecordedFailureError
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

Group: Any = ExceptionGroup
BaseGroup: Any = BaseExceptionGroup


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


class OwnError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class OwnGroup(Group):
    """Is made of other arguments than its base class."""

    def __new__(cls, errors: list[Exception], source: str) -> OwnGroup:
        self = super().__new__(cls, f"of {source}", errors)
        self.source = source
        return self

    def __init__(self, errors: list[Exception], source: str) -> None:
        pass


class Connection:
    name = "service"

    def close(self) -> None:
        pass


class NoExit(SystemExit):
    """Its text is lost with its connection."""

    def __init__(self) -> None:
        self.connection = Connection()

    def __str__(self) -> str:
        return self.connection.name


class NoValue(ValueError):
    __init__: Any = NoExit.__init__
    __str__: Any = NoExit.__str__


def nested(depth: int) -> Any:
    error: Exception = ValueError("innermost")
    for number in range(depth):
        error = Group(f"level {number}", [error, OSError(2, "no such file", f"{number}.txt")])
    return error


def noted() -> Any:
    error = Group("noted", [ValueError("a")])
    error.add_note("in passing")
    return error


MADE: dict[str, Callable[[], BaseException]] = {
    "flat": lambda: Group("several", [ValueError("a"), OwnError(3), KeyError("k")]),
    "nested": lambda: nested(5),
    "own class": lambda: OwnGroup([OwnError(1), ValueError("a")], "partners"),
    "with an exit": lambda: BaseGroup("ends", [SystemExit(3), Group("inner", [OwnError(2)])]),
    "with a cancellation": lambda: BaseGroup("ends", [asyncio.CancelledError("late"), ValueError("a")]),
    "with notes": noted,
    "wide": lambda: Group("many", [ValueError(str(number)) for number in range(1000)]),
}


def describe_group(error: Any) -> Any:
    """All that a group is, as values that can be compared."""
    inner = (
        [describe_group(exception) for exception in error.exceptions]
        if isinstance(error, BaseExceptionGroup)
        else error.args
    )
    return type(error), str(error), dict(vars(error)), inner


def fail_with(name: str) -> None:
    EFFECTS.append(name)
    raise MADE[name]()


async def fail_with_async(name: str) -> None:
    fail_with(name)


async def go_on(event: InputEvent, ctx: Any) -> None:
    function = fail_with if event.input[0] == "def" else fail_with_async
    try:
        await ctx.durable_execute_async(function, event.input[1])
    except BaseExceptionGroup as error:
        SEEN.append(describe_group(error))
    await ctx.durable_execute_async(effect, "next")


def go_on_in_a_thread(event: InputEvent, ctx: Any) -> None:
    function = fail_with if event.input[0] == "def" else fail_with_async
    try:
        ctx.durable_execute(function, event.input[1])
    except BaseExceptionGroup as error:
        SEEN.append(describe_group(error))
    ctx.durable_execute(effect, "next")


@factors(name=MADE, function=["def", "async"], act=[go_on, go_on_in_a_thread])
def test_a_replay_raises_an_equal_group(name: str, function: str, act: Any) -> None:
    crash_and_replay(one_action(act), (function, name))
    assert EFFECTS == [name, "next"]
    assert SEEN == [describe_group(MADE[name]())] * 2


# -- what cannot be made again ------------------------------------------------------------


def replay_error(error: BaseException) -> Any:
    """What a replay makes of an exception."""
    codec = ValueCodec(False)
    description = codec.decode(codec.encode(failures.describe(codec, error)))
    return failures.rebuild(codec, description)


def test_a_member_that_cannot_be_made_again_is_named_in_its_place() -> None:
    group = replay_error(Group("several", [ValueError("a"), OwnError(3), NoValue()]))
    assert type(group) is Group and group.message == "several"
    first, second, third = group.exceptions
    assert (type(first), type(second), type(third)) == (ValueError, OwnError, RecordedFailureError)
    assert third.error_type.endswith(":NoValue") and third.message == "service"


def test_groups_are_kept_to_a_bounded_depth() -> None:
    error = replay_error(nested(failures.MAX_DEPTH + 3))
    for level in range(failures.MAX_DEPTH):
        assert (type(error), error.message) == (Group, f"level {failures.MAX_DEPTH + 2 - level}")
        error, sibling = error.exceptions
        assert type(sibling) is FileNotFoundError
    assert type(error) is RecordedFailureError
    assert error.error_type == "builtins:ExceptionGroup" and error.message == "level 2 (2 sub-exceptions)"


def test_a_group_that_would_become_one_of_another_class_is_named() -> None:
    error = replay_error(BaseGroup("ends", [NoExit(), ValueError("a")]))
    assert type(error) is RecordedFailureError
    assert error.error_type == "builtins:BaseExceptionGroup"


def test_what_is_too_large_for_a_record_keeps_its_type_and_the_begin_of_each_part() -> None:
    large = "x" * (failures.MAX_BYTES // 2)
    for error in (ValueError(large, large), Group("g", [ValueError(large), ValueError(large)])):
        replayed_error = replay_error(error)
        assert type(replayed_error) is type(error)
        size = len(ValueCodec(False).encode(failures.describe(ValueCodec(False), error)))
        assert failures.MAX_BYTES * 0.9 < size <= failures.MAX_BYTES
    assert replay_error(ValueError(large)).args == (large,)


def test_a_record_never_makes_an_error_that_no_call_can_have_raised() -> None:
    for error in (KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()):
        assert type(replay_error(error)) is RecordedFailureError
