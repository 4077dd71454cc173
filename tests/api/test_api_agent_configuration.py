"""Constructor arguments of an agent as its configuration."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents import (
    Agent,
    Event,
    InputEvent,
    OutputEvent,
    action,
    tool,
)
from flink_agents.api.errors import (
    AgentConfigurationError,
    AgentDefinitionError,
)
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


def out(value: Any) -> OutputEvent:
    return OutputEvent(output=value)


class Limits(BaseModel):
    low: int
    high: int = 10


class Configured(Agent):
    def __init__(
        self,
        name: str,
        limits: Limits,
        since: date = date(2024, 1, 1),
        *tags: str,
        delay: timedelta = timedelta(seconds=1),
        **more: int,
    ) -> None:
        self.values = [name, limits, since, tags, delay, more]

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.values)

    @tool
    def low(self) -> int:
        """The lower limit."""
        return self.values[1].low  # pyright: ignore[reportAttributeAccessIssue]


def test_constructor_arguments_reach_each_subtask_with_their_types() -> None:
    agent = Configured("a", Limits(low=1), date(2020, 2, 2), "x", "y", delay=timedelta(minutes=1), extra=5)
    harness = OperatorHarness(agent, lambda record: record, parallelism=2)
    values = ["a", Limits(low=1), date(2020, 2, 2), ("x", "y"), timedelta(minutes=1), {"extra": 5}]
    assert harness.push_all(range(4)) == [values] * 4


def test_defaults_are_not_written_into_the_plan() -> None:
    harness = OperatorHarness(Configured("a", limits=Limits(low=1)))
    assert harness.plan.configuration == {"name": "a", "limits": {"low": 1, "high": 10}}
    assert harness.push(1)[0][2:] == [date(2024, 1, 1), (), timedelta(seconds=1), {}]


class Shared(Agent):
    """Has a mutable default, and an attribute that grows."""

    def __init__(self, tags: list[str] = []) -> None:  # noqa: B006
        self.tags = tags

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        self.tags.append(event.input)
        return out(list(self.tags))


def test_each_subtask_has_its_own_copy_of_a_mutable_argument() -> None:
    tags = ["given"]
    for _ in range(2):
        assert OperatorHarness(Shared(tags)).push("a") == [["given", "a"]]
    assert tags == ["given"]


class Mutating(Agent):
    """Its constructor changes what it is given."""

    def __init__(self, tags: list[str], *more: list[str], by_name: dict[str, list[str]]) -> None:
        for changed in (tags, *more, by_name["x"]):
            changed.append("changed")
        self.values = [tags, *more, by_name["x"]]

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.values)


def test_configuration_is_what_was_passed_whatever_the_constructor_does() -> None:
    harness = OperatorHarness(Mutating(["a"], ["b"], by_name={"x": ["c"]}))
    assert harness.plan.configuration == {"tags": ["a"], "more": [["b"]], "by_name": {"x": ["c"]}}
    assert harness.push(1) == [[["a", "changed"], ["b", "changed"], ["c", "changed"]]]


class NoCopy:
    """Like a lock or a client, it cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy of this")


def test_argument_that_cannot_be_copied_is_refused_by_the_plan() -> None:
    agent = Untyped(NoCopy())
    with pytest.raises(AgentConfigurationError, match="'value' of Untyped"):
        OperatorHarness(agent)


def test_restored_operator_starts_with_the_configuration_again() -> None:
    harness = OperatorHarness(Shared(["given"]))
    snapshot = harness.snapshot()
    harness.push("a")
    harness.restore(snapshot)
    assert harness.push("b") == [["given", "b"]]


class NeedsName(Agent):
    def __init__(self, name: str) -> None:
        self.name = name

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None: ...


def test_class_with_required_arguments_is_a_named_error() -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        OperatorHarness(NeedsName)
    assert "NeedsName" in (caught.value.where or "")
    assert "'name'" in (caught.value.found or "")


class Untyped(Agent):
    def __init__(self, value: Any) -> None:
        self.value = value

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.value)


@each_case("value", [None, 1, 0.5, "a", True, [1, {"a": None}], {"a": [1]}])
def test_plain_json_needs_no_annotation(value: Any) -> None:
    assert OperatorHarness(Untyped(value)).push(1) == [value]


@each_case("value", [object(), {1: 2}, (1,), {1}, b"a", lambda: 1, Limits(low=1), float("nan"), print])
def test_argument_that_the_plan_cannot_hold_is_a_named_error(value: Any) -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        OperatorHarness(Untyped(value))
    assert "'value' of Untyped" in caught.value.message
    assert "test_api_agent_configuration.py" in (caught.value.where or "")
    assert caught.value.fix


class OwnName(Agent):
    agent_name = "own"

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out((ctx.agent_name, self.agent_name))


class ClassName(OwnName):
    agent_name = None


def test_name_of_an_agent() -> None:
    assert OperatorHarness(OwnName).push(1) == [("own", "own")]
    assert OperatorHarness(ClassName).push(1) == [("ClassName", "ClassName")]
    assert OperatorHarness(ClassName("given")).push(1) == [("given", "given")]
    assert OperatorHarness(OwnName, name="job's").push(1) == [("job's", "job's")]


@each_case("name", ["", " ", 5])
def test_name_that_is_no_text_is_a_named_error(name: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="name of the agent"):
        OperatorHarness(ClassName(name))
