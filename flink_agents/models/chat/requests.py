"""One request to a model is one recorded call.

The record holds the whole response, and its price if cost is limited: a replay counts the same usage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from pydantic_ai import direct
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
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
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.models.chat.endpoint import client_of
from flink_agents.models.chat.messages.converting import Transcript, to_json
from flink_agents.models.setup.failures import failed_attempt, was_not_sent
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.model_failures import (
    is_of_a_test,
    may_be_repeated,
    recordable_text,
    refusal_in,
    refusal_of,
    requested_wait,
    with_causes,
)
from flink_agents.models.setup.secrets import Secrets

_MOST_CHARACTERS = 2000
"""Maximum number of characters of a provider's message in an error: a page of HTML is useless there."""


@dataclass(frozen=True)
class RequestAnswer:
    """The answer of a model to one request.

    Attributes:
        response: The model's message, with the usage of the request.
        cost: Its price in US dollars; None if it is unknown or was not requested.
    """

    response: ModelResponse
    cost: float | None


@dataclass(frozen=True)
class OpenModel:
    """A model that is ready for requests.

    Attributes:
        model: The model of pydantic-ai, with an open client.
        settings: Settings of each request by name, secrets included.
        headers: HTTP headers of each request by name, secrets included.
        limiter: Limits the number and the rate of requests.
    """

    model: Model
    settings: Mapping[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    limiter: RequestLimiter


class ModelRequests:
    """Sends the requests of one chat model. All of it runs on the agent loop.

    Args:
        name: Name of the chat model; it is part of the identity of each recorded request.
        spec: The description of the chat model, with the options of the job.
        secrets: Resolves references to secrets in settings, and removes secrets from errors.
        make: Creates the model and the headers of its requests. It runs in a thread, since it imports the
            provider's library.
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
        retry = RetryPolicy(**spec.retry.model_dump(), retry_on=(RetryableError,))
        self._request = _request_stream if spec.stream else direct.model_request
        self._step = DurableCallable(_request_step, name=f"chat:{name}", retry=retry)

    async def send(
        self,
        ctx: RunnerContext,
        transcript: Transcript,
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        priced: bool,
    ) -> RequestAnswer:
        """Send a request for the next response, in one durable step with retries, and return the answer.

        Args:
            ctx: The context of the action.
            transcript: The messages so far.
            settings: Settings of this conversation by name, which override those of the description.
            parameters: Tools, output and instructions.
            priced: True if the price of the answer is recorded with it.

        Raises:
            ModelRequestError: The request failed in all its attempts, or cannot be sent.
            ModelRefusedError: The model refused to answer, and the policy is not to retry.
        """
        digest = transcript.digest
        messages = list(transcript.messages)
        metrics = ctx.agent_metric_group.get_sub_group("chat").get_sub_group(self.name)
        # What a replay would read from the record, if this execution has sent the request.
        live_response: ModelResponse | None = None

        async def request(digest: str, messages_sent: int) -> dict[str, Any]:
            nonlocal live_response
            record, response = await self._send_once(messages, settings, parameters, metrics, priced)
            # A service may repeat its key in an error, which must not reach the records.
            without_secrets = redaction.hidden(record, known_only=True)
            live_response = response if without_secrets is record else None
            return without_secrets

        call = self._step.with_function(request)
        vars(call)["request"] = transcript.request
        try:
            record = await ctx.durable_execute_async(call, digest, len(messages))
        except RetryableError as error:
            raise ModelRequestError(
                f"the chat model {self.name!r} did not answer",
                found=str(error),
                fix="check the service; raise retry of the chat model, or set a fallback",
            ) from None
        if (reason := record.get("refused")) is not None:
            raise self._refused_error(reason)
        return RequestAnswer(
            live_response or _response_of(recordable_text(record["response"])), record["cost"]
        )

    async def aclose(self) -> None:
        """Close the connections that pydantic-ai opened for the model."""
        # Pydantic AI closes its own clients on exit from the model's context.
        if self._open is not None:
            async with self._open.model:
                pass

    async def _open_model(self) -> OpenModel:
        """Return the model; the first call creates it in a thread, and others wait for that."""
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    model, settings, headers = await asyncio.to_thread(self._make_model)
                    limiter = RequestLimiter(self._spec.max_concurrency, self._spec.rate_limit)
                    self._open = OpenModel(model, settings, headers, limiter)
        return self._open

    def _make_model(self) -> tuple[Model, Mapping[str, Any], Mapping[str, str]]:
        """Create the model, and return it with settings and headers, whose secrets are read here."""
        model, headers = self._make()
        return model, sendable(self._secrets.resolve_values(self._spec.settings)), sendable(headers)

    async def _send_once(
        self,
        messages: list[ModelMessage],
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        metrics: MetricGroup,
        priced: bool,
    ) -> tuple[dict[str, Any], ModelResponse | None]:
        """Send the request once; return the record of the answer, and the answer as the record has it.

        Raises:
            RetryableError: The request failed; another attempt may succeed.
            ModelRequestError: The request failed; another attempt would fail, too.
        """
        opened = await self._open_model()
        queued_at = time.monotonic()
        async with opened.limiter:
            sent_at = time.monotonic()
            metrics.get_counter("limit_wait_ms").inc(round(1000 * (sent_at - queued_at)))
            metrics.get_counter("requests").inc()
            # The deadline of pydantic-ai, request_timeout, doubles its overhead.
            deadline = asyncio.timeout(self._spec.timeout)
            try:
                async with deadline:
                    response = await self._request(
                        opened.model,
                        messages,
                        model_settings=_merge_settings(opened, settings),
                        model_request_parameters=parameters,
                    )
                record, response_of_record = self._answer_record(response, priced)
            except AgentsError:
                raise
            except Exception as error:  # the library of the provider can raise anything
                return self._handle_failure(error, deadline.expired(), metrics), None
        metrics.get_histogram("latency_ms").update(round(1000 * (time.monotonic() - sent_at)))
        if cost := record.get("cost"):
            # Metrics of Flink are integers.
            metrics.get_counter("cost_micro_usd").inc(round(1_000_000 * cost))
        metrics.get_counter("input_tokens").inc(response.usage.input_tokens)
        metrics.get_counter("output_tokens").inc(response.usage.output_tokens)
        return record, response_of_record

    def _handle_failure(self, error: Exception, has_timed_out: bool, metrics: MetricGroup) -> dict[str, Any]:
        """Count a failed attempt, and raise its error; return the record if the model refused to answer.

        Args:
            error: The error of the provider's library.
            has_timed_out: True if the timeout of an attempt is over.
            metrics: Metrics of the chat model.
        """
        if was_not_sent(error):
            metrics.get_counter("requests").dec()
            raise self._unsent_error(error) from None
        metrics.get_counter("failures").inc()
        if is_of_a_test(error):
            raise error
        if isinstance(error, TimeoutError) and has_timed_out:
            text = f"it gave no answer within {self._spec.timeout:g} seconds"
            raise RetryableError(text) from None
        if (reason := refusal_of(error)) is not None and self._spec.on_refusal is not OnRefusal.RETRY:
            return {"refused": self._hide_secrets(reason)}
        raise self._failure_error(error) from None

    def _answer_record(
        self, response: ModelResponse, priced: bool
    ) -> tuple[dict[str, Any], ModelResponse | None]:
        """Return the record of an answer, and the answer as it is read from there; None if it is a refusal.

        Raises:
            RetryableError: The model refused to answer, and the policy is to retry.
            Exception: The answer cannot be recorded, or its record cannot be read.
        """
        if (reason := refusal_in(response)) is not None:
            if self._spec.on_refusal is OnRefusal.RETRY:
                raise RetryableError(f"it refused to answer: {self._hide_secrets(reason)}")
            return {"refused": self._hide_secrets(reason)}, None
        response.usage = bounded_usage(response.usage)
        # Fields that are None would take as much space and time as all others.
        (response_json,) = to_json([response], exclude_none=True)
        # An unreadable answer must fail here, where it is an attempt, and not on replay.
        recorded_response = _response_of(recordable_text(response_json))
        return {"response": response_json, "cost": _price_of(response) if priced else None}, recorded_response

    def _failure_error(self, error: Exception) -> Exception:
        """Return the error of a failed attempt: without secrets, and in a form that a replay can restore."""
        if isinstance(error, RetryableError):
            return error
        text = self._hide_secrets(f"{type(error).__name__}: {with_causes(error)}")
        if not may_be_repeated(error):
            return ModelRequestError(
                f"the chat model {self.name!r} rejected the request",
                found=text,
                fix="correct the request, the model's name or its key; it is not sent again",
            )
        retry_after = requested_wait(error)
        limit = self._spec.retry_after_limit
        # None if the provider asks to wait for longer than the limit.
        retryable = failed_attempt(f"the chat model {self.name!r}", text, retry_after, limit)
        return retryable or ModelRequestError(
            f"the chat model {self.name!r} asks to wait too long",
            expected=f"at most {limit:g} seconds, which is retry_after_limit",
            found=f"{retry_after:g} seconds; {text}",
            fix="raise retry_after_limit of the chat model, or set a fallback",
        )

    def _unsent_error(self, error: Exception) -> ModelRequestError:
        """Return the error of a request that the provider's library could not write."""
        return ModelRequestError(
            f"the request to the chat model {self.name!r} could not be written",
            expected="messages, tools and settings that JSON can hold",
            found=self._hide_secrets(f"{type(error).__name__}: {with_causes(error)}"),
            fix="correct the settings, the tools' schemas or the messages; nothing was sent",
        )

    def _refused_error(self, reason: str) -> ModelRefusedError:
        return ModelRefusedError(
            f"the chat model {self.name!r} refused to answer",
            expected="an answer",
            found=reason,
            fix="check the messages; on_refusal='retry' of the chat model repeats the request, and "
            "'fallback' asks its fallbacks",
        )

    def _hide_secrets(self, text: object) -> str:
        return self._secrets.hide(text, _MOST_CHARACTERS)


_MOST_TOKENS = 2**53
"""Upper bound for a number of tokens. Larger numbers are errors, and metrics cannot hold a sum of them."""

_log = bounded_logger("flink_agents.models")


def bounded_usage(usage: RequestUsage) -> RequestUsage:
    """Return the usage of an answer with each number bounded: a service may report any number."""
    counts = (*_token_counts(type(usage))(usage), *usage.details.values())
    if all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in counts):
        return usage
    return replace(
        usage,
        details={name: _token_count(number) for name, number in usage.details.items()},
        **{name: _token_count(getattr(usage, name)) for name in _token_fields(type(usage))},
    )


@cache
def _token_fields(kind: type[RequestUsage]) -> tuple[str, ...]:
    """Return the names of a class's fields that are numbers of tokens."""
    return tuple(usage_field.name for usage_field in fields(kind) if usage_field.name.endswith("_tokens"))


@cache
def _token_counts(kind: type[RequestUsage]) -> Callable[[RequestUsage], tuple[Any, ...]]:
    """Return a function that reads those fields."""
    return attrgetter(*_token_fields(kind))


def _token_count(number: Any) -> int:
    """Return a reported number of tokens: 0 if it is no integer, and at most ``_MOST_TOKENS``."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        return 0
    if 0 <= number <= _MOST_TOKENS:
        return number
    _log.warning("a service reports that an answer used %s tokens, which is impossible", str(number)[:50])
    return _MOST_TOKENS if number > 0 else 0


def _response_of(text: str) -> ModelResponse:
    """Return the response in the JSON text of a recorded answer."""
    (response,) = ModelMessagesTypeAdapter.validate_json(f"[{text}]")
    assert isinstance(response, ModelResponse)
    return response


async def _request_step(digest: str, messages_sent: int, /) -> Any:
    """Declares the arguments of the durable step of a request."""
    raise NotImplementedError


async def _request_stream(
    model: Model,
    messages: list[ModelMessage],
    *,
    model_settings: ModelSettings,
    model_request_parameters: ModelRequestParameters,
) -> ModelResponse:
    """Send a request whose response is a stream, wait for its end, and return the whole response."""
    async with direct.model_request_stream(
        model, messages, model_settings=model_settings, model_request_parameters=model_request_parameters
    ) as stream:
        async for _ in stream:
            pass
        response = stream.get()
    is_of_service = client_of(model) is not None
    if response.state == "incomplete" or (is_of_service and response.finish_reason is None):
        # A service states why each answer ends. If the reason is missing, so is the rest of the answer.
        raise UnexpectedModelBehavior("the stream ended before the answer did")
    return response


def _merge_settings(opened: OpenModel, settings: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of a request: those of the conversation override those of the description."""
    merged: dict[str, Any] = {**opened.settings, **sendable(settings)}
    if opened.headers:
        merged["extra_headers"] = {**opened.headers, **merged.get("extra_headers", {})}
    return ModelSettings(**merged)


def _price_of(response: ModelResponse) -> float | None:
    """Return the list price of a response in US dollars; None if it is unknown."""
    try:
        return float(response.cost().total_price)
    except Exception:  # the library of prices knows the model, or it does not
        return None
