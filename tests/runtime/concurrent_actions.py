"""Actions that do several things at a time, one for each construct of asyncio.

Each takes ``one(name)``, a durable call that ends after a random time, some of them with a failure, and
returns what it saw. What it returns depends on the order in which its calls end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import copy_context
from typing import Any

One = Callable[[str], Awaitable[str]]


async def _branch(one: One, name: str, seen: list[str]) -> str:
    for number in range(2):
        seen.append(await one(f"{name}{number}"))
    return name


async def gather(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    return await asyncio.gather(*(_branch(one, name, seen) for name in "abc")), seen


async def gather_of_context(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    return await ctx.gather(*(_branch(one, name, seen) for name in "abc")), seen


async def gather_in_gather(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    inner = [asyncio.gather(*(_branch(one, f"{outer}{name}", seen) for name in "ab")) for outer in "xy"]
    return await asyncio.gather(*inner), seen


async def task_group(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(_branch(one, name, seen))
    return seen


async def race(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(_branch(one, name, seen)) for name in "abc"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    winners = [task.result() for task in done]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return winners, seen, await one(f"after {winners}")


async def race_to_the_end(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(_branch(one, name, seen)) for name in "abc"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    order = [tasks.index(task) for task in pending]
    await asyncio.wait(pending)
    return len(done), order, seen


async def wait_of_context(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    done, pending = await ctx.wait(
        (_branch(one, name, seen) for name in "abc"), return_when=asyncio.FIRST_COMPLETED
    )
    return [task.result() for task in done], await asyncio.gather(*pending), seen


async def wait_with_timeout(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(_branch(one, name, seen)) for name in "abc"]
    done, pending = await asyncio.wait(tasks, timeout=0.002)
    for task in pending:
        task.cancel()
    return len(done), len(pending), seen, await one(f"after {len(done)}")


async def as_completed(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(_branch(one, name, seen)) for name in "abc"]
    return [await ended for ended in asyncio.as_completed(tasks)], seen


async def as_completed_of_context(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    return [name async for name in ctx.as_completed(_branch(one, name, seen) for name in "abc")], seen


async def event(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    fired = asyncio.Event()

    async def wait(name: str) -> None:
        await fired.wait()
        await _branch(one, name, seen)

    async def fire() -> None:
        seen.append(await one("fire"))
        fired.set()

    await asyncio.gather(wait("a"), fire(), wait("b"))
    return seen


async def queue(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    results: asyncio.Queue[str] = asyncio.Queue(1)

    async def make(name: str) -> None:
        await results.put(await one(name))

    async def take() -> None:
        for _ in range(3):
            item = await results.get()
            seen.append(await one(f"took {item}"))

    await asyncio.gather(take(), *(make(name) for name in "abc"))
    return seen


async def _in_turns(one: One, lock: Any) -> list[str]:
    seen: list[str] = []

    async def hold(name: str) -> None:
        await one(name)
        async with lock:
            seen.append(name)
            await one(f"{name} holds")

    await asyncio.gather(*(hold(name) for name in "abcd"))
    return seen


async def lock(one: One, ctx: Any) -> Any:
    return await _in_turns(one, asyncio.Lock())


async def semaphore(one: One, ctx: Any) -> Any:
    return await _in_turns(one, asyncio.Semaphore(2))


async def condition(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    changed = asyncio.Condition()
    count = 0

    async def wait(least: int) -> None:
        async with changed:
            await changed.wait_for(lambda: count >= least)
        seen.append(await one(f"saw {least}"))

    async def add(name: str) -> None:
        nonlocal count
        await one(name)
        async with changed:
            count += 1
            changed.notify_all()

    await asyncio.gather(wait(2), add("x"), wait(1), add("y"))
    return seen


async def shield(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    inner = asyncio.ensure_future(_branch(one, "a", seen))
    outer = asyncio.create_task(_awaited(asyncio.shield(inner)))
    seen.append(await one("b"))
    outer.cancel()
    return await inner, seen, outer.cancelling()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def timeout(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    try:
        async with asyncio.timeout(0.002):
            await _branch(one, "a", seen)
    except TimeoutError:
        seen.append("late")
    return seen, await one(f"after {seen}")


async def wait_for(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    try:
        await asyncio.wait_for(_branch(one, "a", seen), 0.002)
    except TimeoutError:
        seen.append("late")
    return seen, await one(f"after {seen}")


async def sleep(one: One, ctx: Any) -> Any:
    seen: list[str] = []

    async def tick(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(name)

    await asyncio.gather(tick("x", 0.001), _branch(one, "a", seen), tick("y", 0.002))
    return seen, await one(f"after {seen}")


async def deadline(one: One, ctx: Any) -> Any:
    """Looks at the clock of the loop between its calls."""
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.003
    while loop.time() < until and len(seen) < 5:
        seen.append(await one(f"{len(seen)}"))
    return seen, await one(f"after {len(seen)}")


async def tasks_of_tasks(one: One, ctx: Any) -> Any:
    seen: list[str] = []

    async def grow(name: str, depth: int) -> None:
        await _branch(one, name, seen)
        if depth:
            await asyncio.gather(grow(f"{name}l", depth - 1), grow(f"{name}r", depth - 1))

    await grow("t", 2)
    return seen


async def generator(one: One, ctx: Any) -> Any:
    async def items(name: str) -> AsyncIterator[str]:
        for number in range(2):
            yield await one(f"{name}{number}")

    async def collect(name: str) -> list[str]:
        return [item async for item in items(name)]

    return await asyncio.gather(collect("a"), collect("b"))


async def callbacks(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(_branch(one, name, seen)) for name in "abc"]
    for task in tasks:
        task.add_done_callback(lambda ended: seen.append(f"{ended.result()} ended"))
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    later.add_done_callback(lambda ended: seen.append("later"))
    loop.call_soon(seen.append, "soon")
    loop.call_soon(seen.append, "never").cancel()
    loop.call_later(0.001, later.set_result, None)
    await asyncio.gather(later, *tasks)
    return seen, await one(f"after {seen}")


async def memory_and_chance(one: One, ctx: Any) -> Any:
    async def branch(name: str) -> None:
        for number in range(2):
            await one(f"{name}{number} {ctx.uuid4()} {ctx.random().random()}")
            ctx.short_term_memory.append("order", name)

    await asyncio.gather(*(branch(name) for name in "abc"))
    return ctx.short_term_memory.get("order")


async def limited_tool(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    tool = ctx.get_resource("narrow", "tool")

    async def use(name: str) -> None:
        await one(name)
        seen.append(await tool(name=name))
        await one(f"{name} used")

    await asyncio.gather(*(use(name) for name in "abc"))
    return seen


async def client_of_the_agent(one: One, ctx: Any) -> Any:
    seen: list[str] = []

    async def use(name: str) -> None:
        client = await ctx.client("http")
        seen.append(name + client)
        await one(name)

    await asyncio.gather(use("a"), _branch(one, "b", seen), use("c"))
    return seen


async def generator_left_early(one: One, ctx: Any) -> Any:
    seen: list[str] = []

    async def items(name: str) -> AsyncIterator[str]:
        try:
            yield await one(f"{name}0")
            yield await one(f"{name}1")
        finally:
            seen.append(f"{name} closed")

    async def first(name: str) -> None:
        async for _ in items(name):
            break
        await one(f"{name} left")
        seen.append(name)

    await first("x")
    await asyncio.gather(first("a"), first("b"))
    return seen, await one(f"after {seen}")


async def scheduled_as_from_a_thread(one: One, ctx: Any) -> Any:
    seen: list[str] = []

    async def branch(name: str) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(seen.append, f"{name} soon")
        await _branch(one, name, seen)

    await asyncio.gather(branch("a"), branch("b"))
    return seen, await one(f"after {seen}")


SHARED = copy_context()
"""Of the author's module, for all runs."""


async def shared_context(one: One, ctx: Any) -> Any:
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_branch(one, name, seen), context=SHARED) for name in "abc"]
    return await asyncio.gather(*tasks), seen


CONSTRUCTS = {
    construct.__name__: construct
    for construct in (
        gather,
        gather_of_context,
        gather_in_gather,
        task_group,
        race,
        race_to_the_end,
        wait_of_context,
        wait_with_timeout,
        as_completed,
        as_completed_of_context,
        event,
        queue,
        lock,
        semaphore,
        condition,
        shield,
        timeout,
        wait_for,
        sleep,
        deadline,
        tasks_of_tasks,
        generator,
        callbacks,
        memory_and_chance,
        limited_tool,
        client_of_the_agent,
        generator_left_early,
        scheduled_as_from_a_thread,
        shared_context,
    )
}
