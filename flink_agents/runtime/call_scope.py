"""Tells the code of an action from that of a durable function which the action calls.

A durable function is not executed on replay, so that nothing which belongs to the run may be
read or changed there: the context of the action refuses it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from flink_agents.api.durable import DurableCallable

_function: ContextVar[Callable[..., Any] | None] = ContextVar("durable_function", default=None)


class _Running(threading.local):
    """The durable function whose code the thread executes: code may leave the context, but not that."""

    function: Callable[..., Any] | None = None


_running = _Running()


def inside() -> Callable[..., Any] | None:
    """Return the durable function, or the reconciler, whose code runs; None in other code."""
    function = _function.get()
    return function if function is not None else _running.function


enter = _function.set
"""``enter(function)`` lets code in the running context be that of a durable function, or of none."""


def call_inside(function: Callable[..., Any], call: Callable[[], Any]) -> Any:
    """Call ``call`` on this thread as the code of ``function``."""
    _function.set(function)
    before, _running.function = _running.function, function
    try:
        return call()
    finally:
        _running.function = before
        # Threads of a pool keep what is set. Durable functions call none, so that none was set before.
        _function.set(None)


async def await_inside(function: Callable[..., Any], awaitable: Awaitable[Any]) -> Any:
    """Await ``awaitable`` as the code of ``function``; tasks that it makes inherit that.

    Context variables that it sets are not set for who calls it, as they would not be on replay.
    """
    if not asyncio.iscoroutine(awaitable):
        awaitable = _awaited(awaitable)
    context = copy_context()
    context.run(_function.set, function)
    _function.set(function)
    try:
        return await InContext(context, function, awaitable)
    finally:
        _function.set(None)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class InContext:
    """Awaits a coroutine whose code runs in a context of its own, as that of a durable function.

    Args:
        context: The context.
        function: The function.
        coroutine: The coroutine.
    """

    def __init__(
        self, context: Context, function: Callable[..., Any], coroutine: Coroutine[Any, Any, Any]
    ) -> None:
        self._context = context
        self._function = function
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        """Hand on what it awaits, and to it how that ended."""
        # The watcher finds the coroutine here, by the name of the variable.
        inner, run = self._coroutine, self._context.run
        step = partial(inner.send, None)
        while True:
            before, _running.function = _running.function, self._function
            try:
                awaited = run(step)
            except StopIteration as stop:
                return stop.value
            finally:
                _running.function = before
            try:
                yield awaited
            except BaseException as error:
                step = partial(inner.throw, error)
            else:
                step = partial(inner.send, None)


def name_of(function: Callable[..., Any]) -> str:
    """``function`` for people."""
    return DurableCallable(function).identity
