"""Transcripts of agents of pydantic-ai as values that memory keeps: a replay comes to the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from flink_agents.api.context.current import current_context


def kept_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Messages as JSON values, with the time of the run in place of the times at which they were made.

    pydantic-ai notes the wall clock in what it makes itself, which is another time on replay.

    Args:
        messages: Such as ``result.all_messages()``. ``ModelMessagesTypeAdapter.validate_python`` of
            pydantic-ai makes messages of them again.
    """
    context = current_context()
    values = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    if context is not None:
        now = context.now().isoformat()
        for message in values:
            for one in (message, *message["parts"]):
                if "timestamp" in one:
                    one["timestamp"] = now
    return values
