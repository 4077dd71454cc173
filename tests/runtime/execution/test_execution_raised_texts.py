"""What Python and pydantic say of a slip in an action is told in words of this package, with what to do."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import flink_agents
from flink_agents import Agent, DurableCallable, Event, InputEvent, OutputEvent
from flink_agents.api.errors import ActionFailedError
from flink_agents.api.errors.base import code_line
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once


class Placed(Event):
    order: str
    total: int = 0


class Order(BaseModel):
    number: int
    customer: str


class Quiet(Agent):
    on_unhandled = "ignore"


def failed(act: Callable[[Any, Any], Any]) -> ActionFailedError:
    agent = Quiet(name="a").add_action("act", InputEvent, act)
    with OperatorHarness(agent) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("o1")
    return caught.value


def change(event: Any, ctx: Any) -> None:
    event.input = 3


def set_item(event: Any, ctx: Any) -> None:
    ctx.short_term_memory["a"] = 1


def get_item(event: Any, ctx: Any) -> None:
    ctx.short_term_memory["a"]


def delete_item(event: Any, ctx: Any) -> None:
    del ctx.sensory_memory["a"]


@pytest.mark.parametrize(
    ("act", "message", "fix"),
    [
        (
            lambda event, ctx: OutputEvent(5),  # pyright: ignore[reportCallIssue]
            "a value was passed without the name of its field",
            "OutputEvent(output=...)",
        ),
        (
            lambda event, ctx: flink_agents.OutputEvent(5),  # pyright: ignore[reportCallIssue]
            "a value was passed without",
            "OutputEvent(output=...)",
        ),
        (
            lambda event, ctx: Placed("a", 1),  # pyright: ignore[reportCallIssue]
            "a value was passed without",
            "write Placed(order=..., total=...)",
        ),
        (lambda event, ctx: Placed(ordr="a"), "Placed: order: Field required", "write Placed(order=...)"),  # pyright: ignore[reportCallIssue]
        (lambda event, ctx: Placed(order="a", totl=1), "totl: Extra inputs", "did you mean 'total'?"),  # pyright: ignore[reportCallIssue]
        (
            lambda event, ctx: Placed(order="a", total="x"),  # pyright: ignore[reportArgumentType]
            "total: Input should be",
            "a value of its type as 'total'",
        ),
        (
            lambda event, ctx: Order.model_validate({}),
            "Order: number: Field required",
            "write Order(number=...)",
        ),
        (lambda event, ctx: OutputEvent(value=1), "output: Field required", "OutputEvent(output=...)"),  # pyright: ignore[reportCallIssue]
        (change, "InputEvent: input: Instance is frozen", "value.model_copy(update={'input': ...})"),
        (set_item, "memory has paths, not items", "ctx.short_term_memory.set('path', value)"),
        (get_item, "memory has paths, not items", "get('path', default)"),
        (delete_item, "memory has paths, not items", "get('path', default)"),
        (
            lambda event, ctx: ctx.shortterm_memory,
            "ctx has no attribute 'shortterm_memory'",
            "'short_term_memory'?",
        ),
        (
            lambda event, ctx: ctx.short_term_memory.gett("a"),
            "a memory object has no attribute 'gett'",
            "'get'?",
        ),
        (
            lambda event, ctx: event.inptu,
            "an event InputEvent has no attribute 'inptu'",
            "did you mean 'input'?",
        ),
    ],
)
def test_a_slip_is_told_with_what_to_do(act: Any, message: str, fix: str) -> None:
    error = failed(act)
    first = str(error).splitlines()[0]
    assert first.startswith("tests/") and "test_execution_raised_texts.py:" in first
    assert message in first
    assert error.fix is not None and fix in error.fix
    assert error.expected and error.found
    text = str(error)
    for inside in ("TreeObject", "ActionRunContext", "errors.pydantic.dev"):
        assert inside not in text


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda event, ctx: event.input.nothing, "'str' object has no attribute 'nothing'"),
        (lambda event, ctx: len(3), "object of type 'int' has no len()"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_other_errors_stand_as_they_are(act: Any, text: str) -> None:
    error = failed(act)
    assert text in str(error) and error.fix is None


def test_the_section_of_the_error_that_was_raised_is_named() -> None:
    error = failed(lambda event, ctx: event.input)
    assert error.error_code == "FA4002"
    codes = [
        code_line("FA4002"),
        code_line("FA4001"),
    ]
    assert str(error).splitlines()[-2:] == codes
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    plain = failed(lambda event, ctx: 1 // 0)
    assert str(plain).splitlines()[-1:] == codes[1:] and "FA4002" not in str(plain)


def test_methods_that_are_generated_are_nobodys_line() -> None:
    error = failed(lambda event, ctx: DurableCallable(3))  # pyright: ignore[reportArgumentType]
    assert "test_execution_raised_texts.py:" in str(error).splitlines()[0]
