"""Requests to models in the run of an agent of pydantic-ai: attempts follow the policies of durable calls.

Nothing repeats a request but the durable call, so that attempts are counted, logged and bounded in one place.
The libraries of providers repeat requests by themselves otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator

from pydantic_ai.exceptions import AgentRunError, ModelAPIError, UnexpectedModelBehavior, UserError
from pydantic_ai.models import Model
from pydantic_core import PydanticSerializationError

from flink_agents.api.chat import RESPONSE_LIMIT
from flink_agents.api.errors import AgentsError, ModelRequestError
from flink_agents.api.policies import RetryPolicy
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.failures import failed_attempt
from flink_agents.models.setup.model_failures import is_of_a_test, may_be_repeated

RETRY_AFTER_LIMIT = 300.0
"""Seconds to wait at most if a provider asks for it."""


class _Repeatable(type):
    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, Exception) and _repeats(error)


class RepeatableFailure(Exception, metaclass=_Repeatable):
    """Stands in ``retry_on`` for every failure of a provider that another attempt may not meet."""


RETRY = RetryPolicy(retry_on=(RepeatableFailure,))
"""When a request is sent again, unless ``model_calls`` of the capability says something else."""


def _repeats(error: Exception) -> bool:
    if not isinstance(error, ModelAPIError | UnexpectedModelBehavior | _OddAnswerError):
        return False
    if not isinstance(error, _OddAnswerError) and not may_be_repeated(error):
        return False
    asked = getattr(error, "retry_after", None)
    return failed_attempt("an agent of pydantic-ai", str(error)[:500], asked, RETRY_AFTER_LIMIT) is not None


class _OddAnswerError(ModelRequestError):
    """What the library of a provider raised because of an answer that it did not expect."""


async def asked(body: Callable[[], Awaitable[object]], agent: str) -> object:
    """Await ``body``, which sends a request to a model.

    Raises:
        AgentRunError: The request failed, as pydantic-ai says.
        ModelRequestError: A library raised something else.
    """
    try:
        return await body()
    except (AgentRunError, AgentsError, UserError, PydanticSerializationError):
        raise
    except Exception as error:
        if is_of_a_test(error):
            raise
        raise _OddAnswerError(
            f"a model of the agent {agent!r} of pydantic-ai gave an answer that its library cannot read",
            found=f"{type(error).__name__}: {error}"[:2000],
            fix="look at what the service answers",
        ) from error


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
