"""Methods of an action's context that await several awaitables concurrently, in an order that replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.context.waits import timeout_of

_T = TypeVar("_T")


class TaskMethods(AwaitedMethods):
    """Task functions as in asyncio, with starts and results in the order of the arguments."""

    async def gather(self, *awaitables: Awaitable[Any]) -> list[Any]:
        """Await several awaitables concurrently; return their results in the order of the arguments.

        Unlike ``asyncio.gather``, it waits until all have ended before it raises, so that none continues in
        the background.

        Raises:
            Exception: The error of the first failed one, in the order of the arguments.
        """
        results = await asyncio.gather(*awaitables, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def as_completed(
        self, awaitables: Iterable[Awaitable[_T]], timeout: float | timedelta | None = None
    ) -> AsyncIterator[_T]:
        """Yield results as ``awaitables`` end: ``async for result in ctx.as_completed(...)``.

        ``asyncio.as_completed`` starts coroutines in the order of a set, which differs between executions, so
        a replay could not follow it. This method starts them in the order of the argument. When the caller
        leaves the loop, unfinished ones are cancelled.

        Args:
            awaitables: The awaitables, which run concurrently.
            timeout: Timeout in seconds, or as a timedelta; None for no limit.

        Raises:
            InvalidDurationError: The timeout is invalid.
            Exception: One of them raised it; it is raised when its turn comes.
            TimeoutError: Some did not end in time.
        """
        seconds = timeout_of("ctx.as_completed", timeout)
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        # None stands for the timeout.
        ended_tasks: _EndedTasks[asyncio.Future[_T] | None] = _EndedTasks()
        ended_tasks.ends_of = tasks
        for task in tasks:
            task.add_done_callback(ended_tasks.put_nowait)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, ended_tasks.put_nowait, None)
        try:
            for _ in tasks:
                task = await ended_tasks.get()
                if task is None:
                    raise TimeoutError(f"some were not finished after {seconds:g} s")
                yield task.result()
        finally:
            if timer is not None:
                timer.cancel()
            for task in tasks:
                task.cancel()

    async def wait(
        self,
        awaitables: Iterable[Awaitable[_T]],
        timeout: float | timedelta | None = None,
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> tuple[list[asyncio.Future[_T]], list[asyncio.Future[_T]]]:
        """Wait as ``asyncio.wait`` does, also for coroutines; results have the order of the argument.

        Args:
            awaitables: The awaitables, which run concurrently.
            timeout: Timeout in seconds, or as a timedelta; None for no limit.
            return_when: ``asyncio.FIRST_COMPLETED``, ``FIRST_EXCEPTION`` or ``ALL_COMPLETED``.

        Returns:
            The finished futures, and the unfinished ones.

        Raises:
            InvalidDurationError: The timeout is invalid.
        """
        seconds = timeout_of("ctx.wait", timeout)
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=return_when)
        return [task for task in tasks if task.done()], [task for task in tasks if not task.done()]


class _EndedTasks(asyncio.Queue[_T]):
    """The ended tasks, in the order of their ends.

    Attributes:
        ends_of: All tasks that will be put. The runtime reads it to see what a waiter on the queue waits for.
    """

    ends_of: Sequence[asyncio.Future[Any]] = ()
