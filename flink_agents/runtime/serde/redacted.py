"""Removes secrets from exceptions: message, arguments, attributes and notes, with causes and members.

Each exception of an action or of a durable call passes here before anything is recorded, logged or raised on.
It keeps its class, so that policies and ``except`` clauses match it. If its message cannot
be changed, a ``RecordedFailureError`` replaces it, as on replay.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from flink_agents import redaction
from flink_agents.api.errors import RecordedFailureError
from flink_agents.api.resources.raised_notes import notes_of
from flink_agents.runtime.serde.typenames import name_of

MOST = 200
"""The largest number of exceptions to check: causes, contexts and members together."""

LONGEST = 200_000
"""Characters of a message, an argument or an attribute that are kept: a service may answer with megabytes."""

_MOST_MISTAKES = 100
"""The largest number of errors of a ``ValidationError`` that are kept: each may have a kilobyte of text."""

_FIELDS: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("strerror", "filename", "filename2"),
    UnicodeError: ("reason", "object"),
    SyntaxError: ("msg", "text", "filename"),
    ImportError: ("msg", "name", "path"),
    SystemExit: ("code",),
    StopIteration: ("value",),
}
"""The state of builtin classes besides their arguments."""


def redacted(error: BaseException) -> BaseException:
    """Return ``error`` without secrets: the same object, if that can be changed.

    Args:
        error: The exception.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return error
    redaction.look_at_variables()
    chain = _chain(error)
    for exception in chain:
        _learn(exception)
    # From the innermost on: an exception gets the replacements of its causes.
    replaced: dict[int, BaseException] = {}
    for exception in reversed(chain):
        replaced[id(exception)] = _clean(exception, replaced)
    for exception in {id(new): new for new in replaced.values()}.values():
        _lead(exception, replaced)
    return replaced[id(error)]


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception with its causes, contexts and members, each once, at most ``MOST`` of them."""
    chain: dict[int, BaseException] = {}
    ahead = [error]
    while ahead and len(chain) < MOST:
        exception = ahead.pop(0)
        if id(exception) not in chain:
            chain[id(exception)] = exception
            ahead += _members(exception)
            ahead += [cause for cause in (exception.__cause__, exception.__context__) if cause is not None]
    for exception in chain.values():
        # Exceptions after the last one are not checked, and so not shown.
        for name in ("__cause__", "__context__"):
            led = getattr(exception, name)
            if led is not None and id(led) not in chain:
                BaseException.__setattr__(exception, name, None)
    return list(chain.values())


def _learn(error: BaseException) -> None:
    """Register the credentials of the failed request, which the client's library made from a secret."""
    for name in ("request", "response"):
        there = _attribute(error, name)
        for at in (there, _attribute(there, "request")):
            redaction.know_headers(_attribute(at, "headers"))


def _attribute(of: Any, name: str) -> Any:
    try:
        return getattr(of, name, None)
    except BaseException:  # Such as httpx, whose errors raise if they have no request.
        return None


def _clean(error: BaseException, replaced: dict[int, BaseException]) -> BaseException:
    """Return an exception without secrets in its own message, arguments, attributes and notes."""
    try:
        _change(error)
        error = _group(error, replaced)
        shown = _is_long(error) or redaction.shows(_text(error)) or redaction.shows(_text(error, repr))
    except BaseException:
        # Foreign classes run their own code here, and it may raise anything.
        shown = True
    return _in_place_of(error) if shown else error


def _is_long(error: BaseException) -> bool:
    """Return True if the message of an exception is too long, and not made of what can be cut."""
    if isinstance(error, ValidationError):
        return error.error_count() > _MOST_MISTAKES
    return len(_text(error)) > 10 * LONGEST


def _change(error: BaseException) -> None:
    args = redaction.hidden(error.args, longest=LONGEST)
    if args is not error.args:
        error.args = args
    attributes: dict[str, Any] = object.__getattribute__(error, "__dict__")
    for name, value in list(attributes.items()):
        new = redaction.hidden(value, longest=LONGEST)
        if new is not value:
            attributes[name] = new
    for name in (name for kind, names in _FIELDS.items() if isinstance(error, kind) for name in names):
        value = getattr(error, name, None)
        new = redaction.hidden(value, longest=LONGEST)
        if new is not value:
            setattr(error, name, new)


def _group(error: BaseException, replaced: dict[int, BaseException]) -> BaseException:
    """Return a group whose message and members have no secrets; anything else unchanged."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = [replaced.get(id(member), member) for member in _members(error)]
    group: BaseException
    if redaction.shows(error.message):
        group = BaseExceptionGroup(redaction.hide(error.message), members)
    elif any(new is not old for new, old in zip(members, _members(error), strict=True)):
        group = error.derive(members)
    else:
        return error
    return _as(group, error)


def _in_place_of(error: BaseException) -> BaseException:
    """Return the replacement for an exception that cannot be changed."""
    if isinstance(error, ValidationError):
        return _as(_validation(error), error)
    kind = name_of(type(error))
    return _as(
        RecordedFailureError(
            redaction.hidden(_text(error), longest=LONGEST),
            error_type=kind,
            expected="an exception whose message holds no secret, or whose message can be changed",
            found=kind,
            fix="keep credentials out of the exceptions that you raise",
        ),
        error,
    )


def _validation(error: ValidationError) -> ValidationError:
    details: list[InitErrorDetails] = []
    for problem in error.errors(include_url=False)[:_MOST_MISTAKES]:
        message = redaction.hide(problem["msg"]).replace("{", "{{").replace("}", "}}")
        kind: Any = PydanticCustomError(problem["type"], message)  # pyright: ignore[reportArgumentType]
        shown = redaction.hidden(problem["input"])
        if redaction.shows(repr(shown)):
            shown = redaction.hide(repr(shown))
        details.append({"type": kind, "loc": redaction.hidden(problem["loc"]), "input": shown})
    return ValidationError.from_exception_data(redaction.hide(error.title), details)


def _as(new: BaseException, old: BaseException) -> BaseException:
    """Give ``new`` the cause, context and traceback of ``old``."""
    new.__traceback__ = old.__traceback__
    BaseException.__setattr__(new, "__cause__", old.__cause__)
    BaseException.__setattr__(new, "__context__", old.__context__)
    # After the cause, which sets it.
    new.__suppress_context__ = old.__suppress_context__
    for note in redaction.hidden(notes_of(old)):
        new.add_note(note)
    return new


def _lead(error: BaseException, replaced: dict[int, BaseException]) -> None:
    """Replace the cause and the context of an exception."""
    for name in ("__cause__", "__context__"):
        led = getattr(error, name)
        new = replaced.get(id(led))
        if new is not None and new is not led:
            suppressed = error.__suppress_context__
            BaseException.__setattr__(error, name, new)
            error.__suppress_context__ = suppressed


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _text(error: BaseException, shown_by: Any = str) -> str:
    try:
        return str.__str__(shown_by(error))
    except BaseException:  # A foreign class whose attribute raises has none.
        return ""
