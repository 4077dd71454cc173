"""Tells the code of an action from that of a durable function which the action calls.

A durable function is not executed on replay, so that nothing which belongs to the run may be
read or changed there: the context of the action refuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from flink_agents.api.durable import DurableCallable

durable_function: ContextVar[Callable[..., Any] | None] = ContextVar("durable_function", default=None)
"""The durable function, or the reconciler, whose code runs in the context."""


class _Running(threading.local):
    """The durable function whose code the thread executes: code may leave the context, but not that."""

    function: Callable[..., Any] | None = None


running = _Running()
"""``runtime.durable.attempts`` sets both of them."""


def inside() -> Callable[..., Any] | None:
    """Return the durable function, or the reconciler, whose code runs; None in other code."""
    function = durable_function.get()
    return function if function is not None else running.function


enter = durable_function.set
"""``enter(function)`` lets code in the running context be that of a durable function, or of none."""


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of ``function`` for errors."""
    return DurableCallable(function).identity
