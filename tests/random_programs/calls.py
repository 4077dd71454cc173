"""Functions of durable calls. The answer depends on the arguments; its time is random."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flink_agents import NOT_DONE, DurableCallable, RetryPolicy
from tests.random_programs.world import World, take_time

AT_ONCE = RetryPolicy(initial_interval=0, jitter=0)


class CallFailed(Exception):
    """What a call raises."""


class Stumbled(CallFailed):
    """What an action raises for a reason that nothing records."""


def work(place: str, after: str) -> str:
    """A call that returns."""
    World.effect(place)
    return f"did <{place}>"


async def work_async(place: str, after: str) -> str:
    """The same on the loop."""
    await take_time()
    done = work(place, after)
    await take_time()
    return done


def fail(place: str, after: str) -> None:
    """A call that raises."""
    World.effect(place)
    raise CallFailed(f"failed <{place}>")


async def fail_async(place: str, after: str) -> None:
    """The same on the loop."""
    await take_time()
    fail(place, after)


async def fail_strangely(place: str, after: str) -> None:
    """A call that raises what no record can make again."""

    class Strange(Exception):
        pass

    await take_time()
    World.effect(place)
    raise Strange(f"failed <{place}>")


async def fail_at_first(place: str, after: str) -> str:
    """A call that raises the first time."""
    World.tried[place] += 1
    await take_time()
    if World.tried[place] % 2:
        raise CallFailed(f"failed <{place}>")
    return work(place, after)


async def charge(place: str, after: str, *, idempotency_key: str) -> str:
    """A call of a service that knows keys."""
    await take_time()
    World.service.charge(place, idempotency_key)
    World.effect(place)
    await take_time()
    return f"did <{place}>"


async def register(place: str, after: str, token: str) -> str:
    """A call by which something outside learns what the action made up."""
    World.service.learn(place, token)
    return await work_async(place, after)


async def pass_on(place: str, after: str, token: str) -> str:
    """The same where what was made up may be another one the next time, as long as nothing is recorded."""
    return await work_async(place, f"{after} {token}")


async def change(place: str, after: str, given: dict[str, Any]) -> str:
    """A call that changes its argument."""
    given["changed by"] = given.pop("place")
    return await work_async(place, after)


async def never(place: str, after: str) -> None:
    """A call that does not end."""
    World.effect(place)
    await asyncio.get_running_loop().create_future()


def look_up(place: str, after: str) -> Any:
    """Say what became of a call that may have been made."""
    return f"did <{place}>" if World.effects[place] else NOT_DONE


CALLS: dict[str, Callable[..., Any]] = {
    "def": work,
    "async": work_async,
    "fails": fail,
    "fails async": fail_async,
    "fails strangely": fail_strangely,
    "flaky": DurableCallable(fail_at_first, retry=AT_ONCE),
    "flaky once": fail_at_first,
    "keyed": charge,
    "token": register,
    "number": register,
    "event": register,
    "loose": pass_on,
    "now": pass_on,
    "changing": change,
    "reconciled": DurableCallable(work_async, reconciler=look_up),
    "never": never,
}
