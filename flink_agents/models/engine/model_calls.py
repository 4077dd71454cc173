"""Requests to models in the run of an agent of pydantic-ai: attempts follow the policies of durable calls.

Nothing repeats a request but the durable call, so that attempts are counted, logged and bounded in one place.
The libraries of providers repeat requests by themselves otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, cast

from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.models import Model

from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.errors import ActionTimeoutError, AgentsError, ModelRequestError
from flink_agents.api.models.chat import RESPONSE_LIMIT
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.failures import failed_attempt, text_of
from flink_agents.models.setup.model_failures import check_recordable, is_of_a_test, may_be_repeated

RETRY_AFTER_LIMIT = 300.0
"""Seconds to wait at most if a provider asks for it, unless ``model_calls`` says something else."""


class _Repeatable(type):
    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, Exception) and _repeats(error)


class RepeatableFailure(Exception, metaclass=_Repeatable):
    """Stands in ``retry_on`` for every failure of a provider that another attempt may not meet."""


RETRY = RetryPolicy()
"""When a request is sent again, unless ``model_calls`` of the capability says something else."""


class _TooLong(type):
    """Checks instances only: ``isinstance`` logs a WARNING when it finds one."""

    limit = RETRY_AFTER_LIMIT

    def __instancecheck__(cls, error: object) -> bool:
        asked = getattr(error, "retry_after", None)
        if not isinstance(error, Exception) or not isinstance(asked, int | float):
            return False
        return failed_attempt("an agent of pydantic-ai", text_of(error)[:500], asked, cls.limit) is None


def policy_of(policy: RetryPolicy, limit: float) -> RetryPolicy:
    """The policy by which requests are sent again.

    Args:
        policy: What the author says. Without ``retry_on`` it is for what another attempt may not meet.
        limit: Seconds to wait at most if a provider asks for it. If it asks for more, the request fails.
    """
    too_long = cast("type[Exception]", _TooLong("AsksToWaitTooLong", (Exception,), {"limit": limit}))
    changes: dict[str, Any] = {"non_retryable": (*policy.non_retryable, too_long)}
    if policy.retry_on is None:
        changes["retry_on"] = (RepeatableFailure,)
    return policy.model_copy(update=changes)


def _repeats(error: Exception) -> bool:
    if isinstance(error, ActionTimeoutError):
        return True
    if isinstance(error, ModelRequestError):
        return bool(vars(error).get("repeatable"))
    return isinstance(error, ModelAPIError | UnexpectedModelBehavior) and may_be_repeated(error)


async def asked(
    body: Callable[[], Awaitable[object]], agent: str, read: Callable[[object], object]
) -> object:
    """Await ``body``, which sends a request to a model, and return what is recorded of the answer.

    Args:
        body: Sends the request.
        agent: Name of the agent, for errors.
        read: Reads an answer from its record.

    Raises:
        AgentRunError: The request failed, as pydantic-ai says.
        ModelRequestError: A library raised something else, or all models of a ``FallbackModel`` failed.
    """
    try:
        recorded = await body()
        # An answer that cannot be read again must fail here, where it is an attempt, and not on replay.
        check_recordable(recorded)
        read(recorded)
    except (AgentRunError, AgentsError, UserError):
        raise
    except FallbackExceptionGroup as group:
        raise _of_group(group, agent) from group
    except Exception as error:
        if is_of_a_test(error):
            raise
        failed = ModelRequestError(
            f"a model of the agent {agent!r} of pydantic-ai gave an answer that its library cannot read",
            found=f"{type(error).__name__}: {text_of(error)}"[:2000],
            fix="look at what the service answers",
        )
        vars(failed).update(repeatable=True)
        raise failed from error
    return recorded


def _of_group(group: FallbackExceptionGroup, agent: str) -> ModelRequestError:
    """One failure for those of all models: one that may answer the next attempt is enough."""
    failures = list(_leaves(group))
    failed = ModelRequestError(
        f"no model of the agent {agent!r} of pydantic-ai answered",
        expected="an answer of one of its models",
        found="; ".join(f"{type(one).__name__}: {text_of(one)}" for one in failures)[:2000],
        fix="look at what each of the services answers",
    )
    again = [one for one in failures if isinstance(one, Exception) and _repeats(one)]
    # The next attempt asks all models, so it begins when the first of them may answer.
    wait = min((getattr(one, "retry_after", None) or 0.0 for one in again), default=None)
    vars(failed).update(repeatable=bool(again), retry_after=wait)
    return failed


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(one)
    else:
        yield error


def leave_retries_to_us(models: Iterable[Model]) -> None:
    """Let the clients of models send each request once, and read answers of bounded size."""
    for model in _flat(models):
        client = client_of(model)
        if getattr(client, "max_retries", 0):
            client.max_retries = 0
        bound_bodies(client, RESPONSE_LIMIT)


def _flat(models: Iterable[Model]) -> Iterator[Model]:
    """Models, and those that others stand for: of wrappers and fallbacks."""
    for model in models:
        yield model
        wrapped = getattr(model, "wrapped", None)
        inner = [*getattr(model, "models", ()), *([wrapped] if isinstance(wrapped, Model) else [])]
        yield from _flat([one for one in inner if isinstance(one, Model)])
