"""The code of durable functions: how it is told apart from that of actions, and the threads in which it runs.

A replay does not execute durable functions. So their code must not read or change anything that belongs to
the run: the context of the action rejects such a use.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from flink_agents.api.durable import DurableCallable
from flink_agents.runtime.concurrency.bridge import Errands, Outcome, hand_to, outcome_of
from flink_agents.runtime.concurrency.timeouts import Deadline, timed_out

durable_function: ContextVar[Callable[..., Any] | None] = ContextVar("durable_function", default=None)
"""The durable function, or the reconciler, whose code runs in the context."""


class _Running(threading.local):
    """The durable function that the thread executes. Code may leave its context, but not its thread."""

    function: Callable[..., Any] | None = None


running = _Running()
"""Set together with ``durable_function``, by ``runtime.execution.calls.attempts``."""


def find_durable_function() -> Callable[..., Any] | None:
    """Return the durable function, or the reconciler, whose code runs; None in other code."""
    function = durable_function.get()
    return function if function is not None else running.function


enter = durable_function.set
"""``enter(function)`` marks code in the running context as that of a durable function, or of none."""


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which errors and records call ``function``."""
    return DurableCallable(function).identity


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
