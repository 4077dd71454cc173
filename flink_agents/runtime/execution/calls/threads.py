"""The threads in which durable functions run that are not ``async def``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from flink_agents.runtime.concurrency.bridge import Errands, Outcome, hand_to, outcome_of
from flink_agents.runtime.concurrency.timeouts import Deadline, timed_out


class Threads(Protocol):
    """Calls functions in a thread that may block."""

    async def run(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a thread, and wait until it ends."""
        ...

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """Call ``function`` in a thread, and wait until it ends or ``deadline`` expires."""
        ...


class CallingThread:
    """The thread of an action that makes a durable call. It also executes the function.

    Attributes:
        errands: The functions that the thread executes while it waits for the call.
    """

    def __init__(self) -> None:
        self.errands = Errands()

    async def run(self, function: Callable[[], None]) -> None:
        """Call a function in the waiting thread."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        self.errands.put(partial(_call, function, loop, done))
        (await done).result()

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """Call a function in a new thread. If it takes too long, that thread is left behind."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        threading.Thread(target=_call, args=(function, loop, done), name="agent-call", daemon=True).start()
        await asyncio.wait({done}, timeout=deadline.seconds)
        if not done.done():
            done.cancel()
            raise timed_out(deadline)
        done.result().result()


def _call(
    function: Callable[[], None], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Outcome]
) -> bool:
    """Call ``function``, and set its outcome in ``done``.

    Returns False: the waiting thread may get more to do.
    """
    outcome = outcome_of(function)

    def set_outcome() -> None:
        if not done.done():
            done.set_result(outcome)

    # If the loop is closed, nothing waits for the outcome.
    hand_to(loop, set_outcome)
    return False
