"""Approvals: what an action asks a person before it goes on, what that person says, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, field_validator
from pydantic_core import to_json, to_jsonable_python

from flink_agents.api.events import Event
from flink_agents.api.events.signals import Signal

APPROVALS_TAG = "approval-requests"
"""Name of the side output that carries :class:`ApprovalRequest` and :class:`ApprovalOutcome`."""

APPROVAL_SIGNAL = "flink-agents.approval"
"""Name of the signals that answer requests."""

Check = Callable[[Mapping[str, Any]], object]
"""Raises an exception for arguments that the requested call does not take."""


class Decision(StrEnum):
    """How a request for an approval ended.

    Attributes:
        APPROVED: A person approved it.
        DENIED: A person denied it.
        EXPIRED: No answer came in time.
        ENDED: The input ended before anybody answered, or the action that asked waits for it no more.
    """

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    ENDED = "ended"


class ApprovalResponse(BaseModel):
    """What a person says to a request.

    Attributes:
        id: The id of the request. An answer with another one is an unmatched signal.
        approved: Whether it may be done.
        arguments: Arguments that take the place of those in the request, by name. None changes nothing.
        reason: Why; where it is denied, a model that asked is told of it.
        by: Who says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    approved: bool
    arguments: dict[str, Any] | None = None
    reason: str | None = None
    by: str | None = None

    @field_validator("arguments")
    @classmethod
    def _has_finite_numbers(cls, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check that no argument holds NaN or an infinite number: JSON has none, and a person meant none."""
        if not _is_finite(arguments):
            raise ValueError("numbers must be finite")
        return arguments


def _is_finite(value: Any) -> bool:
    """Return True if all numbers in a value are finite, at any depth."""
    seen, ahead = set[int](), [value]
    while ahead:
        one: Any = ahead.pop()
        if isinstance(one, float | Decimal) and not math.isfinite(one):
            return False
        if isinstance(one, Mapping | list | tuple | set | frozenset):
            parts = cast("Iterable[Any]", one.values() if isinstance(one, Mapping) else one)
            ahead += parts if id(cast("Any", one)) not in seen else ()
            seen.add(id(cast("Any", one)))
    return True


@dataclass(frozen=True)
class ApprovalRequest:
    """What an action asks for.

    Attributes:
        id: Names the request, the same after a crash. It begins with the id of the wait for the answer.
        agent: Name of the agent.
        action: Name of the action.
        key: The key of the run.
        what: What is to be done, such as ``tool refund``.
        arguments: With what; JSON values by name.
        began_at: When the run began that asks, in milliseconds since the epoch.
        expires_at: When it counts as denied, in milliseconds since the epoch; None for never.
    """

    id: str
    agent: str
    action: str
    key: Any
    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    began_at: int = 0
    expires_at: int | None = None

    def approve(self, arguments: Mapping[str, Any] | None = None, by: str | None = None) -> Signal:
        """Return the signal that approves it.

        Args:
            arguments: Arguments that take the place of its own, by name.
            by: Who approves it.
        """
        changed = None if arguments is None else dict(arguments)
        return self.answer(ApprovalResponse(id=self.id, approved=True, arguments=changed, by=by))

    def deny(self, reason: str | None = None, by: str | None = None) -> Signal:
        """Return the signal that denies it.

        Args:
            reason: Why.
            by: Who denies it.
        """
        return self.answer(ApprovalResponse(id=self.id, approved=False, reason=reason, by=by))

    def answer(self, response: ApprovalResponse) -> Signal:
        """Return the signal that carries an answer to it."""
        said = response.model_dump(mode="json", exclude_none=True)
        return Signal(APPROVAL_SIGNAL, said, self.key, wait=wait_of_request(self.id))


@dataclass(frozen=True)
class ApprovalOutcome:
    """How a request ended. It is true where that may be done which was asked for, and false otherwise.

    Attributes:
        request: The request, without the time at which it would have expired.
        decision: How it ended.
        arguments: With what it may be done: those of the request, with those that the answer changed.
        changed: Whether the answer changed any.
        reason: Why it was denied, or how it ended without an answer.
        by: Who decided.
    """

    request: ApprovalRequest
    decision: Decision
    arguments: Mapping[str, Any]
    changed: bool = False
    reason: str | None = None
    by: str | None = None

    @property
    def approved(self) -> bool:
        """Whether it may be done."""
        return self.decision is Decision.APPROVED

    def __bool__(self) -> bool:
        return self.approved

    @property
    def text(self) -> str:
        """How it ended in one sentence, for models and errors."""
        by = f" by {self.by}" if self.by else ""
        reason = f": {self.reason}" if self.reason else ""
        before = "" if self.approved else "not approved, but "
        return f"{self.request.what} was {before}{self.decision}{by}{reason}"


class ApprovalDeniedEvent(Event):
    """An action was not executed, since it was not approved. Emitted if an action of the agent takes it.

    Attributes:
        outcome: How the request ended.
        event: The event that the action would have handled.
    """

    outcome: ApprovalOutcome
    event: Any


def wait_of_request(request: str) -> str:
    """Return the id of the wait that a request's id begins with."""
    return request.rpartition("|")[0]


def plain(value: Any) -> Any:
    """Return ``value`` as JSON; the text of what JSON does not know."""
    try:
        return to_jsonable_python(value, fallback=_text_of, bytes_mode="base64", inf_nan_mode="strings")
    except UnicodeEncodeError:
        return _opened(value)


def _opened(value: Any) -> Any:
    """A value with names that have no UTF-8: what it holds as JSON, piece by piece."""
    if isinstance(value, Mapping):
        pieces = cast("Mapping[Any, Any]", value)
        return {_written(str(name)): plain(one) for name, one in pieces.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in cast("Iterable[Any]", value)]
    return _written(_text_of(value))


def writable(value: Any) -> Any:
    """Return JSON as bytes can hold it: without halves of characters, and without numbers that are none.

    It is no part of :func:`plain`, of whose outcome the ids of requests are made that savepoints wait for.
    """
    if isinstance(value, str):
        return _written(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, list):
        return [writable(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {writable(name): writable(one) for name, one in cast("dict[Any, Any]", value).items()}
    return value


def _written(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _text_of(value: Any) -> str:
    """The text of a value; the class of one without a text of its own, whose address changes on replay."""
    kind = cast("type[object]", type(value))
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(value) if has_text else f"{kind.__module__}.{kind.__qualname__}"


def outcome_of(request: ApprovalRequest, response: ApprovalResponse) -> ApprovalOutcome:
    """Return what an answer makes of a request."""
    decision = Decision.APPROVED if response.approved else Decision.DENIED
    changed = response.approved and response.arguments is not None
    arguments = {**request.arguments, **(response.arguments or {})} if changed else request.arguments
    return ApprovalOutcome(request, decision, arguments, changed, response.reason, response.by)


# -- events as arguments -------------------------------------------------------------


def arguments_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event as JSON."""
    return {name: plain(getattr(event, name)) for name in type(event).model_fields}


def changed_event(event: Event, arguments: Mapping[str, Any]) -> Event:
    """Return ``event`` with fields of which ``arguments`` has JSON values; the others stay.

    Args:
        event: The event.
        arguments: Values by the names of fields.

    Raises:
        ValueError: The event has no such field, or a value does not fit.
        PydanticUserError: A field has a value of a type that JSON says nothing of.
    """
    fields = type(event).model_fields
    unknown = sorted(arguments.keys() - fields.keys())
    if unknown:
        raise ValueError(f"{event.event_type} has no {', '.join(unknown)}, but {', '.join(fields)}")
    before = arguments_of(event)
    values = {name: getattr(event, name) for name in fields}
    for name, value in arguments.items():
        if value != before[name]:
            values[name] = _typed_as(values[name], fields[name].annotation, value)
    return type(event).model_validate(values)


def _typed_as(present: object, annotation: Any, value: Any) -> Any:
    """Return a JSON value with the type that a field has: the one declared, else that of its value."""
    kind: Any = annotation
    if annotation is Any and present is not None:
        kind = type(present)
    # As from JSON: texts become dates, and bytes again, as the request showed them.
    return _adapter(kind).validate_json(to_json(value))


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind, config=ConfigDict(val_json_bytes="base64"))
    except PydanticUserError:
        return TypeAdapter(kind)  # a type with a configuration of its own takes no other
