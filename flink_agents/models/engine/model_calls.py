"""Requests to models in the run of a Pydantic AI agent: attempts follow the policies of durable steps.

Only the durable step repeats a request, so that attempts are counted, logged and bounded in one place. By
default, the libraries of providers repeat requests, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, cast

from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.models import Model

from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.errors import ActionTimeoutError, AgentsError, ModelRequestError
from flink_agents.api.models.chat import RESPONSE_LIMIT
from flink_agents.api.resources.raised_notes import attribute_of
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.failures import failed_attempt, text_of, was_not_sent
from flink_agents.models.setup.model_failures import (
    is_of_a_test,
    may_be_repeated,
    recordable_text,
    requested_wait,
)

RETRY_AFTER_LIMIT = 300.0
"""Default of ``retry_after_limit``: the longest ``Retry-After`` to wait for, in seconds."""


class _Repeatable(type):
    """Checks instances only: an exception is one if it is a transient failure."""

    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, Exception) and _may_repeat(error)


class RepeatableFailure(Exception, metaclass=_Repeatable):
    """Represents, in ``retry_on``, every transient failure of a provider."""


RETRY = RetryPolicy()
"""Default retry policy of model requests."""


class _TooLong(type):
    """Checks instances only: an exception is one if it asks for a longer wait than ``limit``.

    ``isinstance`` logs a WARNING about such an exception.

    Attributes:
        limit: The longest wait, in seconds.
    """

    limit = RETRY_AFTER_LIMIT

    def __instancecheck__(cls, error: object) -> bool:
        if not isinstance(error, Exception):
            return False
        seconds = attribute_of(error, "retry_after")
        if not isinstance(seconds, int | float):
            return False
        return failed_attempt("an agent of pydantic-ai", text_of(error)[:500], seconds, cls.limit) is None


def policy_of(policy: RetryPolicy, limit: float) -> RetryPolicy:
    """Return an author's retry policy as the policy of the durable steps of model requests.

    Args:
        policy: The author's policy. Without ``retry_on`` it applies to transient failures.
        limit: The longest ``Retry-After`` to wait for, in seconds. If a provider asks for more, the request
            fails.
    """
    too_long = cast("type[Exception]", _TooLong("AsksToWaitTooLong", (Exception,), {"limit": limit}))
    changes: dict[str, Any] = {"non_retryable": (*policy.non_retryable, too_long)}
    if policy.retry_on is None:
        changes["retry_on"] = (RepeatableFailure,)
    return policy.model_copy(update=changes)


def _may_repeat(error: Exception) -> bool:
    """Return True if a failed request may succeed in another attempt."""
    if isinstance(error, ActionTimeoutError):
        return True
    if isinstance(error, ModelRequestError):
        return bool(vars(error).get("repeatable"))
    return isinstance(error, ModelAPIError | UnexpectedModelBehavior) and may_be_repeated(error)


async def send_request(
    body: Callable[[], Awaitable[object]], agent: str, read: Callable[[object], object]
) -> object:
    """Await ``body``, which sends a request to a model, and return the record of the answer.

    Args:
        body: Sends the request, and returns the answer as its record.
        agent: Name of the agent, for errors.
        read: Reads an answer from its record; it raises if a replay could not.

    Raises:
        AgentRunError: The request failed with an error of pydantic-ai.
        ModelRequestError: A library raised another error, or all models of a ``FallbackModel`` failed.
    """
    try:
        recorded = await body()
        # An unreadable answer must fail here, where it is an attempt, and not on replay.
        recordable_text(recorded)
        read(recorded)
    except ModelHTTPError as error:
        # The policy reads the wait there.
        error.retry_after = requested_wait(error)
        raise
    except (AgentRunError, AgentsError, UserError):
        raise
    except FallbackExceptionGroup as group:
        raise _fallbacks_error(group, agent) from group
    except Exception as error:
        if is_of_a_test(error):
            raise
        if was_not_sent(error):
            raise ModelRequestError(
                f"a request of the agent {agent!r} of pydantic-ai could not be written",
                expected="messages, tools and settings that JSON can hold",
                found=f"{type(error).__name__}: {text_of(error)}"[:2000],
                fix="correct the settings, the tools' schemas or the messages; nothing was sent",
            ) from error
        unreadable_error = ModelRequestError(
            f"a model of the agent {agent!r} of pydantic-ai gave an answer that its library cannot read",
            found=f"{type(error).__name__}: {text_of(error)}"[:2000],
            fix="check the answers of the service",
        )
        vars(unreadable_error).update(repeatable=True)
        raise unreadable_error from error
    return recorded


def _fallbacks_error(group: FallbackExceptionGroup, agent: str) -> ModelRequestError:
    """Return one error for the failures of all models: it is transient if one of them is."""
    failures = list(_leaf_errors(group))
    error = ModelRequestError(
        f"no model of the agent {agent!r} of pydantic-ai answered",
        expected="an answer of one of its models",
        found="; ".join(f"{type(failure).__name__}: {text_of(failure)}" for failure in failures)[:2000],
        fix="check the answers of each service",
    )
    transient = [failure for failure in failures if isinstance(failure, Exception) and _may_repeat(failure)]
    # The next attempt asks all models, so it starts when the first of them may answer.
    wait = min((requested_wait(failure) or 0.0 for failure in transient), default=None)
    vars(error).update(repeatable=bool(transient), retry_after=wait)
    return error


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, at any depth; the exception itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for exception in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaf_errors(exception)
    else:
        yield error


def leave_retries_to_us(models: Iterable[Model]) -> None:
    """Configure the clients of models to send each request once and to read answers of bounded size."""
    for model in _flatten_models(models):
        client = client_of(model)
        if getattr(client, "max_retries", 0):
            client.max_retries = 0
        bound_bodies(client, RESPONSE_LIMIT)


def _flatten_models(models: Iterable[Model]) -> Iterator[Model]:
    """Yield models, and those inside of wrappers and fallbacks."""
    for model in models:
        yield model
        wrapped = getattr(model, "wrapped", None)
        inner_models = [*getattr(model, "models", ()), wrapped]
        yield from _flatten_models(inner for inner in inner_models if isinstance(inner, Model))
