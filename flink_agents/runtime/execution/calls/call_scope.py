"""Distinguishes the code of an action from that of a durable function that the action calls.

A replay does not execute durable functions. So their code must not read or change anything that belongs to
the run: the context of the action rejects such a use.
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
    """Return the name of ``function`` for errors."""
    return DurableCallable(function).identity
