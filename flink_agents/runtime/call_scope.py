"""Tells the code of an action from that of a durable function which the action calls.

A durable function is not executed on replay, so that nothing which belongs to the run may be
read or changed there: the context of the action refuses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from flink_agents.api.durable import DurableCallable

_function: ContextVar[Callable[..., Any] | None] = ContextVar("durable_function", default=None)

inside = _function.get
"""``inside()`` is the durable function, or the reconciler, whose code runs; None in other code."""


def call_inside(function: Callable[..., Any], call: Callable[[], Any]) -> Any:
    """Call ``call`` on this thread as the code of ``function``."""
    _function.set(function)
    try:
        return call()
    finally:
        # Threads of a pool keep what is set. Durable functions call none, so that none was set before.
        _function.set(None)


async def await_inside(function: Callable[..., Any], awaitable: Awaitable[Any]) -> Any:
    """Await ``awaitable`` as the code of ``function``; tasks that it makes inherit that."""
    _function.set(function)
    try:
        return await awaitable
    finally:
        _function.set(None)


def name_of(function: Callable[..., Any]) -> str:
    """``function`` for people."""
    return DurableCallable(function).identity
