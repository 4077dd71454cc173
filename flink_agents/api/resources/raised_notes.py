"""Texts and notes of exceptions: the causes of a group, and the tool that raised one.

Python's own notes (``BaseException.add_note``) travel with an exception: into records of durable calls, into
tracebacks, and into the error that ends the action.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import Any, cast

from flink_agents.api.errors import AgentsError

MOST_CAUSES = 5
"""Maximum number of a group's causes that a text shows."""


def note_once(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it has that note already or cannot have notes."""
    if note in notes_of(error):
        return
    try:
        error.add_note(note)
    except Exception:
        # A class can forbid new attributes, as a frozen dataclass does. The exception matters more.
        return


def attribute_of(error: BaseException, name: str) -> Any:
    """Return an attribute of an exception, or None.

    A class that looks for missing attributes elsewhere, such as in a response, can raise any error.
    """
    try:
        return getattr(error, name, None)
    except Exception:
        return None


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


def add_raised_note(note: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, whose exceptions get a note; a coroutine function remains one.

    Args:
        note: Text of the note, such as the tool's name.
        function: The function, such as that of a tool.
    """

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


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, and in groups inside of it; the exception itself if it is no group."""
    if not _is_group(error):
        yield error
        return
    for member in cast("Any", error).exceptions:
        yield from causes_of(member)


def message_of(error: BaseException, text_of: Callable[[BaseException], str]) -> str:
    """Return the message of an exception. Python's message of a group only has the number of its members.

    Args:
        error: An exception, or a group of exceptions, whose message also shows its first causes.
        text_of: Returns the message of a single exception.
    """
    if not _is_group(error):
        return text_of(error)
    causes = list(islice(causes_of(error), MOST_CAUSES + 1))
    shown = [
        f"{type(cause).__name__}: {cause.message if isinstance(cause, AgentsError) else text_of(cause)}"
        for cause in causes[:MOST_CAUSES]
    ]
    more = ["..."] if len(causes) > MOST_CAUSES else []
    return f"{text_of(error)}: {'; '.join(shown + more)}"
