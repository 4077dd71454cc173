"""Approvals: an action's request to a person, the person's answer, and the outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, field_validator
from pydantic_core import to_json, to_jsonable_python

from flink_agents.api.events import Event
from flink_agents.api.events.signals import Signal

APPROVALS_TAG = "approval-requests"
"""Name of the side output that carries :class:`ApprovalRequest` and :class:`ApprovalOutcome`."""

APPROVAL_SIGNAL = "flink-agents.approval"
"""Name of the signals that answer requests."""

Check = Callable[[Mapping[str, Any]], object]
"""Raises an exception for arguments that the requested call does not accept."""


def checked_later(arguments: Mapping[str, Any]) -> None:
    """Accept any arguments: a :data:`Check` for calls whose function checks its arguments itself.

    The function may have parameters that the request does not show.
    """


class Decision(StrEnum):
    """The end of an approval request.

    Attributes:
        APPROVED: A person approved it.
        DENIED: A person denied it.
        EXPIRED: No answer came in time.
        ENDED: The input ended before an answer came, or the action no longer waits for it.
    """

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    ENDED = "ended"


class ApprovalResponse(BaseModel):
    """A person's answer to a request.

    Attributes:
        id: The id of the request. An answer with an unknown id becomes an unmatched signal.
        approved: True to approve the request.
        arguments: Arguments that replace those of the request, by name. None changes nothing.
        reason: The person's reason; a model that asked gets it with a denial.
        by: Name of the person.
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
    seen_ids = set[int]()
    stack = [value]
    while stack:
        part: Any = stack.pop()
        if isinstance(part, float | Decimal) and not math.isfinite(part):
            return False
        if isinstance(part, Mapping | list | tuple | set | frozenset) and id(part) not in seen_ids:  # pyright: ignore[reportUnknownArgumentType]
            seen_ids.add(id(part))  # pyright: ignore[reportUnknownArgumentType]
            stack += cast("Iterable[Any]", part.values() if isinstance(part, Mapping) else part)
    return True


@dataclass(frozen=True)
class ApprovalRequest:
    """An action's request for an approval.

    Attributes:
        id: Id of the request, the same after a crash. It starts with the id of the wait for the answer.
        agent: Name of the agent.
        action: Name of the action.
        key: The key of the run, as the key selector returned it.
        what: What to approve, in words for the person, such as ``tool refund``.
        arguments: Arguments of the call; JSON values by name.
        began_at: Start of the run, in milliseconds since the epoch.
        expires_at: Time at which it counts as denied, in milliseconds since the epoch; None for never.
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
            arguments: Arguments that replace those of the request, by name.
            by: Name of the person who approves it.
        """
        changed = None if arguments is None else dict(arguments)
        return self.answer(ApprovalResponse(id=self.id, approved=True, arguments=changed, by=by))

    def deny(self, reason: str | None = None, by: str | None = None) -> Signal:
        """Return the signal that denies it.

        Args:
            reason: The person's reason; a model that asked gets it.
            by: Name of the person who denies it.
        """
        return self.answer(ApprovalResponse(id=self.id, approved=False, reason=reason, by=by))

    def answer(self, response: ApprovalResponse) -> Signal:
        """Return the signal that carries an answer to the request."""
        answer = response.model_dump(mode="json", exclude_none=True)
        return Signal(APPROVAL_SIGNAL, answer, self.key, wait=wait_of_request(self.id))


@dataclass(frozen=True)
class ApprovalOutcome:
    """The outcome of a request. It is true if the request was approved, and false otherwise.

    Attributes:
        request: The request, without its expiry time.
        decision: The end of the request.
        arguments: The approved arguments: those of the request, with the changes of the answer.
        changed: True if the answer changed arguments.
        reason: The reason for a denial, or for an end without an answer.
        by: Name of the person who decided.
    """

    request: ApprovalRequest
    decision: Decision
    arguments: Mapping[str, Any]
    changed: bool = False
    reason: str | None = None
    by: str | None = None

    @property
    def approved(self) -> bool:
        """True if the request was approved."""
        return self.decision is Decision.APPROVED

    def __bool__(self) -> bool:
        return self.approved

    @property
    def text(self) -> str:
        """The outcome in one sentence, for models and errors."""
        by = f" by {self.by}" if self.by else ""
        reason = f": {self.reason}" if self.reason else ""
        prefix = "" if self.approved else "not approved, but "
        return f"{self.request.what} was {prefix}{self.decision}{by}{reason}"


class ApprovalDeniedEvent(Event):
    """An action was not executed because it was denied. It is emitted if an action of the agent handles it.

    Attributes:
        outcome: The outcome of the request.
        event: The event that the action would have handled.
    """

    outcome: ApprovalOutcome
    event: Any


def wait_of_request(request: str) -> str:
    """Return the id of a request's wait: the part of the request's id before the last ``|``."""
    return request.rpartition("|")[0]


def plain(value: Any) -> Any:
    """Return a value as JSON values, at any depth; values that JSON does not have become their text."""
    try:
        return to_jsonable_python(value, fallback=_text_of, bytes_mode="base64", inf_nan_mode="strings")
    except UnicodeEncodeError:
        return _convert_pieces(value)


def _convert_pieces(value: Any) -> Any:
    """Convert a value whose names UTF-8 cannot encode to JSON, piece by piece."""
    if isinstance(value, Mapping):
        pieces = cast("Mapping[Any, Any]", value)
        return {_encodable_text(str(name)): plain(piece) for name, piece in pieces.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(piece) for piece in cast("Iterable[Any]", value)]
    return _encodable_text(_text_of(value))


def writable(value: Any) -> Any:
    """Return JSON that UTF-8 can hold: lone surrogates are escaped, and NaN and infinities become strings.

    It is not part of :func:`plain`: ids of requests in savepoints derive from the results of that.
    """
    if isinstance(value, str):
        return _encodable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, list):
        return [writable(part) for part in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {writable(name): writable(part) for name, part in cast("dict[Any, Any]", value).items()}
    return value


def _encodable_text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""Texts of floats that JSON does not have. NaN equals nothing, so it is not among them."""


def _text_of(value: Any) -> str:
    """Return the text of a value, or its class if its text has an address, which changes on replay."""
    kind = cast("type[object]", type(value))
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(value) if has_text else f"{kind.__module__}.{kind.__qualname__}"


def outcome_of(request: ApprovalRequest, response: ApprovalResponse) -> ApprovalOutcome:
    """Return the outcome of a request that a person answered with ``response``."""
    decision = Decision.APPROVED if response.approved else Decision.DENIED
    changed = response.approved and response.arguments is not None
    arguments = {**request.arguments, **(response.arguments or {})} if changed else request.arguments
    return ApprovalOutcome(request, decision, arguments, changed, response.reason, response.by)


# -- events as arguments -------------------------------------------------------------


def arguments_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event as JSON values by name: the arguments of a request about it."""
    return {name: plain(getattr(event, name)) for name in type(event).model_fields}


def changed_event(event: Event, arguments: Mapping[str, Any]) -> Event:
    """Return an event with the changes of an answer: fields whose JSON value differs are replaced.

    Args:
        event: The event that the request showed.
        arguments: JSON values by the names of fields.

    Raises:
        ValueError: The event has no such field, or a value is invalid.
        PydanticUserError: A field has a value of a type that JSON cannot represent.
    """
    fields = type(event).model_fields
    unknown = sorted(arguments.keys() - fields.keys())
    if unknown:
        raise ValueError(f"{event.event_type} has no {', '.join(unknown)}, but {', '.join(fields)}")
    previous_arguments = arguments_of(event)
    values = {name: getattr(event, name) for name in fields}
    for name, value in arguments.items():
        if value != previous_arguments[name]:
            values[name] = _typed_as(values[name], fields[name].annotation, value)
    return type(event).model_validate(values)


def _typed_as(present: object, annotation: Any, value: Any) -> Any:
    """Return a JSON value as the type of a field: the declared type, or that of the present value."""
    kind: Any = annotation
    if (annotation is Any or isinstance(annotation, TypeVar)) and present is not None:
        kind = type(present)
    # As from JSON: strings become dates and bytes again, as the request showed them.
    return _create_adapter(kind).validate_json(to_json(value))


def _create_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return a validator of a type. It reads bytes from base64, unless the type has its own settings."""
    try:
        return TypeAdapter(kind, config=ConfigDict(val_json_bytes="base64"))
    except PydanticUserError:
        return TypeAdapter(kind)  # a type with its own configuration accepts no other
