"""Tells the code of an action from that of a durable function which the action calls.

A durable function is not executed on replay, so that nothing which belongs to the run may be
read or changed there: the context of the action refuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from types import CoroutineType, coroutine
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


def await_inside(function: Callable[..., Any], awaitable: Awaitable[Any]) -> Awaitable[Any]:
    """Let ``awaitable`` be awaited as the code of ``function``; tasks that it makes inherit that.

    Context variables that it sets are not set for who calls it, as they would not be on replay.
    """
    if not isinstance(awaitable, CoroutineType):
        awaitable = _awaited(awaitable)
    return in_context(copy_context(), function, awaitable)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@coroutine
def in_context(
    context: Context, function: Callable[..., Any], inner: Coroutine[Any, Any, Any]
) -> Generator[Any, Any, Any]:
    """Await a coroutine whose code runs in a context of its own, as that of a durable function.

    Args:
        context: The context.
        function: The function.
        inner: The coroutine. The watcher finds it here, by this name.
    """
    run, send, value = context.run, inner.send, None
    try:
        awaited = run(_first_step, function, send)
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = run(_step, function, inner.throw, error)
            else:
                awaited = run(_step, function, send, value)
    except StopIteration as stop:
        return stop.value


def _first_step(function: Callable[..., Any], begin: Callable[[Any], Any]) -> Any:
    """Begin a coroutine; the context in which this is called is that of ``function`` from here on."""
    _function.set(function)
    return _step(function, begin, None)


def _step(function: Callable[..., Any], go_on: Callable[[Any], Any], value: Any) -> Any:
    """Let a coroutine go on as the code of ``function``; returns what it awaits next."""
    before, _running.function = _running.function, function
    try:
        return go_on(value)
    finally:
        _running.function = before


def name_of(function: Callable[..., Any]) -> str:
    """``function`` for people."""
    return DurableCallable(function).identity
