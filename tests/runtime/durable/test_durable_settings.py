"""Settings of a durable call and arguments of its function: nothing is taken for the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import EFFECTS, crash_and_replay, forget, one_action

from flink_agents import DurableCallable, OutputEvent, RetryPolicy
from flink_agents.api.errors import ActionFailedError, AgentConfigurationError
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

SETTINGS: dict[str, Any] = {
    "name": "Ada",
    "result_type": str,
    "timeout": 30,
    "retry": RetryPolicy(initial_interval=0),
    "reconciler": len,
}


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


def takes_it(
    mail: str, name: Any = 0, result_type: Any = 0, timeout: Any = 0, retry: Any = 0, reconciler: Any = 0
) -> str:
    EFFECTS.append((mail, name, result_type, timeout, retry, reconciler))
    return mail


def by_keyword(
    mail: str, *, name: Any = 0, result_type: Any = 0, timeout: Any = 0, retry: Any = 0, reconciler: Any = 0
) -> str:
    return takes_it(mail, name, result_type, timeout, retry, reconciler)


async def asynchronously(
    mail: str, *, name: Any = 0, result_type: Any = 0, timeout: Any = 0, retry: Any = 0, reconciler: Any = 0
) -> str:
    return takes_it(mail, name, result_type, timeout, retry, reconciler)


def whatever(mail: str, **given: Any) -> str:
    return takes_it(mail, **given)


@functools.wraps(takes_it)
def wrapped(*args: Any, **kwargs: Any) -> str:
    return takes_it(*args, **kwargs)


class Method:
    def create(self, mail: str, **given: Any) -> str:
        return takes_it(mail, **given)


class Called:
    def __call__(self, mail: str, name: Any = 0, result_type: Any = 0, timeout: Any = 0, **more: Any) -> str:
        return takes_it(mail, name, result_type, timeout, **more)


TAKING: dict[str, Any] = {
    "positional or keyword": takes_it,
    "keyword only": by_keyword,
    "async def": asynchronously,
    "**kwargs": whatever,
    "wrapped": wrapped,
    "partial": functools.partial(by_keyword, timeout=3),
    "method": Method().create,
    "object": Called(),
}


def calling(function: Any, **given: Any) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(function, event.input, **given))

    return act


def calling_async(function: Any, **given: Any) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(function, event.input, **given))

    return act


@factors(kind=TAKING, setting=SETTINGS, make=[calling, calling_async])
def test_a_setting_that_the_function_takes_is_refused(kind: str, setting: str, make: Any) -> None:
    for value in (SETTINGS[setting], None):
        with OperatorHarness(one_action(make(TAKING[kind], **{setting: value}))) as harness:
            with pytest.raises(ActionFailedError) as caught:
                harness.push("ada@example.org")
        assert type(caught.value.__cause__) is AgentConfigurationError
        text = str(caught.value)
        assert repr(setting) in text and "DurableCallable(" in text and f"{setting}=..." in text
    assert EFFECTS == []


@factors(kind=TAKING, setting=["name", "timeout"], make=[calling, calling_async])
def test_of_a_callable_it_is_an_argument(kind: str, setting: str, make: Any) -> None:
    settings: dict[str, Any] = {"timeout": 60, "name": "create"}
    what = DurableCallable(TAKING[kind], **settings)
    for value in (7, None):
        forget()
        with crash_and_replay(one_action(make(what, **{setting: value})), "a") as harness:
            assert harness.outputs == ["a"]
        (effect,) = EFFECTS
        assert effect[1 if setting == "name" else 3] == value


def plainly(value: Any) -> Any:
    EFFECTS.append(value)
    return value


async def plainly_async(value: Any) -> Any:
    EFFECTS.append(value)
    return value


@pytest.mark.parametrize("make", [calling, calling_async])
@pytest.mark.parametrize("function", [plainly, plainly_async, DurableCallable(plainly), str])
def test_a_setting_that_the_function_does_not_take_is_one(function: Any, make: Any) -> None:
    agent = one_action(make(function, name="mine", timeout=60, result_type=str))
    with crash_and_replay(agent, "a") as harness:
        assert harness.outputs == ["a"]


def test_settings_of_the_call_go_before_those_of_the_callable() -> None:
    act = calling(DurableCallable(plainly, name="theirs", result_type=int), result_type=str)
    assert OperatorHarness(one_action(act)).push("7") == ["7"]


def test_wrong_result_says_which_type_was_wanted_and_where_it_differs() -> None:
    act = calling(DurableCallable(counts, result_type=dict[str, int]))
    with OperatorHarness(one_action(act)) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("x")
    text = str(caught.value)
    assert "expected: a result of the type dict[str, int]" in text
    assert "dict {'a': 1, 'b': 'many'}: at b: Input should be a valid integer" in text
    assert "correct result_type. The call took effect and is not repeated" in text


@pytest.mark.executes_once
def test_result_type_that_is_none_is_refused_before_the_call() -> None:
    act = calling(DurableCallable(counts, result_type=3))
    EFFECTS.clear()
    with OperatorHarness(one_action(act)) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("x")
    assert "has a wrong result_type" in str(caught.value)
    assert EFFECTS == []


def counts(event: Any) -> dict[str, Any]:
    EFFECTS.append(event)
    return {"a": 1, "b": "many"}
