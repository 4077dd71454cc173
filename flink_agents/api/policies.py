"""What happens when an action fails or nothing accepts an event, and what is kept of it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict


class OnError(str, Enum):
    """Policy for an action that raises, or for an event that no action accepts."""

    FAIL = "fail"
    """The job fails with an error that starts with the user's own line; Flink restarts it."""

    IGNORE = "ignore"
    """What the action wrote and sent is dropped, the failure is logged and counted."""

    DEAD_LETTER = "dead-letter"
    """As ``IGNORE``, and a :class:`DeadLetter` goes to the side output of that name."""


DEAD_LETTER_TAG = "dead-letter"
"""Name of the side output that carries :class:`DeadLetter` records."""


class DeadLetter(BaseModel):
    """An event that an agent could not handle, why, and where.

    Attributes:
        agent: Name of the agent.
        action: Name of the failed action; None where no action accepted the event.
        key: The key, as the key selector returned it.
        sequence_number: Number of the run within its key, from 0.
        timestamp: Event time of the input in milliseconds, or None.
        event: The event itself, with its typed payload.
        event_type: Its type string.
        error_type: Class name of the error.
        error_message: Text of the error.
        where: The user's own place, ``file:line in function``.
        traceback: The traceback as text.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    agent: str
    action: str | None
    key: Any
    sequence_number: int
    timestamp: int | None
    event: Any
    event_type: str
    error_type: str
    error_message: str
    where: str
    traceback: str
