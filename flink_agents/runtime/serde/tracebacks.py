"""Finds the user's own line in a failure."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

from flink_agents import redaction
from flink_agents.api.error_base import AgentsError
from flink_agents.api.places import is_users_code

MAX_TEXT = 10_000
"""How many characters of an exception's text are kept."""

MAX_CAUSES = 20
"""How far the user's line is looked for among causes."""


def place(file: str, line: int, name: str) -> str:
    """Return ``file:line in name``, the file relative to the working directory where it lies below."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line} in {name}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception without secrets, bounded; a text that says so if it has none."""
    try:
        # Before it is cut: a piece of a secret would not be found.
        return redaction.hide(str.__str__(str(error)))[:MAX_TEXT]
    except BaseException as raised:
        # Foreign classes run their own code here.
        return f"<{type(error).__qualname__}: str raised {type(raised).__name__}>"


def users_place(error: BaseException, action: Any) -> str:
    """Return the innermost line of ``error``'s traceback that is the user's; else the action's own.

    Python itself raises some errors in place of others, without their traceback: then it is the line of
    the cause, and of a group, that of its first member which has one. An error of this package may know it.
    """
    ahead: list[Any] = [_stopped(error) or error]
    for _ in range(MAX_CAUSES):
        if not ahead:
            break
        one = ahead.pop(0)
        found = innermost_place(one)
        if found is not None:
            return found
        ahead += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        ahead += [cause for cause in (one.__cause__ or one.__context__,) if cause is not None]
    return (isinstance(error, AgentsError) and error.where) or action.where


def _stopped(error: BaseException) -> BaseException | None:
    """Return the error that Python replaced by ``error``, as no coroutine or generator can raise it."""
    at: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if not isinstance(at, RuntimeError):
            break
        at = at.__cause__
    return at if isinstance(at, StopIteration | StopAsyncIteration) else None


def innermost_place(error: BaseException) -> str | None:
    """Return the innermost line of the user's in an error's traceback; None if it has none."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users_code(frame.f_code):
            found = place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return found


def users_traceback(error: BaseException) -> str:
    """Return ``error``'s traceback as text without secrets, beginning at the user's first frame."""
    start: TracebackType | None = error.__traceback__
    at = start
    while at is not None and not is_users_code(at.tb_frame.f_code):
        at = at.tb_next
    try:
        return redaction.hide("".join(traceback.format_exception(type(error), error, at or start)))
    except Exception:
        # What a foreign class has in place of the attributes of its base may be anything.
        return "".join([*traceback.format_tb(at or start), f"{type(error).__qualname__}: {text_of(error)}\n"])
