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
"""The most exceptions that are checked: causes, contexts and members of groups together."""

LONGEST = 200_000
"""The most characters of a message, argument or attribute that are kept: some have megabytes."""

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
"""The attributes of builtin exceptions, besides their arguments, that may have secrets."""


def redacted(error: BaseException) -> BaseException:
    """Return an exception without secrets: the same object if it can be changed, else a replacement."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return error
    redaction.look_at_variables()
    chain = _chain(error)
    for exception in chain:
        _register_credentials(exception)
    # From the innermost on: an exception gets the replacements of its causes.
    replaced: dict[int, BaseException] = {}
    for exception in reversed(chain):
        replaced[id(exception)] = _clean(exception, replaced)
    for exception in {id(new): new for new in replaced.values()}.values():
        _relink(exception, replaced)
    return replaced[id(error)]


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception with its causes, contexts and members, each once, at most ``MOST`` of them."""
    chain: dict[int, BaseException] = {}
    unvisited = [error]
    while unvisited and len(chain) < MOST:
        exception = unvisited.pop(0)
        if id(exception) not in chain:
            chain[id(exception)] = exception
            unvisited += _members(exception)
            unvisited += [
                cause for cause in (exception.__cause__, exception.__context__) if cause is not None
            ]
    for exception in chain.values():
        # Exceptions after the last one are not checked, and so not shown.
        for name in ("__cause__", "__context__"):
            linked_error = getattr(exception, name)
            if linked_error is not None and id(linked_error) not in chain:
                BaseException.__setattr__(exception, name, None)
    return list(chain.values())


def _register_credentials(error: BaseException) -> None:
    """Register the credentials of the failed request, which a client's library made from a secret."""
    for name in ("request", "response"):
        message = _attribute(error, name)
        for request in (message, _attribute(message, "request")):
            redaction.know_headers(_attribute(request, "headers"))


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute; None if it is missing, or raises when it is read."""
    try:
        return getattr(owner, name, None)
    except BaseException:  # Such as httpx, whose errors raise if they have no request.
        return None


def _clean(error: BaseException, replaced: dict[int, BaseException]) -> BaseException:
    """Return an exception without secrets of its own: the same object, or a replacement.

    Args:
        error: The exception.
        replaced: The replacements of its members, by the ids of the members.
    """
    try:
        _hide_parts(error)
        error = _group(error, replaced)
        has_secrets = _is_long(error) or redaction.shows(_text(error)) or redaction.shows(_text(error, repr))
    except BaseException:
        # Foreign classes run their own code here, and it may raise anything.
        has_secrets = True
    return _in_place_of(error) if has_secrets else error


def _is_long(error: BaseException) -> bool:
    """Return True if the message of an exception is too long although its parts were cut."""
    if isinstance(error, ValidationError):
        return error.error_count() > _MOST_MISTAKES
    return len(_text(error)) > 10 * LONGEST


def _hide_parts(error: BaseException) -> None:
    """Hide secrets in the arguments and attributes of an exception, in place."""
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
    """Return a group with the replacements of its members and a message without secrets.

    Any other exception, and a group without replaced parts, is returned as it is.
    """
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
        return _as(_without_secrets(error), error)
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


def _without_secrets(error: ValidationError) -> ValidationError:
    """Return a copy of an error of Pydantic without secrets, and with a limited number of problems."""
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
    """Give ``new`` the cause, context, traceback and notes of ``old``, and return it."""
    new.__traceback__ = old.__traceback__
    BaseException.__setattr__(new, "__cause__", old.__cause__)
    BaseException.__setattr__(new, "__context__", old.__context__)
    # After the cause, which sets it.
    new.__suppress_context__ = old.__suppress_context__
    for note in redaction.hidden(notes_of(old)):
        new.add_note(note)
    return new


def _relink(error: BaseException, replaced: dict[int, BaseException]) -> None:
    """Let cause and context of an exception refer to their replacements."""
    for name in ("__cause__", "__context__"):
        linked_error = getattr(error, name)
        new = replaced.get(id(linked_error))
        if new is not None and new is not linked_error:
            suppressed = error.__suppress_context__
            BaseException.__setattr__(error, name, new)
            error.__suppress_context__ = suppressed


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _text(error: BaseException, shown_by: Any = str) -> str:
    """Return the text of an exception by ``str`` or ``repr``; empty if that raises."""
    try:
        return str.__str__(shown_by(error))
    except BaseException:  # A foreign class whose attribute raises has none.
        return ""
