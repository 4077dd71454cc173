"""Whether, and when, an action that raised is tried again."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

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
from flink_agents.runtime.execution.limits import Slot
from flink_agents.runtime.serde.tracebacks import text_of
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
"""Errors that another attempt would meet again."""

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
"""Errors of the job and its workers, which each record would meet: none of them is the fault of a record."""

MAX_MESSAGE = 1000
"""How much of an error's text the record of an attempt keeps."""


@dataclass(slots=True)
class RetryState:
    """What is known of an attempt that is not the first, or not on Flink's thread.

    Attributes:
        failed: The attempts before it, oldest first.
        since: Time of the first failure, by the clock of the attempts.
        delay: Seconds to wait before it.
        slot: Its slot among what is executed; None until it has one.
    """

    failed: tuple[FailedAttempt, ...] = ()
    since: float = 0.0
    delay: float = 0.0
    slot: Slot | None = None


def next_trial(
    policy: RetryPolicy, trial: RetryState | None, error: BaseException, seed: str, now: float | None = None
) -> RetryState | None:
    """The attempt that follows one that raised; None where ``policy`` has none.

    Args:
        policy: The policy.
        trial: The attempt that raised; None for a first one.
        error: What it raised.
        seed: What the jitter derives from: equal for attempts of one step in one run.
        now: The present, by the clock of the attempts. Default: ``time.monotonic()``.
    """
    failed = trial.failed if trial is not None else ()
    number = len(failed) + 1
    if not is_retryable(policy, error) or (policy.max_attempts is not None and number >= policy.max_attempts):
        return None
    now = time.monotonic() if now is None else now
    since = trial.since if trial is not None and failed else now
    delay = max(pause(policy, number, seed), retry_after(error) or 0.0)
    if policy.max_duration is not None and now + delay - since > policy.max_duration:
        return None
    return RetryState((*failed, record(number, error, delay)), since, delay)


def kept_trial(trial: RetryState | None) -> list[list[Any]]:
    """What state keeps of the attempts before one whose run is suspended; nothing where it is the first."""
    if trial is None or not trial.failed:
        return []
    failed = [[one.number, one.error_type, one.error_message, one.delay] for one in trial.failed]
    return [[time.monotonic() - trial.since], *failed]


def resumed_trial(kept: Sequence[Sequence[Any]]) -> RetryState:
    """The attempt that goes on, of which :func:`kept_trial` gave ``kept``."""
    if not kept:
        return RetryState()
    (elapsed,), *failed = kept
    attempts = tuple(
        FailedAttempt(number=number, error_type=kind, error_message=message, delay=delay)
        for number, kind, message, delay in failed
    )
    return RetryState(attempts, time.monotonic() - elapsed)


def record(number: int, error: BaseException, delay: float | None = None) -> FailedAttempt:
    """What is kept of an attempt that raised ``error``."""
    message = error.message if isinstance(error, AgentsError) else text_of(error)
    return FailedAttempt(
        number=number,
        error_type=type(error).__qualname__,
        error_message=message[:MAX_MESSAGE],
        delay=delay,
    )


def is_of_deployment(error: BaseException) -> bool:
    """True if the job or its workers are the reason of a failure, and not the record."""
    found: list[BaseException] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if id(one) in seen:  # causes can lead in a circle
            continue
        seen.add(id(one))
        if isinstance(one, DEPLOYMENT_ERRORS):
            return True
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
        elif isinstance(one, AgentsError) and one.__cause__ is not None:
            found.append(one.__cause__)
    return False


def is_retryable(policy: RetryPolicy, error: BaseException) -> bool:
    """Whether ``policy`` tries again after ``error``: of a group, after each error in it."""
    if isinstance(error, BaseExceptionGroup):
        inner: Any = error
        return all(is_retryable(policy, one) for one in inner.exceptions)
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
    """Whether ``policy`` tries again after the error that ``error`` stands for."""
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
    """Seconds between attempt ``number``, from 1, and the next one."""
    try:
        full = min(policy.max_interval, policy.initial_interval * policy.factor ** (number - 1))
    except OverflowError:
        full = policy.max_interval
    digest = hashlib.blake2b(f"{seed}\x00{number}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    chance = random.Random(int.from_bytes(digest, "big")).random()
    return full * (1 - policy.jitter * chance)


def retry_after(error: BaseException) -> float | None:
    """Seconds for which ``error`` asks to be left alone, or None."""
    if isinstance(error, BaseExceptionGroup):
        inner: Any = error
        return max((retry_after(one) or 0.0 for one in inner.exceptions), default=None)
    if error.__cause__ is not None and isinstance(error, (RecordedFailureError, type(error.__cause__))):
        # What stands for an error that a durable call raised may not have all that the error had.
        asked = _asked_pause(error)
        return asked if asked is not None else _asked_pause(error.__cause__)
    return _asked_pause(error)


def _asked_pause(error: BaseException) -> float | None:
    # What foreign classes have under these names is not known: nothing of it may raise.
    try:
        asked = getattr(error, "retry_after", None)
        if asked is None:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After")
        return _seconds(asked)
    except BaseException:
        return None


def _seconds(asked: Any) -> float | None:
    if asked is None or isinstance(asked, bool):
        return None
    if isinstance(asked, timedelta):
        seconds = asked.total_seconds()
    elif isinstance(asked, str) and not asked.strip().replace(".", "", 1).isdigit():
        # The date of an HTTP header.
        seconds = parsedate_to_datetime(asked).timestamp() - time.time()
    else:
        seconds = float(asked)
    return max(0.0, seconds) if math.isfinite(seconds) else None
