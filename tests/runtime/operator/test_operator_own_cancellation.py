"""Durable functions that raise what ends code, such as ``CancelledError``: a failure, and called once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.testing import OperatorHarness
from tests.runtime.raised_tools import raise_it
from tests.suite.factors import factors
from tests.suite.tables import each

pytestmark = pytest.mark.own_conditions

CALLS: list[str] = []


def raises(what: str) -> str:
    CALLS.append(what)
    raise asyncio.CancelledError("its own")


async def raises_awaited(what: str) -> str:
    CALLS.append(what)
    raise asyncio.CancelledError("its own")


async def raises_later(what: str) -> str:
    CALLS.append(what)
    await asyncio.sleep(0)
    raise asyncio.CancelledError("its own")


async def awaits_what_it_cancels(what: str) -> str:
    CALLS.append(what)
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task
    return what


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(function, event.input))

    return act


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(function, event.input))

    return act


def side_by_side(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        call = ctx.durable_execute_async(function, event.input)
        found = await asyncio.gather(call, asyncio.sleep(0), return_exceptions=True)
        return OutputEvent(output=type(found[0]).__name__)

    return act


@each("function", [raises, raises_awaited, raises_later, awaits_what_it_cancels])
@each("wrap", [in_thread, awaited, side_by_side])
def test_the_function_is_called_once(wrap: Callable[..., Any], function: Callable[..., Any]) -> None:
    CALLS.clear()
    agent = Agent(name="cancels").add_action("act", [InputEvent], wrap(function), on_error="dead-letter")
    with OperatorHarness(agent, crash="everywhere") as job:
        job.push("a")
        assert len(job.outputs) + len(job.dead_letters) == 1
    assert CALLS == ["a"]


def raises_kind(kind: str) -> None:
    CALLS.append(kind)
    raise_it(kind)


async def raises_kind_awaited(kind: str) -> None:
    CALLS.append(kind)
    raise_it(kind)


async def raises_kind_later(kind: str) -> None:
    CALLS.append(kind)
    await asyncio.sleep(0)
    raise_it(kind)


async def raises_kind_in_a_thread(kind: str) -> None:
    CALLS.append(kind)
    await asyncio.to_thread(raise_it, kind)


def caught(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        try:
            return OutputEvent(output=await ctx.durable_execute_async(function, event.input))
        except BaseException as error:
            return OutputEvent(output=type(error).__name__)

    return act


FEW = [
    "StopIteration",
    "GeneratorExit",
    "KeyboardInterrupt",
    "SystemExit",
    "BaseExceptionGroup",
    "group of stops",
    "own BaseException",
]
PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
CONDITIONS: dict[str, dict[str, Any]] = {
    "crash": {"crash": "everywhere"},
    "replay": PLAIN | {"forced_replay": True},
    "restart": PLAIN | {"forced_restart": True},
    "restart with waits": PLAIN | {"forced_restart": True, "config": {"run.may-suspend": "true"}},
}


@factors(
    kind=FEW,
    function=[raises_kind, raises_kind_awaited, raises_kind_later, raises_kind_in_a_thread],
    wrap=[in_thread, awaited, side_by_side, caught],
    condition=list(CONDITIONS),
)
def test_whatever_a_function_raises_is_its_failure_once(
    kind: str, function: Callable[..., Any], wrap: Callable[..., Any], condition: str
) -> None:
    if kind == "GeneratorExit" and function is raises_kind_in_a_thread:
        return  # Python closes what awaits a thread that raised GeneratorExit.
    agent = Agent(name="raises").add_action("act", [InputEvent], wrap(function), on_error="dead-letter")
    found: list[Any] = []
    for given in (PLAIN, CONDITIONS[condition]):
        CALLS.clear()
        with OperatorHarness(agent, **given) as job:
            job.push(kind)
            found.append((job.outputs, [letter.error_type for letter in job.dead_letters]))
        assert CALLS == [kind]
    assert found[0] == found[1]
    assert sum(map(len, found[0])) == 1
