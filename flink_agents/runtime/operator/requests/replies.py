"""Sends replies to requests about keys: as a line in the log, and to observers."""

from __future__ import annotations

import time
from typing import Any

from flink_agents.api.common.logs import MAX_CHARACTERS, bounded_logger
from flink_agents.api.events.key_requests import PREFIX, REPLY_MARK
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.trace.answers import answer_line

_log = bounded_logger("flink_agents.requests")


class Replies:
    """Sends replies.

    Args:
        shared: The agent's shared objects.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared

    def reply(self, request: str | None, what: str, key_text: str, outcome: str, **more: Any) -> None:
        """Reply to a request.

        Args:
            request: Its id.
            what: The name of the request.
            key_text: The key.
            outcome: The outcome.
            **more: Further fields: values of JSON.
        """
        answer = {
            "request": request,
            "what": what.removeprefix(PREFIX),
            "agent": self._shared.agent.name,
            "key": key_text,
            "outcome": outcome,
            "time": round(time.time(), 3),
            **more,
        }
        _log.info("%s%s", REPLY_MARK, answer_line(answer, MAX_CHARACTERS))
        if (notify := self._shared.telemetry.observers.request_answered) is not None:
            notify(key_text, answer)
