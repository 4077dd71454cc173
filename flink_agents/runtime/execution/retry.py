"""Decides if an action that raised is retried, and when."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.common.durations import requested_pause
from flink_agents.api.common.policies import FailedAttempt, RetryPolicy
from flink_agents.api.durable import RetryableError, TerminalError
from flink_agents.api.errors import (
    ActionSignatureError,
    ActionTimeoutError,
    AgentsError,
    CyclicResourceError,
    EventNeverEmittedError,
    FunctionReferenceError,
    MissingExtraError,
    MissingResourceError,
    RecordedFailureError,
    ResourceUnavailableError,
    UnknownEventError,
    UnknownTriggerError,
)
from flink_agents.runtime.serde.raised_texts import shown_text
from flink_agents.runtime.serde.typenames import find_error

PROGRAMMING_ERRORS = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    AssertionError,
    SyntaxError,
    ImportError,
    NotImplementedError,
    AgentsError,
)
"""Errors that a retry would meet again."""

DEPLOYMENT_ERRORS = (
    ResourceUnavailableError,
    UnknownEventError,
    FunctionReferenceError,
    MissingExtraError,
    ModuleNotFoundError,
    # The definition of a sub-agent, which is compiled when it is called first.
    ActionSignatureError,
    CyclicResourceError,
    EventNeverEmittedError,
    MissingResourceError,
    UnknownTriggerError,
)
"""Errors of the job and its workers. Every record would meet them, so no single record is at fault."""

MAX_MESSAGE = 1000
"""The most characters of an error's text in the record of an attempt."""


@dataclass(slots=True)
class RetryState:
    """The attempts before an attempt that is a retry, or whose run was suspended.

    Attributes:
        failed: The attempts before it, oldest first.
        since: Time of the first failure, by the clock that measures attempts.
        delay: Seconds to wait before the attempt.
        ran: Seconds for which attempts with timeouts had run when their run was suspended, by their names in
            state; or None.
    """

    failed: tuple[FailedAttempt, ...] = ()
    since: float = 0.0
    delay: float = 0.0
    ran: dict[str, float] | None = None


def next_attempt(
    policy: RetryPolicy,
    retry_state: RetryState | None,
    error: BaseException,
    seed: str,
    now: float | None = None,
) -> RetryState | None:
    """Return the attempt that follows one that raised; None if ``policy`` allows no other.

    Args:
        policy: The policy.
        retry_state: The attempt that raised; None for a first one.
        error: The exception that it raised.
        seed: Seed of the jitter: equal for all attempts of one step in one run.
        now: The present time, by the clock that measures attempts. Default: ``time.monotonic()``.
    """
    failed = retry_state.failed if retry_state is not None else ()
    number = len(failed) + 1
    if not is_retryable(policy, error) or (policy.max_attempts is not None and number >= policy.max_attempts):
        return None
    now = time.monotonic() if now is None else now
    since = retry_state.since if retry_state is not None and failed else now
    delay = max(pause(policy, number, seed), retry_after(error) or 0.0)
    if policy.max_duration is not None and now + delay - since > policy.max_duration:
        return None
    return RetryState((*failed, record(number, error, delay)), since, delay)


def stored_attempts(state: RetryState | None, now: float) -> list[list[Any]]:
    """Return the failed attempts in the form that state stores for a run that is suspended ``now``.

    The first list has the seconds since the first failure, and those that attempts ran. After it, each
    attempt has a list: number, type and text of its error, delay. It is empty for a first attempt.
    """
    if state is None or not (state.failed or state.ran):
        return []
    failed = [
        [attempt.number, attempt.error_type, attempt.error_message, attempt.delay] for attempt in state.failed
    ]
    return [[now - state.since if failed else 0.0, state.ran or {}], *failed]


def resumed_attempt(stored: Sequence[Sequence[Any]], now: float) -> RetryState | None:
    """Return the attempt that resumes ``now``, from the form that :func:`stored_attempts` returned."""
    if not stored:
        return None
    (elapsed, *ran), *failed = stored
    attempts = tuple(
        FailedAttempt(number=number, error_type=kind, error_message=message, delay=delay)
        for number, kind, message, delay in failed
    )
    since = now - elapsed if attempts else 0.0
    return RetryState(attempts, since, ran=dict(ran[0]) if ran else None)


def record(number: int, error: BaseException, delay: float | None = None) -> FailedAttempt:
    """Return a summary of an attempt that raised ``error``."""
    message = error.message if isinstance(error, AgentsError) else shown_text(error)
    return FailedAttempt(
        number=number,
        error_type=type(error).__qualname__,
        error_message=message[:MAX_MESSAGE],
        delay=delay,
    )


def is_of_deployment(error: BaseException) -> bool:
    """Return True if the job or its workers caused a failure, and not the record."""
    errors: list[BaseException] = [error]
    seen: set[int] = set()
    while errors:
        current_error = errors.pop()
        if id(current_error) in seen:  # causes can lead in a circle
            continue
        seen.add(id(current_error))
        if isinstance(current_error, DEPLOYMENT_ERRORS):
            return True
        if isinstance(current_error, BaseExceptionGroup):
            errors += current_error.exceptions
        elif isinstance(current_error, AgentsError) and current_error.__cause__ is not None:
            errors.append(current_error.__cause__)
    return False


def is_retryable(policy: RetryPolicy, error: BaseException) -> bool:
    """Return True if ``policy`` retries after ``error``. A group is retryable if each of its errors is."""
    if isinstance(error, BaseExceptionGroup):
        inner: Any = error
        return all(is_retryable(policy, exception) for exception in inner.exceptions)
    if isinstance(error, RecordedFailureError):
        return _is_retryable_as_recorded(policy, error)
    if isinstance(error, TerminalError) or isinstance(error, policy.non_retryable):
        return False
    if isinstance(error, RetryableError):
        return True
    if policy.retry_on is not None:
        return isinstance(error, policy.retry_on)
    if isinstance(error, ActionTimeoutError):
        return True
    return isinstance(error, Exception) and not isinstance(error, PROGRAMMING_ERRORS)


def _is_retryable_as_recorded(policy: RetryPolicy, error: RecordedFailureError) -> bool:
    """Return True if ``policy`` retries after the original error that a recorded failure represents."""
    if isinstance(error, policy.non_retryable):
        return False
    if policy.retry_on is not None and isinstance(error, policy.retry_on):
        return True
    if error.__cause__ is not None:
        return is_retryable(policy, error.__cause__)
    kind = find_error(error.error_type) or Exception
    if issubclass(kind, (TerminalError, *policy.non_retryable)):
        return False
    if issubclass(kind, RetryableError):
        return True
    if policy.retry_on is not None:
        return issubclass(kind, policy.retry_on)
    return issubclass(kind, Exception) and not issubclass(kind, PROGRAMMING_ERRORS)


def pause(policy: RetryPolicy, number: int, seed: str) -> float:
    """Return the seconds between attempt ``number``, counted from 1, and the next one."""
    try:
        full = min(policy.max_interval, policy.initial_interval * policy.factor ** (number - 1))
    except OverflowError:
        full = policy.max_interval
    digest = hashlib.blake2b(f"{seed}\x00{number}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    chance = random.Random(int.from_bytes(digest, "big")).random()
    return full * (1 - policy.jitter * chance)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds for which ``error`` asks not to be retried; None if it does not ask.

    Of a group, the longest counts.
    """
    if isinstance(error, BaseExceptionGroup):
        inner: Any = error
        return max((retry_after(exception) or 0.0 for exception in inner.exceptions), default=None)
    if error.__cause__ is not None and isinstance(error, (RecordedFailureError, type(error.__cause__))):
        # A recorded failure may lack attributes that the original error had.
        requested = _requested_pause(error)
        return requested if requested is not None else _requested_pause(error.__cause__)
    return _requested_pause(error)


def _requested_pause(error: BaseException) -> float | None:
    """Return the seconds of ``retry_after``, or of the header ``Retry-After`` of its response; or None."""
    # Foreign classes may have anything under these names. Reading it must not raise.
    try:
        requested = getattr(error, "retry_after", None)
        if requested is None:
            requested = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After")
        return requested_pause(requested)
    except BaseException:
        return None
