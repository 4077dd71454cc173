"""Durable functions that raise what ends code, such as ``CancelledError``: a failure, and called once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, DurableCallable, InputEvent, OutputEvent
from flink_agents.testing import OperatorHarness
from tests.runtime.raised_tools import raise_it
from tests.suite.factors import factors
from tests.suite.tables import each_case

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


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancels_itself(what: str) -> str:
    CALLS.append(what)
    own_task().cancel()
    await asyncio.sleep(0)
    return what


async def cancels_itself_twice(what: str) -> str:
    CALLS.append(what)
    own_task().cancel()
    own_task().cancel("again")
    await asyncio.sleep(0)
    return what


async def cancels_itself_after_a_wait(what: str) -> str:
    await asyncio.sleep(0)
    return await cancels_itself(what)


async def cancels_itself_at_its_end(what: str) -> str:
    CALLS.append(what)
    own_task().cancel()
    return what


async def cancels_itself_and_catches_it(what: str) -> str:
    try:
        return await cancels_itself(what)
    except asyncio.CancelledError:
        return what


async def cancels_itself_and_raises(what: str) -> str:
    CALLS.append(what)
    own_task().cancel()
    raise ValueError(what)


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
        results = await asyncio.gather(call, asyncio.sleep(0), return_exceptions=True)
        return OutputEvent(output=type(results[0]).__name__)

    return act


def caught_and_continued(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        ends: list[str] = []
        for number in range(2):
            try:
                ends.append(await ctx.durable_execute_async(function, event.input, name=str(number)))
            except BaseException as error:
                ends.append(type(error).__name__)
            # The action is not cancelled: it can await what it likes, and its own limits work.
            await asyncio.sleep(0)
            ends.append(await ctx.durable_execute_async(later, number))
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(60)
            except TimeoutError:
                ends.append("in time")
        return OutputEvent(output=ends)

    return act


async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number


CANCELLING = [
    cancels_itself,
    cancels_itself_twice,
    cancels_itself_after_a_wait,
    cancels_itself_at_its_end,
    cancels_itself_and_catches_it,
    cancels_itself_and_raises,
]


@factors(strength=1, function=CANCELLING, settings=[{}, {"timeout": 60}])
def test_an_action_goes_on_after_a_function_that_cancelled_its_task(
    settings: dict[str, Any], function: Callable[..., Any]
) -> None:
    CALLS.clear()
    step = DurableCallable(function, **settings)
    agent = Agent(name="cancels").add_action("act", [InputEvent], caught_and_continued(step))
    returns = function in (cancels_itself_at_its_end, cancels_itself_and_catches_it)
    end = "a" if returns else "ValueError" if "raises" in function.__name__ else "RecordedFailureError"
    with OperatorHarness(agent, crash="everywhere") as job:
        assert job.push("a") == [[end, 0, "in time", end, 1, "in time"]]
        job.push("b")
    assert CALLS == ["a", "a", "b", "b"]


@each_case("function", [raises, raises_awaited, raises_later, awaits_what_it_cancels, *CANCELLING])
@each_case("wrap", [in_thread, awaited, side_by_side])
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
    agent = Agent(name="raises").add_action("act", [InputEvent], wrap(function), on_error="dead-letter")
    outcomes: list[Any] = []
    for options in (PLAIN, CONDITIONS[condition]):
        CALLS.clear()
        with OperatorHarness(agent, **options) as job:
            job.push(kind)
            outcomes.append((job.outputs, [letter.error_type for letter in job.dead_letters]))
        assert CALLS == [kind]
    assert outcomes[0] == outcomes[1]
    assert sum(map(len, outcomes[0])) == 1
