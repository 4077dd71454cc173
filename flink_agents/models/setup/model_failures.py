"""Reasons why a request to a chat model failed, without secrets, and refusals among its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_ai import models
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse

from flink_agents.api.common.durations import requested_pause
from flink_agents.api.resources.raised_notes import attribute_of
from flink_agents.models.setup.failures import may_succeed_again, retry_after_of, text_of, was_not_sent

_NEVER = (ModelRequestRejectedError, ModelQuotaExceededError, UserError)
"""Failures that would occur in each attempt."""

_MOST_CAUSES = 5
"""Maximum number of messages in the text of a failure: that of the error, and those of its causes."""

_REFUSED = "content_filter"
"""Finish reason of pydantic-ai if a model refused to answer, or a filter withheld the answer."""


def may_be_repeated(error: Exception) -> bool:
    """Return True if another attempt may succeed after this error of pydantic-ai or a provider."""
    if isinstance(error, ModelHTTPError):
        hint = error.provider_retry_hint
        return may_succeed_again(error.status_code) if hint is None else hint
    # Without a status, the connection broke, time ran out, or the answer is unreadable.
    return not isinstance(error, _NEVER) and not was_not_sent(error)


def requested_wait(error: BaseException) -> float | None:
    """Return the seconds for which a provider asks to wait; None if it does not say.

    The headers come first: pydantic-ai reads fewer forms of them, but knows waits in bodies, too.
    """
    seconds = retry_after_of(attribute_of(error, "headers"))
    return requested_pause(attribute_of(error, "retry_after")) if seconds is None else seconds


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def recordable_text(answer: object) -> str:
    """Return an answer as JSON text, if it can be recorded, and be sent again as part of a conversation.

    Raises:
        Exception: It has an invalid number, half of a surrogate pair, or too many levels.
    """
    text = _encode(answer)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Such an error otherwise means that a request could not be written.
        raise UnexpectedModelBehavior("the answer has half of a surrogate pair") from None
    return text


def is_of_a_test(error: Exception) -> bool:
    """Return True if a request was not sent because a test forbids requests."""
    # Failures of models derive from that class as well.
    return type(error) is RuntimeError and not models.ALLOW_MODEL_REQUESTS


def with_causes(error: BaseException) -> str:
    """Return the messages of an error and its causes as one text.

    The error's own message may only be that something failed. Repetitions are omitted.
    """
    texts = [text_of(error)]
    cause = error.__cause__
    while cause is not None and len(texts) < _MOST_CAUSES:
        text = text_of(cause)
        if text and not any(text in earlier_text for earlier_text in texts):
            texts.append(text)
        cause = cause.__cause__
    return "; ".join(texts)


def refusal_in(response: ModelResponse) -> str | None:
    """Return the provider's reason for a refusal to answer; None if the model did not refuse."""
    if response.finish_reason != _REFUSED:
        return None
    return _refusal_reason(response.provider_details or {})


def refusal_of(error: Exception) -> str | None:
    """Return the reason in an error that reports a filtered answer; None for any other error."""
    return text_of(error) if isinstance(error, ContentFilterError) else None


def _refusal_reason(details: Mapping[str, Any]) -> str:
    """Return the reasons for a refusal in a provider's details of a response, as encodable text."""
    reasons = [
        f"{name}: {details[name]}"
        for name in ("refusal", "block_reason", "finish_reason", "safety_ratings")
        if details.get(name)
    ]
    text = "; ".join(reasons) or "the provider gave no reason"
    return text.encode("utf-8", "replace").decode()
