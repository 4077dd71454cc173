"""Exceptions about the execution of actions; see ``errors``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from flink_agents.api.errors.base import AgentsError, attempt_lines


class RunError(AgentsError):
    """An error occurred while an agent handled an event."""

    code = "FA4000"


class FailedAttempt(BaseModel):
    """A failed attempt of an action.

    Attributes:
        number: Number of the attempt within its action, from 1.
        error_type: Class name of the error.
        error_message: Message of the error.
        delay: Pause before the next attempt, in seconds; None if there was no further attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    error_type: str
    error_message: str
    delay: float | None = None

    def __str__(self) -> str:
        pause = "" if self.delay is None else f" (next after {self.delay:.3g} s)"
        return f"attempt {self.number}: {self.error_type}: {self.error_message}{pause}"


class ActionFailedError(RunError):
    """An action raised, and its error policy is to fail the job.

    Attributes:
        agent: Name of the agent.
        action: Name of the action.
        key: The key, as the key selector returned it.
        sequence_number: Number of the run within its key, from 0.
        event: Type string of the event that the action handled.
        attempts: All attempts, oldest first, if the action was retried; otherwise empty.
        error_code: Code of the error of this package that the action raised; empty if it raised another one.
    """

    code = "FA4001"
    # For errors that an earlier version recorded.
    error_code: str = ""

    def __init__(
        self,
        message: str,
        *,
        agent: str,
        action: str,
        key: object,
        sequence_number: int,
        event: str,
        attempts: tuple[FailedAttempt, ...] = (),
        error_code: str = "",
        **kwargs: Any,
    ) -> None:
        self.attempts = attempts
        self.error_code = error_code
        self.agent = agent
        self.action = action
        self.key = key
        self.sequence_number = sequence_number
        self.event = event
        super().__init__(message, **kwargs)

    def _detail_lines(self) -> list[str]:
        return [
            f"  agent {self.agent}, action {self.action}, key {self.key!r}, "
            f"sequence {self.sequence_number}, event {self.event}",
            *(f"  {line}" for line in attempt_lines(self.attempts)),
        ]

    def _help_codes(self) -> list[str]:
        # The action's own error is the most important line for the author.
        return [*filter(None, [self.error_code]), self.code]


class NotAnEventError(RunError, TypeError):
    """An action returned, yielded or sent a value that is not an event."""

    code = "FA4002"


class UnknownEventError(RunError):
    """An action emitted an event of a type that no action of the agent handles."""

    code = "FA4003"


class UnhandledEventError(RunError):
    """No action accepted an event, because no condition held."""

    code = "FA4004"


class UnknownSideOutputError(RunError):
    """``emit_to`` got the name of a side output that the agent does not declare."""

    code = "FA4005"


class ResourceNotFoundError(RunError):
    """``get_resource`` got the name of a resource that the agent does not have."""

    code = "FA4006"


class ResourceUnavailableError(RunError):
    """A declared resource cannot be created: a provider or a secret is missing, or its class raises."""

    code = "FA4007"


class ContextMisuseError(RunError):
    """The context is used in the wrong place: in another thread, or after the action."""

    code = "FA4008"


class MemoryPathError(RunError):
    """A memory path is malformed, missing, or leads through a value that is not an object."""

    code = "FA4009"


class EventLimitError(RunError):
    """One run emitted more events than ``run.max-events`` allows."""

    code = "FA4010"


class ActionTimeoutError(RunError, TimeoutError):
    """An action took longer than its ``timeout``.

    Attributes:
        seconds: The timeout, in seconds; 0.0 if it is unknown.
    """

    code = "FA4011"

    def __init__(self, message: str, *, seconds: float = 0.0, **kwargs: Any) -> None:
        self.seconds = seconds
        super().__init__(message, **kwargs)


class RetriesExhaustedError(ActionFailedError):
    """An action raised in every attempt that its retry policy allows, and its error policy is to fail."""

    code = "FA4012"


class ActionInterruptedError(ActionFailedError, KeyboardInterrupt):
    """An action raised a ``KeyboardInterrupt``, which no policy catches."""

    code = "FA4017"


class NonDeterminismError(RunError):
    """A replay makes another durable step than was recorded."""

    code = "FA4013"


class DurableResultError(RunError):
    """The result of a durable step cannot be recorded."""

    code = "FA4014"


class SignalTimeoutError(RunError, TimeoutError):
    """No signal came before the timeout of an action's wait."""

    code = "FA4018"


class NoMoreSignalsError(RunError):
    """An action waits for a signal, but the input has ended."""

    code = "FA4019"


class ApprovalDeniedError(RunError):
    """An action called a tool that needs an approval, and the call was not approved.

    Attributes:
        decision: The outcome of the request: ``denied``, ``expired`` or ``ended``.
    """

    code = "FA4020"

    def __init__(self, message: str, *, decision: str = "", **kwargs: Any) -> None:
        self.decision = decision
        super().__init__(message, **kwargs)


class RunDeadlineError(RunError, TimeoutError):
    """An action waits, and its run has reached the deadline of runs."""

    code = "FA4021"


class MissingAwaitError(RunError, TypeError):
    """An action uses a coroutine in place of its result, or ends without awaiting a call or a wait."""

    code = "FA4022"


class OutputTypeError(RunError, TypeError):
    """An output does not have the type that the agent declares."""

    code = "FA4023"


class AgentOutputsError(RunError):
    """A sub-agent returned no output, or several."""

    code = "FA4024"


class InvalidDurationError(RunError, ValueError):
    """A duration is invalid: a delay, a sleep, or a timeout."""

    code = "FA4025"


class NoVerdictError(RunError, TypeError):
    """A validator emitted a value that is not a verdict."""

    code = "FA4026"


class UnsavedChangeError(RunError):
    """An action changed a value that it had read from memory, but did not store it."""

    code = "FA4027"


class RunEndedError(RunError):
    """A person ended the run with ``flink-agents runs end``. It is the error of its dead letter."""

    code = "FA4040"


class RecordedFailureError(RunError):
    """A durable step failed in an earlier attempt, with an exception that cannot be restored.

    Attributes:
        error_type: The class of that exception, ``module:qualname``.
    """

    code = "FA4015"

    def __init__(self, message: str, *, error_type: str = "", **kwargs: Any) -> None:
        self.error_type = error_type
        super().__init__(message, **kwargs)
