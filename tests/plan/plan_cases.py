"""Helpers for the tests of plans."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from plan_shop import OrderPlaced

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.errors.base import code_line
from flink_agents.plan import compile_agent


class Place(NamedTuple):
    """What an error points to: the text of the line, and the name in its code."""

    line: str
    name: str


def place(error: AgentDefinitionError) -> Place:
    """Where ``error`` points to; its text begins with that place."""
    assert error.where is not None
    assert str(error).startswith(f"{error.where}: ")
    file, _, position = error.where.partition(":")
    line, _, name = position.partition(" in ")
    return Place(linecache.getline(file, int(line)).strip(), name.rpartition("<locals>.")[2])


def failure(make: Callable[[], Any]) -> AgentDefinitionError:
    """The error that ``make``, or compiling what it returns, raises."""
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(make())
    text = str(caught.value)
    assert text.endswith(code_line(caught.value.code))
    assert caught.value.fix and f"  fix: {caught.value.fix}\n" in text
    assert "object at 0x" not in text
    return caught.value


def answer(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    """An action that needs nothing else."""
    return OutputEvent(output=event.input)


Make = Callable[[], Any]


class Base(Agent):
    """An agent that can work: the mistakes are in its subclasses."""

    @action(InputEvent)
    def read(self, event: InputEvent, ctx: RunnerContext) -> OrderPlaced:
        return OrderPlaced(order_id="1", total=1)


class Other:
    pass


def build(**options: Any) -> Agent:
    return Agent(name="Built").add_action("answer", InputEvent, answer, **options)
