"""Transcripts of Pydantic AI agents as values for memory: a replay produces the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from flink_agents.api.context.current import current_context


def kept_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as JSON values, with the time of the run as their timestamps.

    pydantic-ai uses the wall clock for its own messages, which differs on replay.

    Args:
        messages: Messages such as ``result.all_messages()``. ``ModelMessagesTypeAdapter.validate_python`` of
            pydantic-ai restores them.
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
