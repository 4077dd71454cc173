"""One request to a model is one recorded call.

What is recorded is the whole response, and its price where that is limited: limits that follow from these
count the same on replay.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from pydantic_ai import direct
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from flink_agents import redaction
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.metrics import MetricGroup
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable, RetryableError
from flink_agents.api.errors import AgentsError, ModelRefusedError, ModelRequestError
from flink_agents.api.models.chat import ChatModelSpec, OnRefusal
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.chat.messages import Transcript, from_json, to_json
from flink_agents.models.setup.failures import failed_attempt
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.model_failures import (
    check_recordable,
    is_of_a_test,
    may_be_repeated,
    refusal_in,
    refusal_of,
    with_causes,
)
from flink_agents.models.setup.secrets import Secrets

_SIGNATURE = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("digest", "messages_sent")]
)
"""The parameters of the function that a request is recorded as a call of."""

_MOST_CHARACTERS = 2000
"""How much of a provider's text an error carries: a page of HTML helps nobody."""


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
            recorded = await self._attempt(messages, settings, parameters, metrics, priced)
            # A service that shows the key that it was sent shows it to the records as well.
            return redaction.hidden(recorded, known_only=True)

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
        if (reason := recorded.get("refused")) is not None:
            raise self._refused(reason)
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
        priced: bool,
    ) -> dict[str, Any]:
        """Send the request once; returns what is recorded of the answer.

        Raises:
            RetryableError: It failed, and may be sent again.
            ModelRequestError: It failed, and would again.
        """
        opened = await self._opened()
        asked = time.monotonic()
        async with opened.limiter.turn():
            begun = time.monotonic()
            metrics.get_counter("limit_wait_ms").inc(round(1000 * (begun - asked)))
            metrics.get_counter("requests").inc()
            # pydantic-ai's own deadline, request_timeout, costs as much as all else that it does itself.
            deadline = asyncio.timeout(self._spec.timeout)
            try:
                async with deadline:
                    response = await self._response(
                        opened.model, messages, self._settings(opened.headers, settings), parameters
                    )
                recorded = self._recordable(response, priced)
            except AgentsError:
                raise
            except Exception as error:  # whatever the library of the provider raises
                metrics.get_counter("failures").inc()
                if is_of_a_test(error):
                    raise
                if isinstance(error, TimeoutError) and deadline.expired():
                    text = f"it gave no answer within {self._spec.timeout:g} seconds"
                    raise RetryableError(text) from None
                if (reason := refusal_of(error)) is not None and self._spec.on_refusal is not OnRefusal.RETRY:
                    return {"refused": self._hidden(reason)}
                raise self._failure(error) from None
        metrics.get_histogram("latency_ms").update(round(1000 * (time.monotonic() - begun)))
        if cost := recorded.get("cost"):
            # Flink counts whole numbers.
            metrics.get_counter("cost_micro_usd").inc(round(1_000_000 * cost))
        metrics.get_counter("input_tokens").inc(response.usage.input_tokens)
        metrics.get_counter("output_tokens").inc(response.usage.output_tokens)
        return recorded

    def _recordable(self, response: ModelResponse, priced: bool) -> dict[str, Any]:
        """What is recorded of an answer.

        Raises:
            RetryableError: The model refuses, and is to be asked again.
            Exception: The answer cannot be recorded, or not read again.
        """
        if (reason := refusal_in(response)) is not None:
            if self._spec.on_refusal is OnRefusal.RETRY:
                raise RetryableError(f"it refused to answer: {self._hidden(reason)}")
            return {"refused": self._hidden(reason)}
        response.usage = bounded_usage(response.usage)
        recorded = to_json([response])[0]
        # An answer that nobody can read again must fail here, where it is an attempt, and not on replay.
        check_recordable(recorded)
        from_json([recorded])
        return {"response": recorded, "cost": _cost(response) if priced else None}

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
        if isinstance(error, RetryableError):
            return error
        text = self._hidden(f"{type(error).__name__}: {with_causes(error)}")
        if not may_be_repeated(error):
            return ModelRequestError(
                f"the chat model {self.name!r} refused the request",
                found=text,
                fix="correct the request, the model's name or its key; it is not sent again",
            )
        asked, limit = getattr(error, "retry_after", None), self._spec.retry_after_limit
        again = failed_attempt(f"the chat model {self.name!r}", text, asked, limit)
        return again or ModelRequestError(
            f"the chat model {self.name!r} asks to wait too long",
            expected=f"at most {limit:g} seconds, which is retry_after_limit",
            found=f"{asked:g} seconds; {text}",
            fix="raise retry_after_limit of the chat model, or give it a fallback",
        )

    def _refused(self, reason: str) -> ModelRefusedError:
        return ModelRefusedError(
            f"the chat model {self.name!r} refused to answer",
            expected="an answer",
            found=reason,
            fix="look at what it was told; on_refusal='retry' of the chat model asks it again, and "
            "'fallback' asks its fallbacks",
        )

    def _hidden(self, text: object) -> str:
        return self._secrets.hide(text, _MOST_CHARACTERS)


_MOST_TOKENS = 2**53
"""More tokens than any answer has. Larger numbers are no counts, and metrics cannot hold a sum of them."""

_log = bounded_logger("flink_agents.models")


def bounded_usage(usage: RequestUsage) -> RequestUsage:
    """Numbers of tokens of an answer within what numbers of tokens can be: a service may say anything."""
    return replace(
        usage,
        details={name: _tokens(number) for name, number in usage.details.items()},
        **{name: _tokens(getattr(usage, name)) for name in _names_of(type(usage))},
    )


@cache
def _names_of(kind: type[RequestUsage]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind) if one.name.endswith("_tokens"))


def _tokens(number: Any) -> int:
    """A number of tokens; 0 for what is none."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int) or 0 <= number <= _MOST_TOKENS:
        return number if isinstance(number, int) else 0
    _log.warning("a service says that an answer used %s tokens, which cannot be", str(number)[:50])
    return _MOST_TOKENS if number > 0 else 0


def _cost(response: ModelResponse) -> float | None:
    try:
        return float(response.cost().total_price)
    except Exception:  # the library of prices knows the model, or it does not
        return None
