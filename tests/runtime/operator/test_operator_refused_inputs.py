"""Inputs that have to wait and that state cannot hold: they follow the error policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from durable_tools import effect, forget

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.errors import UnserializableValueError
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once


class Plain:
    """A class that state does not know."""

    def __init__(self) -> None:
        self.name = "plain"

    def __repr__(self) -> str:
        return "Plain()"


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


MADE: dict[str, Callable[[], Any]] = {
    "class": Plain,
    "in a list": lambda: ["a", {"b": Plain()}],
    "in a tuple": lambda: ("a", Plain()),
    "type": lambda: Plain,
    "slice": lambda: slice(3),
    "range": lambda: range(3),
    "exception": lambda: ValueError("x"),
    "too deep": lambda: nested(5000),
    "endless": endless,
}


async def wait(event: InputEvent, ctx: Any) -> OutputEvent:
    await asyncio.sleep(0)
    return OutputEvent(output="done")


async def call(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=await ctx.durable_execute_async(effect, "done"))


def call_in_thread(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=ctx.durable_execute(effect, "done"))


def block(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output="done")


ACTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "async": (wait, {}),
    "durable": (call, {}),
    "durable in a thread": (call_in_thread, {}),
    "blocking": (block, {"blocking": True}),
    "timeout": (block, {"timeout": 60}),
}


def new_harness(action: str, name: str, policy: str, **options: Any) -> OperatorHarness:
    function, settings = ACTIONS[action]
    agent = Agent(name="waits").add_action("act", [InputEvent], function, **settings)
    # Pickle itself gives up before the codec does.
    options["forced_serialization"] = name != "too deep"
    return OperatorHarness(agent, config={"actions.on-error": policy}, **options)


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


@factors(name=MADE, action=ACTIONS, busy=[False, True])
def test_it_becomes_a_dead_letter(name: str, action: str, busy: bool) -> None:
    with new_harness(action, name, "dead-letter", auto_run=False) as harness:
        if busy:
            harness.push("before")
        harness.push(MADE[name]())
        harness.push("behind")
        harness.run_until_idle()
        assert harness.outputs == ["done"] * (2 if busy else 1)
        (letter,) = harness.dead_letters
        assert letter.error_type == "UnserializableValueError" and letter.error_message
        assert type(letter.event.input) is type(MADE[name]())
        assert (letter.key, letter.action) == (0, None)
        assert harness.run_metrics["events_dead_lettered"] == 1
        assert harness.pending() == 0


@pytest.mark.parametrize("name", ["class", "too deep"])
@pytest.mark.parametrize("action", [*ACTIONS])
def test_it_is_ignored_or_fails_the_job(name: str, action: str) -> None:
    with new_harness(action, name, "ignore") as harness:
        harness.push(MADE[name]())
        harness.push("behind")
        assert harness.outputs == ["done"]
        assert harness.run_metrics["events_ignored"] == 1
    for policy in ("fail", "retry"):
        with (
            new_harness(action, name, policy) as harness,
            pytest.raises(UnserializableValueError),
        ):
            harness.push(MADE[name]())


def test_an_input_that_never_waits_may_be_anything() -> None:
    only = Agent(name="inline").add_action("act", [InputEvent], block)
    with OperatorHarness(only, forced_serialization=False) as harness:
        assert [harness.push(make()) for make in MADE.values()] == [["done"]] * len(MADE)
