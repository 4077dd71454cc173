"""Messages for errors that an action raised: without internal names of this package, and with a fix.

All of this happens after an action has failed: nothing is checked when events are made or memory is used.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from itertools import chain, islice
from types import FrameType
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
from flink_agents.api.resources.raised_notes import MOST_CAUSES, causes_of, notes_of
from flink_agents.runtime.serde.awaitables import AWAIT_IT, shows_forgotten_await
from flink_agents.runtime.serde.tracebacks import shown_text, text_of
from flink_agents.runtime.serde.typenames import shorten

_MOST_PROBLEMS = 3
_MOST_NOTES = 5
_MOST_CAUSES = 10
_NOTE_LENGTH = 500
_OTHER_LOOP = re.compile(r"(?:different (?:event )?loop|Event loop is closed)")
_BY_POSITION = re.compile(r"BaseModel\.__init__\(\) takes 1 positional argument but \d+ were given")
_NO_ITEMS = re.compile(
    r"'TreeObject' object (?:does not support item|is not subscriptable|doesn't support item)"
)
_MISSING_ARGUMENT = re.compile(r"missing 1 required (?:positional|keyword-only) argument: '(\w+)'")
_CALLED = re.compile(r"([A-Za-z_][\w.]*)\(")

Explanation = tuple[str, dict[str, Any]]
"""A message with its expected, found and fix parts, by name."""


def explained_error(error: BaseException, is_async: bool) -> Explanation:
    """Return the message for an action's error with its notes, and the additional parts of the new error.

    Args:
        error: The error.
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
    """Yield the notes of an exception, to show below the message; a tool adds one with its name."""
    for note in notes_of(error)[:_MOST_NOTES]:
        for line in redaction.hide(note)[:_NOTE_LENGTH].splitlines():
            yield f"\n  {line}"


def _explained(error: BaseException, is_async: bool) -> Explanation:
    if isinstance(error, AgentsError):
        parts = {"expected": error.expected, "found": error.found, "fix": error.fix}
        inner = error.error_code if isinstance(error, ActionFailedError) else error.code
        return error.message, {**parts, "error_code": inner}
    if shows_forgotten_await(error):
        fix = AWAIT_IT if is_async else "write async def, and await before the call that returned it"
        return text_of(error), {"fix": f"{fix}: a coroutine is used instead of its result"}
    if (foreign := _of_other_loop(error)) is not None:
        return shown_text(error), foreign
    explanation: Explanation | None = None
    if isinstance(error, ValidationError):
        explanation = _invalid(error)
    elif isinstance(error, AttributeError):
        explanation = _no_attribute(error)
    elif isinstance(error, TypeError):
        explanation = _by_position(error) or _no_items(error) or _misspelt_key(error)
    return explanation or (shown_text(error), {})


def _of_other_loop(error: BaseException) -> dict[str, Any] | None:
    """Describe the use of an object that belongs to the event loop of another attempt or subtask."""
    ahead = [error]
    for _ in range(_MOST_CAUSES):
        if not ahead:
            break
        cause = ahead.pop(0)
        if isinstance(cause, RuntimeError) and _OTHER_LOOP.search(text_of(cause)):
            return {
                "expected": "objects of asyncio that belong to the event loop of this attempt of the job",
                "found": text_of(cause),
                "fix": "a global client, session, semaphore or lock stays with the loop that used it first: "
                "yield it from a function with @client, and write await ctx.client(...)",
            }
        ahead += cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
        ahead += [
            earlier_cause
            for earlier_cause in (cause.__cause__ or cause.__context__,)
            if earlier_cause is not None
        ]
    return None


def _invalid(error: ValidationError) -> Explanation:
    """Describe a Pydantic model that rejects its arguments, or a change of a frozen one."""
    problems = error.errors(include_url=False, include_context=False)
    shown = [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:_MOST_PROBLEMS]
    ]
    if len(problems) > _MOST_PROBLEMS:
        shown.append(f"{len(problems) - _MOST_PROBLEMS} more")
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
    return f"{error.title}: {'; '.join(shown)}", parts


def _by_position(error: TypeError) -> Explanation | None:
    """Describe a positional argument of a Pydantic model, such as an event."""
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
    """Describe an attribute that an object of this package does not have."""
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
    """Return the name of an attribute or entry of an input's record; None if the record lacks it."""
    if not isinstance(owner, InputEvent):
        return None
    record = owner.input
    if isinstance(record, dict):
        return f"event.input[{name!r}]" if name in record else None
    return f"event.input.{name}" if name in dir(record) else None


def _no_items(error: TypeError) -> Explanation | None:
    """Describe memory that is used like a dict."""
    if not _NO_ITEMS.match(text_of(error)):
        return None
    return "memory has paths, not items", {
        "expected": "memory.get(path), memory.set(path, value)",
        "found": "memory[...]",
        "fix": "write ctx.short_term_memory.set('path', value), or get('path', default) to read",
    }


def _misspelt_key(error: TypeError) -> Explanation | None:
    """Describe a parameter that is a misspelt ``idempotency_key``."""
    match = _MISSING_ARGUMENT.search(text_of(error))
    if match is None or misspelt_key([match[1]]) is None:
        return None
    return text_of(error), {
        "expected": f"a parameter {IDEMPOTENCY_KEY}, which the runtime passes",
        "found": match[1],
        "fix": f"did you mean {IDEMPOTENCY_KEY!r}?",
    }


def _models_at(error: BaseException, title: str | None = None) -> Iterator[type[BaseModel]]:
    """Yield the models that the user's failing line may call.

    Args:
        error: The error of that line.
        title: Name of the model. Default: all models that the line calls.
    """
    frame, line = _users_frame(error)
    if frame is None:
        return
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


def _users_frame(error: BaseException) -> tuple[FrameType | None, int]:
    users = [at for at in traceback.walk_tb(error.__traceback__) if is_users_code(at[0].f_code)]
    return users[-1] if users else (None, 0)
