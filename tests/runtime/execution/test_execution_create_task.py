"""asyncio takes each awaitable of the context wherever it takes a coroutine, in new code and on replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, Prompt, RunnerContext, action, client, prompt
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


class Inner(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> Event:
        return OutputEvent(output=event.input + await ctx.durable_execute_async(plus_one, 0))


def plus_one(number: int) -> int:
    return number + 1


async def plus_one_async(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


AWAITABLES: dict[str, tuple[Callable[[RunnerContext], Coroutine[Any, Any, Any]], object]] = {
    "sleep": (lambda ctx: ctx.sleep(0.02), None),
    "signal": (lambda ctx: ctx.wait_for_signal("go", int), 7),
    "signal with a timeout": (lambda ctx: ctx.wait_for_signal("go", int, timeout=600), 7),
    "approval": (lambda ctx: _approved(ctx.request_approval("pay")), True),
    "def step": (lambda ctx: ctx.durable_execute_async(plus_one, 1), 2),
    "async step": (lambda ctx: ctx.durable_execute_async(plus_one_async, 1, timeout=30), 2),
    "sub-agent": (lambda ctx: ctx.call_agent(Inner(), 1), 2),
    "sub-agent, all": (lambda ctx: ctx.call_agent_all(Inner(), 1), [2]),
    "sub-agent, traced": (lambda ctx: _output(ctx.call_agent_traced(Inner(), 1)), 2),
    "gather": (lambda ctx: ctx.gather(ctx.durable_execute_async(plus_one, 1)), [2]),
    "join": (lambda ctx: ctx.join(ctx.durable_execute_async(plus_one, 1), ctx.sleep(0.02)), [2, None]),
    "client": (lambda ctx: ctx.client("session"), "open"),
    "prompt": (lambda ctx: _text(ctx.prompt("greet", name="Ada")), "Hello Ada"),
}
"""The calls, and their results."""


async def _approved(outcome: Awaitable[Any]) -> bool:
    return (await outcome).approved


async def _output(answer: Awaitable[Any]) -> Any:
    return (await answer).output


async def _text(filled: Coroutine[Any, Any, Any]) -> str:
    (message,) = await asyncio.create_task(filled)
    return message.content


async def in_group(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(awaited)
        other_task = group.create_task(ctx.durable_execute_async(plus_one, 10))
    assert other_task.result() == 11
    return task.result()


async def waited(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    (task,), _ = await asyncio.wait({asyncio.create_task(awaited)})
    return task.result()


async def completed(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    async for result in ctx.as_completed([awaited]):
        return result


async def gathered(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    return (await asyncio.gather(awaited, ctx.durable_execute_async(plus_one, 10)))[0]


async def in_time(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    async with asyncio.timeout(600):
        return await awaited


async def listed(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    (task,), _ = await ctx.wait([awaited])
    return task.result()


async def created_by_loop(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    return await asyncio.get_running_loop().create_task(awaited, name="a task")


async def passed(awaited: Coroutine[Any, Any, Any], ctx: RunnerContext) -> Any:
    return await awaited


ACCEPTORS: dict[str, Callable[[Coroutine[Any, Any, Any], RunnerContext], Awaitable[Any]]] = {
    "await": passed,
    "create_task": lambda awaited, ctx: asyncio.create_task(awaited),
    "loop.create_task": created_by_loop,
    "TaskGroup": in_group,
    "gather": gathered,
    "wait_for": lambda awaited, ctx: asyncio.wait_for(awaited, 600),
    "shield": lambda awaited, ctx: asyncio.shield(awaited),
    "ensure_future": lambda awaited, ctx: asyncio.ensure_future(awaited),
    "wait": waited,
    "timeout": in_time,
    "ctx.as_completed": completed,
    "ctx.wait": listed,
}


def agent_of(awaitable: str, acceptor: str) -> Agent:
    class Waiting(Agent):
        @client
        async def session(self) -> AsyncIterator[str]:
            yield "open"

        @prompt
        def greet(self) -> Prompt:
            return Prompt.from_text("Hello {name}")

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> Event:
            awaited = AWAITABLES[awaitable][0](ctx)
            assert asyncio.iscoroutine(awaited)
            return OutputEvent(output=await ACCEPTORS[acceptor](awaited, ctx))

    return Waiting()


CASES = [
    (awaitable, acceptor)
    for awaitable in AWAITABLES
    for acceptor in ACCEPTORS
    if acceptor in ("create_task", "TaskGroup")
    or (awaitable == "sleep" and acceptor not in ("wait_for", "timeout"))
    or awaitable == "def step"
]


@each_case(("awaitable", "acceptor"), CASES)
def test_asyncio_takes_each_awaitable_of_the_context(awaitable: str, acceptor: str) -> None:
    expected = AWAITABLES[awaitable][1]
    options: Any = {"hang_after": 10}
    if acceptor == "create_task":
        options["crash"] = "everywhere"
    with OperatorHarness(agent_of(awaitable, acceptor), **options) as harness:
        outputs = harness.push(1)
        if awaitable.startswith("signal"):
            outputs = harness.signal(0, "go", 7)
        elif awaitable == "approval":
            outputs = harness.approve(harness.approvals[-1])
        elif not outputs:
            outputs = harness.advance_time(1000)
        assert outputs == [expected]


async def cancel(ctx: RunnerContext) -> str:
    task = asyncio.create_task(ctx.wait_for_signal("never"))
    await asyncio.sleep(0)
    task.cancel()
    (error,) = await asyncio.gather(task, return_exceptions=True)
    return type(error).__name__


async def cancel_before_it_starts(ctx: RunnerContext) -> str:
    task = asyncio.create_task(ctx.sleep(600))
    task.cancel()
    (error,) = await asyncio.gather(task, return_exceptions=True)
    return type(error).__name__


async def close(ctx: RunnerContext) -> str:
    ctx.sleep(600).close()
    ctx.wait_for_signal("never").close()
    return "CancelledError"


async def first_of_two(ctx: RunnerContext) -> str:
    tasks = [asyncio.create_task(ctx.sleep(600)), asyncio.create_task(ctx.durable_execute_async(plus_one, 1))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert tasks[1].result() == 2
    tasks[0].cancel()
    (error,) = await asyncio.gather(tasks[0], return_exceptions=True)
    return type(error).__name__


async def too_late(ctx: RunnerContext) -> str:
    try:
        await asyncio.wait_for(ctx.wait_for_signal("never"), 0.01)
    except TimeoutError:
        return "CancelledError"
    return "no error"


@each_case("use", (too_late, cancel, cancel_before_it_starts, close, first_of_two))
def test_a_wait_in_a_task_can_be_cancelled(use: Callable[[RunnerContext], Awaitable[str]]) -> None:
    class Cancelling(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> Event:
            return OutputEvent(output=await use(ctx))

    with OperatorHarness(Cancelling(), crash="everywhere") as harness:
        assert harness.push(1) == ["CancelledError"]


def test_a_wait_that_is_neither_awaited_nor_closed_is_an_error() -> None:
    class Forgetting(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> None:
            forgotten = ctx.sleep(600)
            del forgotten

    with (
        OperatorHarness(Forgetting()) as harness,
        pytest.raises(ActionFailedError, match="without awaiting"),
    ):
        harness.push(1)
