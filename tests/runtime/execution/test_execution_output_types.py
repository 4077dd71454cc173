"""Outputs and side outputs have the types that the agent declares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, OutputTypeError, StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each


class Order(BaseModel):
    id: str
    lines: list[int] = []


class Special(Order):
    """A kind of order."""


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    x: int
    y: int


class Level(IntEnum):
    LOW = 1


class Plain:
    """A class that pydantic knows nothing of."""


class Echo(Agent):
    """Puts out its input: as an output, or as a side output where it is a pair with a tag."""

    side_outputs: Any = {"orders": Order, "any": object}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
        if isinstance(event.input, tuple) and event.input[:1] == ("side",):
            ctx.emit_to(*event.input[1:])
            return None
        return OutputEvent(output=event.input)


def echo(kind: Any) -> Agent:
    agent = Echo()
    agent.output_type = kind
    return agent


FITS = [
    (str, "a"),
    (int, 1),
    (int, Level.LOW),
    (float, 1),
    (float, 1.5),
    (bool, True),
    (Order, Order(id="a")),
    (Order, Special(id="a")),
    (Point, Point(1)),
    (Pair, Pair(1, 2)),
    (list[str], ["a"]),
    (dict[str, float], {"a": 1}),
    (str | None, None),
    (dict, {"a": object}),
    (object, b"a"),
    (Any, None),
    (Plain, Plain()),
]

DIFFERS = [
    (str, 1, "str, as declared", "int 1: Input should be a valid string"),
    (int, "1", "int, as declared", "str '1': Input should be a valid integer"),
    (int, True, "int", "bool True: Input should be a valid integer"),
    (Order, {"id": "a"}, "Order", "an instance of Order"),
    (list[str], ["a", 2], "list[str]", "at 1: Input should be a valid string, not 2"),
    (dict[str, float], {"a": "b"}, "dict[str, float]", "at a: Input should be a valid number, not 'b'"),
    (Point, Pair(1, 2), "Point", "instance of Point"),
    (Plain, 1, "Plain", "instance of Plain"),
    (str, None, "str", "NoneType None"),
]


@each(("kind", "value"), FITS, ids=repr)
def test_value_of_the_type_leaves_as_it_is(kind: Any, value: Any) -> None:
    (output,) = OperatorHarness(echo(kind), forced_serialization=False).push(value)
    assert type(output) is type(value)


@pytest.mark.parametrize(("kind", "value", "expected", "found"), DIFFERS, ids=repr)
def test_value_of_another_type_fails_its_action(kind: Any, value: Any, expected: str, found: str) -> None:
    harness = OperatorHarness(echo(kind), forced_serialization=False)
    with pytest.raises(ActionFailedError, match="not of the agent's output_type") as caught:
        harness.push(value)
    assert isinstance(caught.value.__cause__, OutputTypeError)
    assert expected in (caught.value.expected or "") and found in (caught.value.found or "")
    assert re.match(r"\S*test_execution_output_types.py:\d+ in Echo.act", str(caught.value))


def test_side_output_has_its_type() -> None:
    harness = OperatorHarness(Echo)
    harness.push_all([("side", "orders", Order(id="a")), ("side", "any", 1)])
    assert (harness.side_output("orders"), harness.side_output("any")) == ([Order(id="a")], [1])
    with pytest.raises(ActionFailedError, match=r"not of the agent's side_outputs\['orders'\]"):
        harness.push(("side", "orders", "a"))


def test_policy_is_followed() -> None:
    harness = OperatorHarness(echo(str), config={"actions.on-error": "dead-letter"})
    assert harness.push_all(["a", 1, "b"]) == ["a", "b"]
    assert [letter.error_type for letter in harness.dead_letters] == ["OutputTypeError"]


@pytest.mark.executes_once
def test_recorded_output_leaves_though_it_has_another_type_by_now() -> None:
    """Else a job could not go on with what an earlier version has recorded."""

    async def ask() -> int:
        return 1

    class Asking(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=await ctx.durable_execute_async(ask))

    asking = Asking()
    faults = Faults(at_record(RecordKind.ACTION, Fault.UNACKNOWLEDGED))
    with OperatorHarness(asking, store=faults.store, forced_serialization=False) as harness:
        before = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("x")
    asking.output_type = str
    with OperatorHarness(asking, store=faults.store, forced_serialization=False) as harness:
        harness.restore(before)
        assert harness.push("x") == [1]
