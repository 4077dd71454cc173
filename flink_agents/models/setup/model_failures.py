"""Why a request to a chat model failed, without secrets, and refusals among its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_ai import models
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse

from flink_agents.models.setup.failures import may_succeed_again, text_of

_NEVER = (ModelRequestRejectedError, ModelQuotaExceededError, UserError)
"""Failures that each attempt would meet."""

_MOST_CAUSES = 5

_REFUSED = "content_filter"
"""How pydantic-ai says that a model refused to answer, or that a filter withheld the answer."""


def may_be_repeated(error: Exception) -> bool:
    """True if another attempt may succeed after what pydantic-ai or the library of a provider raised."""
    if isinstance(error, ModelHTTPError):
        hint = error.provider_retry_hint
        return may_succeed_again(error.status_code) if hint is None else hint
    # Without a status, the connection broke, time ran out, or nobody can read the answer.
    return not isinstance(error, _NEVER)


def check_recordable(answer: object) -> None:
    """Check that an answer can be recorded, and be sent again as part of a conversation.

    Raises:
        Exception: It holds a number that is none, half a character, or too many levels.
    """
    json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()


def is_of_a_test(error: Exception) -> bool:
    """True if a request was not sent because a test allows none."""
    # Failures of models derive from that class as well.
    return type(error) is RuntimeError and not models.ALLOW_MODEL_REQUESTS


def with_causes(error: BaseException) -> str:
    """What an error says, and what those say that led to it: its own text may be that it failed."""
    texts = [text_of(error)]
    while (cause := error.__cause__) is not None and len(texts) < _MOST_CAUSES:
        error = cause
        if (text := text_of(error)) and not any(text in earlier for earlier in texts):
            texts.append(text)
    return "; ".join(texts)


def is_service_failure(error: Exception) -> bool:
    """True if pydantic-ai raised ``error`` as the failure of a provider, and no library by accident."""
    return isinstance(error, ModelAPIError | UnexpectedModelBehavior | UserError)


def refusal_in(response: ModelResponse) -> str | None:
    """Why a model refused to answer, in the provider's words; None if it did not."""
    if response.finish_reason != _REFUSED:
        return None
    return _reason(response.provider_details or {})


def refusal_of(error: Exception) -> str | None:
    """The same of an error that says that a filter withheld an answer."""
    return text_of(error) if isinstance(error, ContentFilterError) else None


def _reason(details: Mapping[str, Any]) -> str:
    said = [
        f"{name}: {details[name]}"
        for name in ("refusal", "block_reason", "finish_reason", "safety_ratings")
        if details.get(name)
    ]
    text = "; ".join(said) or "the provider gives no reason"
    return text.encode("utf-8", "replace").decode()
