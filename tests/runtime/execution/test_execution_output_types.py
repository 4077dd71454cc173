"""Outputs and side outputs have the types that the agent declares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from core_agents import action_fails
from pydantic import BaseModel
from pyflink.common import Types

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, OutputTypeError, StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case


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


class Color(str, Enum):  # noqa: UP042 - the older form, which is no StrEnum
    RED = "red"


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


@each_case(("kind", "value"), FITS, ids=repr)
def test_value_of_the_type_leaves_as_it_is(kind: Any, value: Any) -> None:
    (output,) = OperatorHarness(echo(kind), forced_serialization=False).push(value)
    assert type(output) is type(value)


CONVERTED = [
    (float, 1, 1.0),
    (float, 2**53, 2.0**53),
    (float, np.float32(0.5), 0.5),
    (float, np.float64(1.5), 1.5),
    (float, np.int64(3), 3.0),
    (int, Level.LOW, 1),
    (int, np.int64(-(2**63)), -(2**63)),
    (int, np.uint8(3), 3),
    (str, Color.RED, "red"),
    (str, np.str_("a"), "a"),
    (bool, np.bool_(True), True),
]


@each_case(("kind", "value", "expected"), CONVERTED, ids=repr)
@pytest.mark.parametrize("place", ["output", "side output", "delayed output"])
def test_value_without_loss_is_converted(kind: Any, value: Any, expected: Any, place: str) -> None:
    class Places(Agent):
        output_type = kind
        side_outputs: Any = {"side": kind}

        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None:
            if place == "side output":
                ctx.emit_to("side", value)
            else:
                ctx.send_event(OutputEvent(output=value), delay=1 if place == "delayed output" else None)

    harness = OperatorHarness(Places, forced_serialization=False)
    outputs = harness.push("x")
    if place == "side output":
        outputs = harness.side_output("side")
    elif place == "delayed output":
        outputs = harness.advance_time(1000)
    (output,) = outputs
    assert output == expected and type(output) is type(expected)


@each_case(
    ("kind", "value", "found"),
    [
        (int, 2**63, "an integer of 64 bits"),
        (int, -(2**63) - 1, "an integer of 64 bits"),
        (int, np.uint64(2**63), "an integer of 64 bits"),
        (int, 1.0, "a valid integer"),
        (int, np.bool_(True), "a valid integer"),
        (int, Decimal(1), "a valid integer"),
        (float, 2**53 + 1, "that a float represents exactly"),
        (float, 10**400, "that a float represents exactly"),
        (float, True, "a valid number"),
        (float, "1", "a valid number"),
        (float, Decimal("0.5"), "a valid number"),
        (bool, 1, "a valid boolean"),
        (bool, np.array([True]), "a valid boolean"),
        (str, b"a", "a valid string"),
        (Types.BYTE(), 128, "an integer of 8 bits"),
        (Types.SHORT(), 2**15, "an integer of 16 bits"),
        (Types.INT(), 2**31, "an integer of 32 bits"),
        (Types.LONG(), 2**63, "an integer of 64 bits"),
        (Types.FLOAT(), 1e39, "a float of 32 bits"),
        (Types.STRING(), 1, "a valid string"),
        (Types.BOOLEAN(), 1, "a valid boolean"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", ["output", "side output"])
def test_value_that_the_job_cannot_carry_fails_its_action(
    kind: Any, value: Any, found: str, place: str
) -> None:
    class Places(Agent):
        output_type = kind
        side_outputs: Any = {"side": kind}

        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
            if place == "output":
                return OutputEvent(output=value)
            return ctx.emit_to("side", value)

    with action_fails(OutputTypeError, found):
        OperatorHarness(Places, forced_serialization=False).push("x")


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
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("x")
    asking.output_type = str
    with OperatorHarness(asking, store=faults.store, forced_serialization=False) as harness:
        harness.restore(snapshot)
        assert harness.push("x") == [1]
