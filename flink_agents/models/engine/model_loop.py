"""The event loop on which Pydantic AI agents send requests to their models: one for the process.

An agent is a global of a module, with its model and the model's connections. A connection belongs to the loop
that opened it, but each subtask and each attempt of a job has its own loop, and several share a process. So
models run on this loop, and stay open while an attempt that used them exists.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from pydantic_ai.models import Model

from flink_agents.api.common.logs import bounded_logger

T = TypeVar("T")

_log = bounded_logger("flink_agents.models")

_CHECK_INTERVAL_S = 1.0
"""Seconds between checks for ended attempts. There is no notification: their loops are just closed."""


class _ModelLoop:
    """The event loop of models. It runs in a thread from its first use until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if it does not run yet; any thread may call this."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="agent-models", daemon=True).start()
            return self._loop


class _Visits:
    """The models that attempts use, by the loop of the attempt. All of it runs on the loop of models."""

    def __init__(self) -> None:
        self._entered: dict[asyncio.AbstractEventLoop, dict[int, Model]] = {}
        self._entering = asyncio.Lock()
        self._watching = False
        self._leaving: set[asyncio.Task[None]] = set()

    async def enter_models(self, visitor: asyncio.AbstractEventLoop, models: Iterable[Model]) -> None:
        """Open models, and keep them open until the loop of an attempt is closed.

        pydantic-ai counts the users of a model, and closes it after the last one.

        Args:
            visitor: The event loop of the attempt.
            models: The models that it uses, on the loop of models.
        """
        async with self._entering:
            entered = self._entered.setdefault(visitor, {})
            for model in models:
                if id(model) not in entered:
                    await model.__aenter__()
                    entered[id(model)] = model
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._leave_closed_loops)

    def _leave_closed_loops(self) -> None:
        """Leave the models of closed loops, and check again while other loops are open."""
        loop = asyncio.get_running_loop()
        for visitor in [visiting_loop for visiting_loop in self._entered if visiting_loop.is_closed()]:
            for model in self._entered.pop(visitor).values():
                task = loop.create_task(_leave_model(model))
                # The loop itself does not protect its tasks from garbage collection.
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._watching = bool(self._entered)
        if self._watching:
            loop.call_later(_CHECK_INTERVAL_S, self._leave_closed_loops)


async def _leave_model(model: Model) -> None:
    """Close a model, unless it has other users; an error is only logged."""
    try:
        await model.__aexit__(None, None, None)
    except Exception as error:  # the library of a provider can raise anything
        _log.warning("the model %r was not closed: %r", model, error)


_models = _ModelLoop()
_visits = _Visits()


async def on_model_loop(ask: Callable[[], Awaitable[T]], models: Iterable[Model] = ()) -> T:
    """Await ``ask()`` on the loop of models, with the caller's context variables, and return its result.

    If the caller is cancelled, so is the request.

    Args:
        ask: Returns the awaitable to run there.
        models: The models that it uses: they stay open until the caller's loop is closed.
    """
    result: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []
    loop = _models.running_loop()
    context = copy_context()
    visitor = asyncio.get_running_loop()

    async def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            await _visits.enter_models(visitor, models)
            result.set_result(await ask())
        except BaseException as error:  # any error is passed to the caller
            result.set_exception(error)

    def begin() -> None:
        tasks.append(loop.create_task(run(), context=context))

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    loop.call_soon_threadsafe(begin)
    try:
        return await asyncio.wrap_future(result)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(cancel)
        raise
