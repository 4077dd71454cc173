"""Parametrized models in a job: functions write the parametrizations, so no worker has them at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, HttpUrl, SecretStr

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    Event,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)

pytestmark = pytest.mark.minicluster

T = TypeVar("T")


class Order(BaseModel):
    number: int
    url: HttpUrl = HttpUrl("http://a.b")
    secret: SecretStr = SecretStr("a")


class Page(BaseModel, Generic[T]):
    items: list[T]


class Wrapped(Event, Generic[T]):
    item: T


def fetch(number: int) -> Any:
    return Page[Order](items=[Order(number=number)])


class Pages(Agent):
    side_outputs: Any = {"side": object}

    @action(InputEvent)
    async def start(self, event: InputEvent[int], ctx: RunnerContext) -> None:
        page = await ctx.durable_execute_async(fetch, event.input)
        ctx.short_term_memory.set("page", page)
        ctx.emit_to("side", page)
        ctx.send_event(Wrapped[Page[Order]](item=page))

    @action(Wrapped[Page[Order]])
    async def take(self, event: Wrapped[Page[Order]], ctx: RunnerContext) -> OutputEvent:
        assert ctx.short_term_memory.get("page") == event.item
        return OutputEvent(output=event.item)


@pytest.mark.nightly
def test_parametrized_models_travel_through_a_job(
    agents_environment: Callable[..., AgentsExecutionEnvironment],
) -> None:
    env = agents_environment()
    result = env.from_list([1, 2], lambda number: number).apply(Pages)
    outputs = result.to_list()
    side = env.collect(result.side_output("side"))
    env.execute()
    expected = [fetch(1), fetch(2)]
    for values in (outputs, side):
        assert sorted(values, key=lambda page: page.items[0].number) == expected
        assert {type(value) for value in values} == {Page[Order]}
