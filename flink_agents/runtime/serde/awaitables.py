"""Detects values that should have been awaited."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

AWAIT_IT = "write await before the call that returned it"
"""The fix, for errors about such a value."""


def is_awaitable(value: object) -> bool:
    """Return True if ``value`` is a coroutine, a future or anything else that has to be awaited."""
    return hasattr(type(value), "__await__")


def awaitable_text(value: object) -> str:
    """Describe an awaitable: its kind, and the function that made it."""
    frame: Any = getattr(value, "cr_frame", None)
    owner = frame.f_locals.get("self") if frame is not None else None
    # Durable steps and waits know the user's function, which the name of a coroutine or class does not show.
    described = getattr(owner if owner is not None else value, "awaited_as", None)
    name = getattr(value, "__qualname__", None)
    return described or f"{type(value).__name__}{f' {name}' if name else ''}"


def close_unawaited(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine and the coroutines among its arguments, so that Python does not warn of them."""
    frame: Any = getattr(coroutine, "cr_frame", None)
    for value in (coroutine, *([] if frame is None else frame.f_locals.values())):
        if inspect.iscoroutine(value):
            value.close()


def shows_forgotten_await(error: BaseException) -> bool:
    """Return True if Python raised ``error`` because a coroutine was used instead of its result."""
    return isinstance(error, TypeError | AttributeError) and "'coroutine'" in str(error)
