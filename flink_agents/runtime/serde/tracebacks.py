"""Finds the user's own line in a failure."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

from flink_agents import redaction
from flink_agents.api.common.places import is_users_code
from flink_agents.api.errors.base import AgentsError
from flink_agents.api.resources.raised_notes import message_of

MAX_TEXT = 10_000
"""The largest length of an exception's message."""

MAX_CAUSES = 20
"""Maximum number of causes that are searched for the user's line."""


def place(file: str, line: int, name: str) -> str:
    """Return ``file:line in name``; the file is relative to the working directory if it is inside."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line} in {name}"


def text_of(error: BaseException) -> str:
    """Return the message of an exception, shortened and without secrets; says so if it has none."""
    try:
        # Before it is cut: a piece of a secret would not be found.
        return redaction.hide_beyond(str.__str__(str(error)), MAX_TEXT)
    except BaseException as raised:
        # Foreign classes run their own code here.
        return f"<{type(error).__qualname__}: str raised {type(raised).__name__}>"


def shown_text(error: BaseException) -> str:
    """Return :func:`text_of` an exception for people: that of a group shows its causes."""
    return message_of(error, text_of)


def users_place(error: BaseException, action: Any) -> str:
    """Return the innermost user line in ``error``'s traceback; else the action's own line.

    Python itself replaces some errors with others, without their traceback: then it is the line of
    the cause, and for a group, of its first member that has one. An error of this package may know its line.
    """
    ahead: list[Any] = [_stopped(error) or error]
    for _ in range(MAX_CAUSES):
        if not ahead:
            break
        exception = ahead.pop(0)
        user_line = innermost_place(exception)
        if user_line is not None:
            return user_line
        ahead += exception.exceptions if isinstance(exception, BaseExceptionGroup) else ()
        ahead += [cause for cause in (exception.__cause__ or exception.__context__,) if cause is not None]
    return (isinstance(error, AgentsError) and error.where) or action.where


def _stopped(error: BaseException) -> BaseException | None:
    """Return the error that Python replaced with ``error``, as no coroutine or generator can raise it."""
    at: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if not isinstance(at, RuntimeError):
            break
        at = at.__cause__
    return at if isinstance(at, StopIteration | StopAsyncIteration) else None


def innermost_place(error: BaseException) -> str | None:
    """Return the innermost user line in an error's traceback; None if it has none."""
    innermost_line = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users_code(frame.f_code):
            innermost_line = place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return innermost_line


def users_traceback(error: BaseException) -> str:
    """Return ``error``'s traceback as a string without secrets, from the user's first frame on."""
    start: TracebackType | None = error.__traceback__
    at = start
    while at is not None and not is_users_code(at.tb_frame.f_code):
        at = at.tb_next
    try:
        return redaction.hide("".join(traceback.format_exception(type(error), error, at or start)))
    except Exception:
        # A foreign class may have anything in place of its base's attributes.
        return "".join([*traceback.format_tb(at or start), f"{type(error).__qualname__}: {text_of(error)}\n"])
