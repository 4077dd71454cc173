"""Requests about a key to a running job: what is there of it, end a run of it, erase it.

They travel as signals with names of their own, and no run takes them. The operator answers from its state.
The answer is a line in the TaskManager's log, which begins with :data:`REPLY_MARK`, and goes to observers.
"""

from __future__ import annotations

import uuid
from typing import Any

from flink_agents.api.events.signals import Signal

PREFIX = "flink-agents/"
"""What the names of requests begin with. Signals of your own must not."""

INSPECT = f"{PREFIX}inspect"
END_RUN = f"{PREFIX}end-run"
ERASE = f"{PREFIX}erase"

REPLY_MARK = "agent-reply "
"""What an answer in the log begins with; one line of JSON follows."""

WATCH_MARK = "agent-watch "
"""What the watchdog's line about a run begins with; one line of JSON follows."""

REJECTED, ANSWERED, ACCEPTED, ENDED, ERASED = "rejected", "answered", "accepted", "ended", "erased"
"""The outcomes of requests. A run that is to be ended is first accepted, and ended when it is committed."""


def inspect_request(key: Any) -> Signal:
    """Make a request that asks what there is of a key."""
    return Signal(INSPECT, None, key, _new_id())


def end_request(key: Any, run: str, reason: str = "", by: str | None = None) -> Signal:
    """Make a request to end a run as a dead letter.

    Args:
        key: The key.
        run: Id of the run.
        reason: Why; the dead letter says it.
        by: Who wants it.
    """
    return Signal(END_RUN, {"run": run, "reason": reason, "by": by}, key, _new_id())


def erase_request(key: Any) -> Signal:
    """Make a request to remove what state has of a key."""
    return Signal(ERASE, None, key, _new_id())


def _new_id() -> str:
    return uuid.uuid4().hex
