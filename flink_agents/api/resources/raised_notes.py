"""Notes on exceptions: the tool that raised one.

Python's own notes (``BaseException.add_note``) travel with an exception: into records of durable calls, into
tracebacks, and into the error that ends the action.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, cast


def note_once(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it has that note already or cannot have notes."""
    if note in notes_of(error):
        return
    try:
        error.add_note(note)
    except Exception:
        # A class can forbid new attributes, as a frozen dataclass does. The exception matters more.
        return


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an exception, the oldest first."""
    try:
        notes = object.__getattribute__(error, "__notes__")
    except BaseException:
        # A property of a foreign class runs its own code.
        return []
    if not isinstance(notes, list | tuple):
        return []
    return [note for note in cast("list[object]", notes) if isinstance(note, str)]


def noting(note: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with a note on its exceptions; a coroutine function remains one."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_once(error, note)
            raise

    @wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            note_once(error, note)
            raise

    return call_async if inspect.iscoroutinefunction(function) else call
