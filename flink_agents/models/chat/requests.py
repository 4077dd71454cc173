"""One request to a model is one recorded call.

What is recorded is the whole response, and its price where that is limited: limits that follow from these
count the same on replay.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import direct
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from flink_agents import redaction
from flink_agents.api.chat import ChatModelSpec
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable, RetryableError
from flink_agents.api.errors import ModelRequestError
from flink_agents.api.metrics import MetricGroup
from flink_agents.api.policies import RetryPolicy
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.chat.messages import Transcript, from_json, to_json
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.secrets import Secrets

_NEVER = (ModelRequestRejectedError, ModelQuotaExceededError)
"""Failures that each attempt would meet."""

_SIGNATURE = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("digest", "messages_sent")]
)
"""The parameters of the function that a request is recorded as a call of."""

_AGAIN_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_MOST_CHARACTERS = 2000
"""How much of a provider's text an error carries: a page of HTML helps nobody."""

_MOST_CAUSES = 5


@dataclass(frozen=True)
class Answer:
    """What a request came to.

    Attributes:
        response: The response.
        cost: Its price in US dollars; None where that is not known, or nobody asked.
    """

    response: ModelResponse
    cost: float | None


@dataclass(frozen=True)
class OpenModel:
    """A model that requests can be sent to.

    Attributes:
        model: The model.
        headers: Headers of each request, secrets included.
        limiter: Limits of requests.
    """

    model: Model
    headers: Mapping[str, str] = field(repr=False)
    limiter: RequestLimiter


class ModelRequests:
    """Sends the requests of one chat model. All of it runs on the agent loop.

    Args:
        name: Name of the chat model; it is part of the identity of each recorded request.
        spec: Its description.
        secrets: Keeps secrets out of errors.
        make: Makes the model, and the headers of its requests. It is called in a thread, since it imports
            the provider's library.
    """

    def __init__(
        self,
        name: str,
        spec: ChatModelSpec,
        secrets: Secrets,
        make: Callable[[], tuple[Model, Mapping[str, str]]],
    ) -> None:
        self.name = name
        self._spec = spec
        self._secrets = secrets
        self._make = make
        self._opening = asyncio.Lock()
        self._open: OpenModel | None = None
        self._retry = RetryPolicy(**spec.retry.model_dump(), retry_on=(RetryableError,))

    async def send(
        self,
        ctx: RunnerContext,
        transcript: Transcript,
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        priced: bool,
    ) -> Answer:
        """Ask the model for what comes next.

        Args:
            ctx: The context of the action.
            transcript: What was said.
            settings: Settings of this conversation.
            parameters: Tools and output.
            priced: Whether the price of the answer is recorded with it.

        Raises:
            ModelRequestError: The request failed in all its attempts.
        """
        messages = list(transcript.messages)
        metrics = ctx.agent_metric_group.get_sub_group("chat").get_sub_group(self.name)

        async def request(digest: str, messages_sent: int) -> dict[str, Any]:
            response = await self._attempt(messages, settings, parameters, metrics)
            # A service that shows the key that it was sent shows it to the records as well.
            shown = redaction.hidden(to_json([response])[0], known_only=True)
            return {"response": shown, "cost": _cost(response) if priced else None}

        # The runtime looks at the signature of each function that it is given anew, which takes long.
        vars(request)["__signature__"] = _SIGNATURE
        call = DurableCallable(request, name=f"chat:{self.name}", retry=self._retry)
        try:
            recorded = await ctx.durable_execute_async(call, transcript.digest, len(messages))
        except RetryableError as error:
            raise ModelRequestError(
                f"the chat model {self.name!r} did not answer",
                found=str(error),
                fix="look at the service; raise retry of the chat model, or give it a fallback",
            ) from None
        response = from_json([recorded["response"]])[0]
        assert isinstance(response, ModelResponse)
        return Answer(response, recorded["cost"])

    async def aclose(self) -> None:
        """Close the connections that pydantic-ai opened for the model."""
        # The way in which pydantic-ai closes clients of its own: by leaving the model's context.
        if self._open is not None:
            async with self._open.model:
                pass

    async def _opened(self) -> OpenModel:
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    model, headers = await asyncio.to_thread(self._make)
                    limiter = RequestLimiter(self._spec.max_concurrency, self._spec.rate_limit)
                    self._open = OpenModel(model, headers, limiter)
        return self._open

    def _settings(self, headers: Mapping[str, str], settings: Mapping[str, Any]) -> ModelSettings:
        merged: dict[str, Any] = {**self._secrets.resolved(self._spec.settings), **settings}
        if headers:
            merged["extra_headers"] = {**headers, **merged.get("extra_headers", {})}
        return ModelSettings(**merged)

    async def _attempt(
        self,
        messages: list[ModelMessage],
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        metrics: MetricGroup,
    ) -> ModelResponse:
        opened = await self._opened()
        async with opened.limiter.turn():
            metrics.get_counter("requests").inc()
            # pydantic-ai's own deadline, request_timeout, costs as much as all else that it does itself.
            deadline = asyncio.timeout(self._spec.timeout)
            try:
                async with deadline:
                    response = await self._response(
                        opened.model, messages, self._settings(opened.headers, settings), parameters
                    )
            except (ModelAPIError, UnexpectedModelBehavior, UserError) as error:
                metrics.get_counter("failures").inc()
                raise self._failure(error) from None
            except TimeoutError:
                metrics.get_counter("failures").inc()
                if not deadline.expired():
                    raise
                raise RetryableError(f"it gave no answer within {self._spec.timeout:g} seconds") from None
        metrics.get_counter("input_tokens").inc(response.usage.input_tokens)
        metrics.get_counter("output_tokens").inc(response.usage.output_tokens)
        return response

    async def _response(
        self,
        model: Model,
        messages: list[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if not self._spec.stream:
            return await direct.model_request(
                model, messages, model_settings=settings, model_request_parameters=parameters
            )
        async with direct.model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream:
            async for _ in stream:
                pass
            response = stream.get()
        of_service = client_of(model) is not None
        if response.state == "incomplete" or (of_service and response.finish_reason is None):
            # A service says of each answer why it ends. Where that is missing, so is the rest of the answer.
            raise UnexpectedModelBehavior("the stream ended before the answer did")
        return response

    def _failure(self, error: Exception) -> Exception:
        """What is recorded of a failed attempt: an error without secrets, which a replay can make again."""
        text = self._secrets.hide(f"{type(error).__name__}: {_with_causes(error)}")[:_MOST_CHARACTERS]
        if _may_be_repeated(error):
            return RetryableError(text, getattr(error, "retry_after", None))
        return ModelRequestError(
            f"the chat model {self.name!r} refused the request",
            found=text,
            fix="correct the request, the model's name or its key; it is not sent again",
        )


def _with_causes(error: BaseException) -> str:
    """What an error says, and what those say that led to it: its own text may be that it failed."""
    texts = [str(error)]
    while (cause := error.__cause__) is not None and len(texts) < _MOST_CAUSES:
        error = cause
        if (text := str(error)) and not any(text in earlier for earlier in texts):
            texts.append(text)
    return "; ".join(texts)


def _may_be_repeated(error: Exception) -> bool:
    if isinstance(error, ModelHTTPError):
        hint = error.provider_retry_hint
        return error.status_code in _AGAIN_STATUS if hint is None else hint
    # Without a status, the connection broke, time ran out, or the body could not be read.
    return isinstance(error, ModelAPIError | UnexpectedModelBehavior) and not isinstance(error, _NEVER)


def _cost(response: ModelResponse) -> float | None:
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return None
