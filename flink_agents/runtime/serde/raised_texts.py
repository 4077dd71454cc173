"""Texts of errors: their message, their place in the user's code, and an explanation with a fix.

All of this happens after code has failed: nothing is checked when events are made or memory is used.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import traceback
from collections.abc import Coroutine, Iterator
from itertools import chain, islice
from types import TracebackType
from typing import Any

from pydantic import BaseModel, ValidationError

from flink_agents import redaction
from flink_agents.api.common.places import is_users_code
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable.checks import IDEMPOTENCY_KEY, misspelt_key
from flink_agents.api.errors import ActionFailedError, AgentsError
from flink_agents.api.errors.base import suggest
from flink_agents.api.events import Event, InputEvent
from flink_agents.api.resources.memory import MemoryObject
from flink_agents.api.resources.raised_notes import MOST_CAUSES, causes_of, message_of, notes_of
from flink_agents.runtime.serde.typenames import shorten

MAX_TEXT = 10_000
"""The most characters of an exception's message that are shown."""

MAX_CAUSES = 20
"""The most exceptions that are searched: an error, its causes, and members of groups."""


def place(file: str, line: int, name: str) -> str:
    """Return ``file:line in name``.

    Args:
        file: The path of the file. It is shown relative to the working directory, if it is inside.
        line: The number of the line.
        name: The name of the function.
    """
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line} in {name}"


def text_of(error: BaseException) -> str:
    """Return the message of an exception, shortened and without secrets; it says if ``str`` raises."""
    try:
        # Before it is cut: a piece of a secret would not be found.
        return redaction.hide_beyond(str.__str__(str(error)), MAX_TEXT)
    except BaseException as raised:
        # Foreign classes run their own code here.
        return f"<{type(error).__qualname__}: str raised {type(raised).__name__}>"


def shown_text(error: BaseException) -> str:
    """Return the message of an exception for people: that of a group also shows its causes."""
    return message_of(error, text_of)


def users_place(error: BaseException, action: Any) -> str:
    """Return the innermost line of user code that raised ``error``; else the line of the action.

    Args:
        error: The error.
        action: The action that it ended; it has its line in ``where``.

    Python itself replaces some errors with others, without their traceback: then it is the line of
    the cause, and for a group, of its first member that has one. An error of this package may know its line.
    """
    for exception in _with_causes(_stopped(error) or error):
        user_line = innermost_place(exception)
        if user_line is not None:
            return user_line
    return (isinstance(error, AgentsError) and error.where) or action.where


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its members, and their causes: at most ``MAX_CAUSES``, the nearest first."""
    unvisited: list[Any] = [error]
    for _ in range(MAX_CAUSES):
        if not unvisited:
            return
        exception = unvisited.pop(0)
        yield exception
        unvisited += exception.exceptions if isinstance(exception, BaseExceptionGroup) else ()
        unvisited += [cause for cause in (exception.__cause__ or exception.__context__,) if cause is not None]


def _stopped(error: BaseException) -> BaseException | None:
    """Return the ``StopIteration`` that Python replaced with ``error``; None if it replaced none."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if not isinstance(cause, RuntimeError):
            break
        cause = cause.__cause__
    return cause if isinstance(cause, StopIteration | StopAsyncIteration) else None


def innermost_place(error: BaseException) -> str | None:
    """Return the innermost line of user code in an error's traceback, see :func:`place`; None without one."""
    innermost_line = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users_code(frame.f_code):
            innermost_line = place(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return innermost_line


def users_traceback(error: BaseException) -> str:
    """Return ``error``'s traceback as a string without secrets, from the user's first frame on."""
    start: TracebackType | None = error.__traceback__
    users_part = start
    while users_part is not None and not is_users_code(users_part.tb_frame.f_code):
        users_part = users_part.tb_next
    try:
        return redaction.hide("".join(traceback.format_exception(type(error), error, users_part or start)))
    except Exception:
        # A foreign class may have anything in place of its base's attributes.
        return "".join(
            [*traceback.format_tb(users_part or start), f"{type(error).__qualname__}: {text_of(error)}\n"]
        )


# -- values that should have been awaited --------------------------------------------

AWAIT_IT = "write await before the call that returned it"
"""The fix, for errors about such a value."""


def is_awaitable(value: object) -> bool:
    """Return True if ``value`` is a coroutine, a future or anything else that has to be awaited."""
    return hasattr(type(value), "__await__")


def awaitable_text(value: object) -> str:
    """Return a text for an awaitable: its kind, and the function that made it, if that is known."""
    frame: Any = getattr(value, "cr_frame", None)
    owner = frame.f_locals.get("self") if frame is not None else None
    # Durable steps and waits know the user's function, which the name of a coroutine or class does not show.
    described = getattr(owner if owner is not None else value, "awaited_as", None)
    name = getattr(value, "__qualname__", None)
    return described or f"{type(value).__name__}{f' {name}' if name else ''}"


def close_unawaited(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that nothing awaits, and those among its arguments, so that Python does not warn."""
    frame: Any = getattr(coroutine, "cr_frame", None)
    for value in (coroutine, *([] if frame is None else frame.f_locals.values())):
        if inspect.iscoroutine(value):
            value.close()


def shows_forgotten_await(error: BaseException) -> bool:
    """Return True if Python raised ``error`` because a coroutine was used instead of its result."""
    return isinstance(error, TypeError | AttributeError) and "'coroutine'" in str(error)


# -- explanations of errors that an action raised ------------------------------------

_MOST_PROBLEMS = 3
_MOST_NOTES = 5
_NOTE_LENGTH = 500
_OTHER_LOOP = re.compile(r"(?:different (?:event )?loop|Event loop is closed)")
_BY_POSITION = re.compile(r"BaseModel\.__init__\(\) takes 1 positional argument but \d+ were given")
_NO_ITEMS = re.compile(
    r"'TreeObject' object (?:does not support item|is not subscriptable|doesn't support item)"
)
_MISSING_ARGUMENT = re.compile(r"missing 1 required (?:positional|keyword-only) argument: '(\w+)'")
_CALLED = re.compile(r"([A-Za-z_][\w.]*)\(")

Explanation = tuple[str, dict[str, Any]]
"""A message, and further parts of the error by name: expected, found, fix and error_code."""


def explained_error(error: BaseException, is_async: bool) -> Explanation:
    """Return the message about what an action raised, with its notes, and further parts of the new error.

    Args:
        error: The exception that the action raised.
        is_async: True if the action is ``async def``.
    """
    message, parts = _explained(error, is_async)
    if isinstance(error, BaseExceptionGroup):
        causes = list(islice(causes_of(error), MOST_CAUSES))
        # One fix at a time: that of the first cause that has one.
        explanations = (_explained(cause, is_async)[1] for cause in causes)
        parts = next((explanation for explanation in explanations if explanation), parts)
        return "".join([message, *_notes(error), *chain.from_iterable(map(_notes, causes))]), parts
    return "".join([message, *_notes(error)]), parts


def _notes(error: BaseException) -> Iterator[str]:
    """Yield the lines of an exception's notes, to show below the message; a tool adds one with its name."""
    for note in notes_of(error)[:_MOST_NOTES]:
        for line in redaction.hide(note)[:_NOTE_LENGTH].splitlines():
            yield f"\n  {line}"


def _explained(error: BaseException, is_async: bool) -> Explanation:
    """Return the message about an exception without notes, and its parts if a mistake is recognized."""
    if isinstance(error, AgentsError):
        parts = {"expected": error.expected, "found": error.found, "fix": error.fix}
        inner = error.error_code if isinstance(error, ActionFailedError) else error.code
        return error.message, {**parts, "error_code": inner}
    if shows_forgotten_await(error):
        fix = AWAIT_IT if is_async else "write async def, and await before the call that returned it"
        return text_of(error), {"fix": f"{fix}: a coroutine is used instead of its result"}
    if (loop_parts := _of_other_loop(error)) is not None:
        return shown_text(error), loop_parts
    explanation: Explanation | None = None
    if isinstance(error, ValidationError):
        explanation = _invalid(error)
    elif isinstance(error, AttributeError):
        explanation = _no_attribute(error)
    elif isinstance(error, TypeError):
        explanation = _by_position(error) or _no_items(error) or _misspelt_key(error)
    return explanation or (shown_text(error), {})


def _of_other_loop(error: BaseException) -> dict[str, Any] | None:
    """Explain the use of an asyncio object of another attempt's or subtask's loop; None for other errors."""
    for cause in _with_causes(error):
        if isinstance(cause, RuntimeError) and _OTHER_LOOP.search(text_of(cause)):
            return {
                "expected": "objects of asyncio that belong to the event loop of this attempt of the job",
                "found": text_of(cause),
                "fix": "a global client, session, semaphore or lock stays with the loop that used it first: "
                "yield it from a function with @client, and write await ctx.client(...)",
            }
    return None


def _invalid(error: ValidationError) -> Explanation:
    """Explain why a Pydantic model rejects its arguments, or a change if it is frozen."""
    problems = error.errors(include_url=False, include_context=False)
    texts = [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:_MOST_PROBLEMS]
    ]
    if len(problems) > _MOST_PROBLEMS:
        texts.append(f"{len(problems) - _MOST_PROBLEMS} more")
    # The fix is for the first problem. The error has the model's name only; its class is in the user's line.
    first = problems[0]
    model = next(_models_at(error, error.title), None)
    field = str(first["loc"][0]) if first["loc"] else ""
    names = list(model.model_fields) if model is not None else []
    parts: dict[str, Any] = {"found": shorten(first["input"])}
    if first["type"] == "frozen_instance":
        parts["expected"] = "values that are not changed: another action or another key may hold them"
        parts["fix"] = f"create another one: value.model_copy(update={{{field!r}: ...}})"
    elif first["type"] == "extra_forbidden":
        parts["expected"] = f"fields of {error.title}" + (f": {', '.join(names)}" if names else "")
        parts["fix"] = suggest(field, names, f"remove {field!r}, or declare it in the class")
    elif first["type"] == "missing":
        parts["expected"] = f"{error.title} with its field {field!r}"
        parts["fix"] = f"write {error.title}({field}=...)"
    else:
        parts["expected"] = f"a value that fits the field {field!r}" if field else f"a {error.title}"
        parts["fix"] = f"pass a value of its type as {field!r}" if field else "pass a value of the type"
    return f"{error.title}: {'; '.join(texts)}", parts


def _by_position(error: TypeError) -> Explanation | None:
    """Explain a positional argument of a Pydantic model, such as an event; None for other errors."""
    if not _BY_POSITION.fullmatch(text_of(error)):
        return None
    models = {model.__name__: model for model in _models_at(error)}
    fields = [(name, list(model.model_fields)) for name, model in models.items()]
    calls = " or ".join(f"{name}({', '.join(f'{field}=...' for field in names)})" for name, names in fields)
    return "a value was passed without the name of its field", {
        "expected": "fields of events and models by name",
        "found": text_of(error),
        "fix": f"write {calls or 'OutputEvent(output=...)'}",
    }


def _no_attribute(error: AttributeError) -> Explanation | None:
    """Explain that a context, memory or event lacks an attribute; None for other errors."""
    owner = error.obj
    name = error.name
    if isinstance(owner, RunnerContext):
        what = "ctx"
        called = "the context"
    elif isinstance(owner, MemoryObject):
        what = "a memory object"
        called = "memory"
    elif isinstance(owner, Event):
        what = called = f"an event {type(owner).__name__}"
    else:
        return None
    names = [attribute for attribute in dir(type(owner)) if not attribute.startswith(("_", "model_"))]
    names += list(type(owner).model_fields) if isinstance(owner, Event) else []
    if name is None or name in names:
        return None  # The attribute itself raised.
    if (inside := _inside_input(owner, name)) is not None:
        return f"{what} has no attribute {name!r}: the record is in event.input", {
            "expected": f"an attribute of {called}",
            "found": name,
            "fix": f"write {inside}",
        }
    otherwise = (
        "memory has get(path) and set(path, value)" if called == "memory" else f"use what {called} has"
    )
    return f"{what} has no attribute {name!r}", {
        "expected": f"an attribute of {called}",
        "found": name,
        "fix": suggest(name, names, otherwise),
    }


def _inside_input(owner: object, name: str) -> str | None:
    """Return code that reads ``name`` from the record of an input event; None if the record lacks it."""
    if not isinstance(owner, InputEvent):
        return None
    record = owner.input
    if isinstance(record, dict):
        return f"event.input[{name!r}]" if name in record else None
    return f"event.input.{name}" if name in dir(record) else None


def _no_items(error: TypeError) -> Explanation | None:
    """Explain that memory was used like a dict; None for other errors."""
    if not _NO_ITEMS.match(text_of(error)):
        return None
    return "memory has paths, not items", {
        "expected": "memory.get(path), memory.set(path, value)",
        "found": "memory[...]",
        "fix": "write ctx.short_term_memory.set('path', value), or get('path', default) to read",
    }


def _misspelt_key(error: TypeError) -> Explanation | None:
    """Explain a parameter that is a misspelt ``idempotency_key``; None for other errors."""
    match = _MISSING_ARGUMENT.search(text_of(error))
    if match is None or misspelt_key([match[1]]) is None:
        return None
    return text_of(error), {
        "expected": f"a parameter {IDEMPOTENCY_KEY}, which the runtime passes",
        "found": match[1],
        "fix": f"did you mean {IDEMPOTENCY_KEY!r}?",
    }


def _models_at(error: BaseException, title: str | None = None) -> Iterator[type[BaseModel]]:
    """Yield the Pydantic models that the failing line of user code may call, by the names in the line.

    Args:
        error: The error of that line.
        title: Name of the model. Default: all models that the line calls.
    """
    users_frames = [
        entry for entry in traceback.walk_tb(error.__traceback__) if is_users_code(entry[0].f_code)
    ]
    if not users_frames:
        return
    frame, line = users_frames[-1]
    names = (
        [title] if title is not None else _CALLED.findall(linecache.getline(frame.f_code.co_filename, line))
    )
    for name in names:
        first, *attributes = name.split(".")
        value = frame.f_locals.get(first, frame.f_globals.get(first))
        for attribute in attributes:
            value = vars(value).get(attribute) if isinstance(getattr(value, "__dict__", None), dict) else None
        if isinstance(value, type) and issubclass(value, BaseModel):
            yield value
