"""How an action or a tool is executed: retries, timeout, limits; checked where the author wrote it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.policies import RateLimit, RetryPolicy


@dataclass(frozen=True)
class CallSettings:
    """What was said about the execution of an action or a tool.

    Attributes:
        retry: When and how often an action that raised is tried again; None for the agent's.
        timeout: Seconds after which an attempt of an action fails; None for never.
        max_concurrency: How many calls may run at a time in a subtask; None for no limit.
        rate_limit: How many calls may begin in a time in a subtask; None for no limit.
        blocking: Whether a ``def`` action never runs on Flink's thread.
    """

    retry: RetryPolicy | None = None
    timeout: float | None = None
    max_concurrency: int | None = None
    rate_limit: RateLimit | None = None
    blocking: bool = False


def check_settings(
    what: str,
    where: str | None,
    *,
    retry: object = None,
    timeout: object = None,
    max_concurrency: object = None,
    rate_limit: object = None,
    blocking: object = False,
) -> CallSettings:
    """The settings, if each is what it has to be.

    Args:
        what: What has the settings, for the error.
        where: Its place in the code, if known.
        retry: See :class:`CallSettings`, as all below.
        timeout: Also a ``timedelta``.
        max_concurrency: See there.
        rate_limit: See there.
        blocking: See there.

    Raises:
        AgentDefinitionError: One is not.
    """
    if not isinstance(blocking, bool):
        raise _wrong(what, where, "blocking", "True or False", blocking, "blocking=True")
    return CallSettings(
        retry=check_retry(retry, what, where),
        timeout=_check_timeout(timeout, what, where),
        max_concurrency=_check_concurrency(max_concurrency, what, where),
        rate_limit=_check_rate(rate_limit, what, where),
        blocking=blocking,
    )


def check_retry(value: object, what: str, where: str | None = None) -> RetryPolicy | None:
    """``value`` as a retry policy, or None.

    Raises:
        AgentDefinitionError: It is something else.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    raise _wrong(what, where, "retry", "a RetryPolicy", value, "retry=RetryPolicy(max_attempts=3)")


def _check_timeout(value: object, what: str, where: str | None) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if math.isfinite(seconds) and seconds > 0:
            return float(seconds)
    raise _wrong(what, where, "timeout", "seconds, more than 0", value, "timeout=30")


def _check_concurrency(value: object, what: str, where: str | None) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise _wrong(what, where, "max_concurrency", "a whole number, at least 1", value, "max_concurrency=4")


def _check_rate(value: object, what: str, where: str | None) -> RateLimit | None:
    if value is None or isinstance(value, RateLimit):
        return value
    raise _wrong(what, where, "rate_limit", "a RateLimit", value, "rate_limit=RateLimit(10, per=1)")


def _wrong(
    what: str, where: str | None, name: str, expected: str, found: object, example: str
) -> AgentDefinitionError:
    return AgentDefinitionError(
        f"{what} has a {name} that cannot be used",
        expected=expected,
        found=repr(found),
        fix=f"write {example}, or leave it out",
        where=where,
    )
