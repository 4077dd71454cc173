"""Policies for failed actions and unhandled events, and the record of such an event."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from flink_agents.api.common.checked_models import CheckedModelType, CheckedType
from flink_agents.api.common.durations import plain_seconds
from flink_agents.api.errors.runs import FailedAttempt

Seconds = Annotated[float, BeforeValidator(plain_seconds)]
"""Type of a model's field in seconds, which also accepts a timedelta."""


class OnError(StrEnum):
    """Policy for an action that raises, or, except ``RETRY``, for an event that no action accepts."""

    FAIL = "fail"
    """The job fails with an error that starts with your own line; Flink restarts it."""

    RETRY = "retry"
    """The action is retried, with its retry policy, its agent's, or ``RetryPolicy()``; if all attempts fail,
    the job fails.
    """

    IGNORE = "ignore"
    """Memory and events of the action are dropped; the failure is logged and counted."""

    DEAD_LETTER = "dead-letter"
    """As ``IGNORE``, and a :class:`DeadLetter` goes to the side output of that name."""


class OnSuspend(StrEnum):
    """Policy for the inputs of a key after a suspended run, which waits for a timer or a signal."""

    BLOCK = "block"
    """They wait until the run has ended, so their order is kept."""

    INTERLEAVE = "interleave"
    """They run.

    Writes of the run before its wait are committed; after its wait, the run reads the memory that the key has
    then.
    """


class OnUnhandled(StrEnum):
    """Policy for an event that no action accepts; the values mean the same as in :class:`OnError`."""

    FAIL = "fail"
    IGNORE = "ignore"
    DEAD_LETTER = "dead-letter"


class RetryTimes(BaseModel, metaclass=CheckedModelType):
    """The numbers of a retry policy, without its exception classes; see :class:`RetryPolicy`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    initial_interval: Seconds = Field(default=1.0, ge=0, allow_inf_nan=False)
    factor: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    max_interval: Seconds = Field(default=60.0, ge=0, allow_inf_nan=False)
    jitter: float = Field(default=0.1, ge=0, le=1)
    max_attempts: int | None = Field(default=5, ge=1)
    max_duration: Annotated[Seconds, Field(ge=0, allow_inf_nan=False)] | None = None


class RetryPolicy(RetryTimes):
    """Policy for retries of an action that raised. All times are in seconds.

    Memory and events of the failed attempt are dropped. While an action waits for its next attempt, only its
    key waits. When no attempts are left, ``on_error`` of the action decides.

    Attributes:
        initial_interval: Pause before the second attempt.
        factor: Factor by which each further pause is longer.
        max_interval: The longest pause.
        jitter: Share of a pause, from 0 to 1, by which it is randomly shortened, so that actions that failed
            together are not retried together.
        max_attempts: Number of attempts, the first included; None for no limit.
        max_duration: Time after the first failure in which attempts may start; None for no limit.
        retry_on: Exceptions that are retried, including subclasses. Default: all but programming errors,
            which are ``TypeError``, ``AttributeError``, ``NameError``, ``LookupError`` (such as
            ``KeyError``), ``AssertionError``, ``SyntaxError``, ``ImportError``, ``NotImplementedError`` and
            the errors of this package other than ``ActionTimeoutError``.
        non_retryable: Exceptions that are never retried, even if ``retry_on`` includes them.

    An error can ask for a longer pause: with an attribute ``retry_after`` in seconds, or with the header
    ``Retry-After`` of its ``response``, as in errors of HTTP clients.
    """

    retry_on: tuple[type[BaseException], ...] | None = None
    non_retryable: tuple[type[BaseException], ...] = ()

    if TYPE_CHECKING:
        # Of the two last fields, type checkers would accept nothing but a tuple.
        def __init__(
            self,
            *,
            initial_interval: float = 1.0,
            factor: float = 2.0,
            max_interval: float = 60.0,
            jitter: float = 0.1,
            max_attempts: int | None = 5,
            max_duration: float | None = None,
            retry_on: type[BaseException] | Collection[type[BaseException]] | None = None,
            non_retryable: type[BaseException] | Collection[type[BaseException]] = (),
        ) -> None: ...

    @field_validator("retry_on", "non_retryable", mode="before")
    @classmethod
    def _wrap_single_class(cls, value: object) -> object:
        return (value,) if isinstance(value, type) else value


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RateLimit(metaclass=CheckedType):
    """At most ``calls`` at once, and not more than ``calls`` in ``per`` seconds on average.

    Attributes:
        calls: Number of calls, at least 1.
        per: Time in which this many calls may start, in seconds or as a timedelta. Default: one second.
    """

    calls: int = Field(ge=1)
    per: Seconds = Field(default=1.0, gt=0, allow_inf_nan=False)


DEAD_LETTER_TAG = "dead-letter"
"""Name of the side output that carries :class:`DeadLetter` records."""


class DeadLetter(BaseModel):
    """An event that an agent could not handle, with the reason and the place.

    Attributes:
        agent: Name of the agent.
        action: Name of the failed action; None if no action accepted the event.
        key: The key, as the key selector returned it.
        sequence_number: Number of the run within its key, from 0.
        timestamp: Event time of the input in milliseconds, or None.
        event: The event itself, with its typed payload.
        event_type: Its type string.
        error_type: Class name of the error.
        error_message: Message of the error.
        where: Your own place, ``file:line in function``.
        traceback: The traceback as text.
        attempts: All attempts, oldest first, if the action was retried.
        run_input: The input of the run, if the event is another one.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    agent: str
    action: str | None
    key: Any
    sequence_number: int
    timestamp: int | None
    event: Any
    event_type: str
    error_type: str
    error_message: str
    where: str
    traceback: str
    attempts: tuple[FailedAttempt, ...] = ()
    run_input: Any = None

    @property
    def record(self) -> Any:
        """The input of the run, which you can send to the agent again."""
        return self.event.input if self.event_type == "_input_event" else self.run_input
