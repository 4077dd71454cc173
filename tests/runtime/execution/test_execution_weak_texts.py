"""Mistakes of the first hour: each text says what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from flink_agents import Agent, Configuration, InputEvent, OutputEvent, RunnerContext, Tool
from flink_agents.api.errors import ActionFailedError, ActionSignatureError, OptionError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


@dataclass
class Order:
    amount: int


async def settle(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=1)


@each_case(
    ("record", "fix"),
    [
        (Order(3), "write event.input.amount"),
        ({"amount": 3}, "write event.input['amount']"),
        ("text", "use what an event InputEvent has"),
    ],
)
def test_an_attribute_of_the_record_is_looked_for_in_it(record: Any, fix: str) -> None:
    agent = Agent(name="Shop").add_action(
        "settle", InputEvent, settle, needs_approval=lambda event: event.amount > 1
    )
    with OperatorHarness(agent) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push(record)
    assert f"fix: {fix}" in str(caught.value)


@each_case(
    ("key", "fix"), [("run.max-event", "did you mean 'run.max-events'?"), ("zzz", "docs/configuration.md")]
)
def test_the_fix_of_an_unknown_option_stands_before_the_names(key: str, fix: str) -> None:
    with pytest.raises(OptionError) as caught:
        Configuration({key: 1})
    assert fix in str(caught.value).splitlines()[0]


def charge(order: str, idempotancy_key: str) -> str:
    return order


def test_a_misspelt_idempotency_key_is_named() -> None:
    with pytest.raises(ActionSignatureError, match="did you mean 'idempotency_key'"):
        Tool(charge)

    def pay(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        receipt = ctx.durable_execute(charge, event.input)  # pyright: ignore[reportCallIssue]
        return OutputEvent(output=receipt)

    with OperatorHarness(Agent(name="Shop").add_action("pay", InputEvent, pay)) as harness:
        with pytest.raises(ActionFailedError, match="did you mean 'idempotency_key'"):
            harness.push("tea")


def charge_once(order: str, idempotencyKey: str | None = None) -> str:
    return f"{order} {idempotencyKey}"


async def charge_once_async(order: str, *, idempotancy_key: str = "") -> str:
    return f"{order} {idempotancy_key}"


def charge_by_own(order: str, own_idempotency_keys: str = "none") -> str:
    return f"{order} {own_idempotency_keys}"


@each_case("blocking", [True, False])
@each_case("settings", [{}, {"timeout": 60}])
def test_a_misspelt_idempotency_key_with_a_default_is_named(blocking: bool, settings: dict[str, Any]) -> None:
    function: Any = charge_once if blocking else charge_once_async
    name = "idempotencyKey" if blocking else "idempotancy_key"

    async def pay(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        arguments = {} if event.input == "nothing" else {name: "mine"}
        return OutputEvent(output=await ctx.durable_execute_async(function, "tea", **arguments, **settings))

    with OperatorHarness(Agent(name="Shop").add_action("pay", InputEvent, pay)) as harness:
        assert harness.push("given") == ["tea mine"]
        with pytest.raises(ActionFailedError, match="did you mean 'idempotency_key'") as caught:
            harness.push("nothing")
    assert "test_execution_weak_texts.py" in str(caught.value).splitlines()[0]


def test_another_parameter_is_no_misspelt_key() -> None:
    def pay(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(charge_by_own, event.input))

    with OperatorHarness(Agent(name="Shop").add_action("pay", InputEvent, pay)) as harness:
        assert harness.push("tea") == ["tea none"]
