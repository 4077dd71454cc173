"""The methods of an action's context that await several things concurrently, in an order that replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from flink_agents.api.common.awaited import AwaitedMethods

_T = TypeVar("_T")


class TaskMethods(AwaitedMethods):
    """What asyncio has for tasks, begun and returned in the order of the arguments."""

    async def gather(self, *awaitables: Awaitable[Any]) -> list[Any]:
        """Await all of them concurrently; returns their results in the order of the arguments.

        Unlike ``asyncio.gather``, it waits for the end of all before it raises, so that nothing goes
        on behind the action's back.

        Raises:
            Exception: What the first of them, in the order of the arguments, raised.
        """
        results = await asyncio.gather(*awaitables, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def as_completed(
        self, awaitables: Iterable[Awaitable[_T]], timeout: float | None = None
    ) -> AsyncIterator[_T]:
        """Yield results as ``awaitables`` end: ``async for result in ctx.as_completed(...)``.

        ``asyncio.as_completed`` begins coroutines in the order of a set, which differs from one execution to
        the next, so that a replay could not follow it. This begins them in the order of the argument. What
        has not ended when the caller leaves the loop is cancelled.

        Args:
            awaitables: The awaitables, which run concurrently.
            timeout: Seconds after which it waits no more; None for as long as it takes.

        Raises:
            Exception: What one of them raised, when it is its turn.
            TimeoutError: Some had not ended in time.
        """
        tasks = [asyncio.ensure_future(one) for one in awaitables]
        ended: _Ends[asyncio.Future[_T] | None] = _Ends()
        ended.ends_of = tasks
        for task in tasks:
            task.add_done_callback(ended.put_nowait)
        late = None
        if timeout is not None:
            late = asyncio.get_running_loop().call_later(timeout, ended.put_nowait, None)
        try:
            for _ in tasks:
                task = await ended.get()
                if task is None:
                    raise TimeoutError(f"some had not ended after {timeout:g} s")
                yield task.result()
        finally:
            if late is not None:
                late.cancel()
            for task in tasks:
                task.cancel()

    async def wait(
        self,
        awaitables: Iterable[Awaitable[_T]],
        timeout: float | None = None,
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> tuple[list[asyncio.Future[_T]], list[asyncio.Future[_T]]]:
        """Wait as ``asyncio.wait`` does, also for coroutines; what it returns has the order of the argument.

        Args:
            awaitables: The awaitables, which run concurrently.
            timeout: Seconds after which it waits no more; None for as long as it takes.
            return_when: ``asyncio.FIRST_COMPLETED``, ``FIRST_EXCEPTION`` or ``ALL_COMPLETED``.

        Returns:
            What has ended, and what has not.
        """
        tasks = [asyncio.ensure_future(one) for one in awaitables]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=return_when)
        return [one for one in tasks if one.done()], [one for one in tasks if not one.done()]


class _Ends(asyncio.Queue[_T]):
    """The ends of tasks, in the order in which they come.

    Attributes:
        ends_of: The tasks. Who waits for the queue waits for nothing else.
    """

    ends_of: Sequence[asyncio.Future[Any]] = ()
