"""Executes the operations of a program that create tasks or timers, with the constructs of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any

from flink_agents import Agent, InputEvent, OutputEvent, RetryPolicy, RunnerContext
from flink_agents.api.errors import ActionTimeoutError
from tests.random_programs.calls import AT_ONCE, CallFailed, Stumbled
from tests.random_programs.execution import CONSTRUCTS, Construct, Execution, expect, name_of, short
from tests.random_programs.programs import Block

Branches = list[Block]


def construct(name: str) -> Any:
    """Register how an operation is executed."""

    def register(function: Construct) -> Construct:
        CONSTRUCTS[name] = function
        return function

    return register


def coroutines(x: Execution, here: str, branches: Branches) -> list[Coroutine[Any, Any, Any]]:
    """One coroutine for each branch."""
    return [x.block(f"{here}/{number}", branch) for number, branch in enumerate(branches)]


def tasks_of(x: Execution, here: str, branches: Branches) -> list[asyncio.Task[Any]]:
    """One task for each branch."""
    return [asyncio.ensure_future(coroutine) for coroutine in coroutines(x, here, branches)]


def outcome(task: asyncio.Future[Any]) -> Any:
    """What a task that has ended came to."""
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    if error is None:
        return task.result()
    expect(error)
    return name_of(error)


async def settled(x: Execution, tasks: list[asyncio.Task[Any]], how: str) -> list[Any]:
    """Cancel or await what goes on; returns what all tasks came to."""
    if how == "cancel":
        for task in tasks:
            task.cancel()
    await asyncio.wait(tasks)
    return [outcome(task) for task in tasks]


# -- whose result does not depend on which branch is faster ------------------------------------


@construct("gather")
async def gather(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    return await asyncio.gather(*coroutines(x, here, branches))


@construct("ctx gather")
@construct("ctx gather failing")
async def ctx_gather(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    return await x.ctx.gather(*coroutines(x, here, branches))


@construct("returning")
async def returning(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    results = await asyncio.gather(*coroutines(x, here, branches), return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            expect(result)
    return [
        name_of(branch_result) if isinstance(branch_result, BaseException) else branch_result
        for branch_result in results
    ]


@construct("group")
@construct("group failing")
async def group(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    async with asyncio.TaskGroup() as tasks:
        created_tasks = [tasks.create_task(coroutine) for coroutine in coroutines(x, here, branches)]
    return [task.result() for task in created_tasks]


@construct("wait all")
async def wait_all(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    tasks = tasks_of(x, here, branches)
    await asyncio.wait(tasks)
    return [outcome(task) for task in tasks]


@construct("tasks")
async def tasks_by_tasks(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    """Tasks that are made by tasks, and awaited by others."""

    async def make(one: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        await asyncio.sleep(0)
        return asyncio.ensure_future(one)

    makers = [asyncio.ensure_future(make(coroutine)) for coroutine in coroutines(x, here, branches)]
    created_tasks = [await maker for maker in makers]
    return [await task for task in created_tasks]


@construct("shield")
async def shield(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    (task,) = tasks_of(x, here, branches)
    return await asyncio.shield(task)


@construct("generator")
async def generator(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    async def results() -> AsyncIterator[Any]:
        for number, branch in enumerate(branches):
            yield await x.block(f"{here}/{number}", branch)

    return [result async for result in results()]


@construct("ask")
async def ask(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    """Branches that are actions of an asked agent."""
    return await x.ctx.gather(*asks(x, here, branches, settings[-1]))


def asks(x: Execution, here: str, branches: Branches, kind: str) -> list[Awaitable[Any]]:
    """One ask for each branch."""
    return [
        x.ctx.call_agent(ASKED[kind][x.depth], (x, f"{here}/{number}", branch))
        for number, branch in enumerate(branches)
    ]


async def answer(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    """Execute a branch as the action of an asked agent."""
    x, here, branch = event.input
    x = x.within(ctx, event, here)
    try:
        result = await x.block(here, branch)
    except (Stumbled, asyncio.CancelledError):
        # The next attempt may go on behind it: it has not ended as far as records say.
        x.note("given up")
        raise
    except Exception as error:
        x.note("raised", name_of(error))
        raise
    x.note("end")
    return OutputEvent(output=result)


async def pass_question(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    """Have another agent answer, between two steps of its own."""
    x, here, branch = event.input
    x = x.within(ctx, event, f"{here} between")
    try:
        first_result = await x.call(f"{here}-before", "async", True, [])
        kind = "retried" if ctx.agent_name.startswith("between retried") else "plain"
        (result,) = await x.ctx.gather(*asks(x, here, [branch], kind))
        after = await x.call(f"{here}-after", "async", True, [result])
    except asyncio.CancelledError:
        x.note("given up")
        raise
    except Exception as error:
        x.note("raised", name_of(error))
        raise
    x.note("end")
    return OutputEvent(output=[first_result, result, after])


class AskedAgent(Agent):
    """Executes branches of programs."""

    side_outputs = {"audit": tuple}


AGAIN = RetryPolicy(initial_interval=0, jitter=0, max_attempts=30, retry_on=(CallFailed, ActionTimeoutError))

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (answer, {}),
    "retried": (answer, {"retry": AT_ONCE}),
    "timed": (answer, {"retry": AGAIN, "timeout": 0.5}),
    "between": (pass_question, {}),
    "between retried": (pass_question, {"retry": AT_ONCE}),
}

ASKED = {
    kind: [
        AskedAgent(name=f"{kind}{depth}").add_action("answer", [InputEvent], function, **settings)
        for depth in range(16)
    ]
    for kind, (function, settings) in KINDS.items()
}
"""One for each depth: an agent cannot ask itself."""


# -- timers and cancellations that come to the same each time -----------------------------------


@construct("expires")
async def expires(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    try:
        async with asyncio.timeout(0.001):
            await x.call(f"{here}/never", "never", False, [])
    except TimeoutError:
        x.note("expired", here)
    return await x.block(f"{here}/0", branches[0])


@construct("in time")
async def in_time(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    async with asyncio.timeout(300):
        return await asyncio.wait_for(x.block(f"{here}/0", branches[0]), 300)


@construct("cancel never")
async def cancel_never(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    task = asyncio.ensure_future(x.call(f"{here}/never", "never", False, []))
    result = await asyncio.gather(*coroutines(x, here, branches))
    task.cancel()
    await asyncio.wait({task})
    return [result, outcome(task)]


# -- what decides about an order --------------------------------------------------------------


async def one_more(x: Execution, here: str, seen: Any) -> Any:
    """A call whose arguments say what was seen before it."""
    return await x.call(here, "async", True, [seen])


@construct("lock")
@construct("semaphore")
async def locked(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    lock = asyncio.Semaphore(settings[0]) if settings else asyncio.Lock()
    order: list[int] = []

    async def hold(number: int, one: Coroutine[Any, Any, Any]) -> None:
        await one
        async with lock:
            order.append(number)
            await one_more(x, f"{here}/{number}+", list(order))

    await asyncio.gather(
        *(hold(*numbered_branch) for numbered_branch in enumerate(coroutines(x, here, branches)))
    )
    return order


@construct("event")
async def event(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    fired, order = asyncio.Event(), list[int]()

    async def fire(one: Coroutine[Any, Any, Any]) -> None:
        try:
            await one
        finally:
            fired.set()

    async def follow(number: int, one: Coroutine[Any, Any, Any]) -> None:
        await fired.wait()
        order.append(number)
        await one
        await one_more(x, f"{here}/{number}+", list(order))

    first, *follower_coroutines = coroutines(x, here, branches)
    await asyncio.gather(
        fire(first), *(follow(*numbered_branch) for numbered_branch in enumerate(follower_coroutines))
    )
    return order


@construct("condition")
async def condition(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    changed, order = asyncio.Condition(), list[int]()

    async def work(number: int, one: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(CallFailed):
            await one
        async with changed:
            order.append(number)
            changed.notify_all()

    async def watch(count: int) -> Any:
        async with changed:
            await changed.wait_for(lambda: len(order) >= count)
        return await one_more(x, f"{here}/{count}-", list(order))

    workers = (work(*numbered_branch) for numbered_branch in enumerate(coroutines(x, here, branches)))
    await asyncio.gather(watch(1), watch(2), *workers)
    return order


@construct("queue")
async def queue(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    items: asyncio.Queue[int] = asyncio.Queue(1)
    order: list[int] = []

    async def put(number: int, one: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(CallFailed):
            await one
        await items.put(number)

    async def take() -> None:
        for _ in branches:
            order.append(await items.get())
            await one_more(x, f"{here}/{len(order)}-", list(order))

    await asyncio.gather(
        take(), *(put(*numbered_branch) for numbered_branch in enumerate(coroutines(x, here, branches)))
    )
    return order


@construct("barrier")
async def barrier(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    barrier, order = asyncio.Barrier(len(branches)), list[int]()

    async def come(number: int, one: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(CallFailed):
            await one
        await barrier.wait()
        order.append(number)
        await one_more(x, f"{here}/{number}+", list(order))

    await asyncio.gather(
        *(come(*numbered_branch) for numbered_branch in enumerate(coroutines(x, here, branches)))
    )
    return order


# -- races ---------------------------------------------------------------------------------------


@construct("first")
async def first(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    tasks = tasks_of(x, here, branches)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    won = [number for number, task in enumerate(tasks) if task in done]
    x.note("won", here, won)
    after = await one_more(x, f"{here}+", won)
    return [won, after, *await settled(x, tasks, settings[0])]


@construct("first exception")
async def first_exception(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    tasks = tasks_of(x, here, branches)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    ended = [number for number, task in enumerate(tasks) if task in done]
    x.note("ended", here, ended)
    return [ended, *await settled(x, tasks, settings[0])]


@construct("wait timeout")
async def wait_timeout(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    tasks = tasks_of(x, here, branches)
    done, _ = await asyncio.wait(tasks, timeout=settings[0])
    ended = [number for number, task in enumerate(tasks) if task in done]
    x.note("in time", here, ended)
    after = await one_more(x, f"{here}+", ended)
    return [ended, after, *await settled(x, tasks, settings[1])]


@construct("join")
async def join(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    joined = await x.ctx.join(*asks(x, here, branches, settings[-1]), timeout=settings[0])
    for result in joined:
        if isinstance(result, BaseException):
            expect(result)
    results = [
        name_of(branch_result) if isinstance(branch_result, BaseException) else branch_result
        for branch_result in joined
    ]
    x.note("joined", here, [short(branch_result) for branch_result in results])
    return [results, await one_more(x, f"{here}+", results)]


@construct("as completed")
async def as_completed(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    order: list[Any] = []
    for number, future in enumerate(asyncio.as_completed(tasks_of(x, here, branches))):
        try:
            order.append(short(await future))
        except Exception as error:
            expect(error)
            order.append(name_of(error))
        await one_more(x, f"{here}/{number}+", order)
    x.note("order", here, list(order))
    return order


@construct("set order")
async def set_order(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    tasks = tasks_of(x, here, branches)
    done, _ = await asyncio.wait(tasks)
    order = [tasks.index(task) for task in done]
    x.note("order", here, order)
    return [order, await one_more(x, f"{here}+", order)]


@construct("cancel")
async def cancel(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    loser, *other_tasks = tasks_of(x, here, branches)
    results = [*await asyncio.gather(*other_tasks, return_exceptions=True)]
    loser.cancel()
    await asyncio.wait({loser})
    return [
        *(name_of(result) if isinstance(result, BaseException) else result for result in results),
        outcome(loser),
    ]


@construct("left to others")
async def left_to_others(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    """A branch that is cancelled makes a call before it gives in."""

    async def stubborn(one: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await one
        except asyncio.CancelledError:
            x.note("gives in", here)
            await one_more(x, f"{here}-", "cancelled")
            raise

    loser_of, *other_coroutines = coroutines(x, here, branches)
    loser = asyncio.ensure_future(stubborn(loser_of))
    results = await asyncio.gather(*other_coroutines, return_exceptions=True)
    loser.cancel()
    await asyncio.wait({loser})
    return [
        *(name_of(result) if isinstance(result, BaseException) else result for result in results),
        outcome(loser),
    ]


@construct("timeout")
async def timeout(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    try:
        async with asyncio.timeout(settings[0]):
            return await x.block(f"{here}/0", branches[0])
    except TimeoutError:
        x.note("expired", here)
        return await one_more(x, f"{here}+", "expired")


@construct("wait for")
async def wait_for(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    try:
        return await asyncio.wait_for(x.block(f"{here}/0", branches[0]), settings[0])
    except TimeoutError:
        x.note("expired", here)
        return await one_more(x, f"{here}+", "expired")


@construct("shield in time")
async def shield_in_time(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    (task,) = tasks_of(x, here, branches)
    try:
        return await asyncio.wait_for(asyncio.shield(task), 0.0005)
    except TimeoutError:
        x.note("expired", here)
    await asyncio.wait({task})
    return outcome(task)


# -- failures ------------------------------------------------------------------------------------


@construct("try")
async def try_(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    try:
        return await x.block(f"{here}/0", branches[0])
    except Exception as error:
        expect(error)
        x.note("caught", here, name_of(error))
        return name_of(error)


@construct("reraise")
async def reraise(x: Execution, here: str, branches: Branches, settings: list[Any]) -> Any:
    try:
        return await x.block(f"{here}/0", branches[0])
    except Exception as error:
        expect(error)
        x.note("caught", here, name_of(error))
        await one_more(x, f"{here}+", name_of(error))
        raise
