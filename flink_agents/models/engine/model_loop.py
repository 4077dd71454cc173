"""The loop on which agents of pydantic-ai ask their models: one for the process.

An agent stands in a module, with its model and the connections of that. A connection belongs to the loop that
opened it, but each subtask and each attempt of a job has a loop of its own, and several share a process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


class _ModelLoop:
    """Runs in a thread from its first use until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="agent-models", daemon=True).start()
            return self._loop


_models = _ModelLoop()


async def on_model_loop(ask: Callable[[], Awaitable[T]]) -> T:
    """Await ``ask()`` on the loop of models, with the context variables that are set here.

    Where this is cancelled, so is that.
    """
    ended: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []
    loop, context = _models.get(), copy_context()

    async def run() -> None:
        if not ended.set_running_or_notify_cancel():
            return
        try:
            ended.set_result(await ask())
        except BaseException as error:  # whatever it is, who awaits it here gets it
            ended.set_exception(error)

    def begin() -> None:
        tasks.append(loop.create_task(run(), context=context))

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    loop.call_soon_threadsafe(begin)
    try:
        return await asyncio.wrap_future(ended)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(cancel)
        raise
