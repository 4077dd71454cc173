"""Requests about a key to a running job: inspect it, end one of its runs, erase it.

They travel as signals with reserved names, and no run receives them. The operator answers from its state.
An answer is a line in the TaskManager's log, which starts with :data:`REPLY_MARK`. Observers receive it, too,
and so does the topic ``answers.kafka.topic``, if the job has one.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from flink_agents.api.events.signals import Signal

PREFIX = "flink-agents/"
"""Prefix of the names of requests. Names of your own signals must not have it."""

INSPECT = f"{PREFIX}inspect"
END_RUN = f"{PREFIX}end-run"
ERASE = f"{PREFIX}erase"

REPLY_MARK = "agent-reply "
"""Start of an answer's line in the log; one line of JSON follows."""

WATCH_MARK = "agent-watch "
"""Start of the watchdog's line about a run in the log; one line of JSON follows."""

CANONICAL = "canonical"
"""Name in the object ``{"canonical": text}``, which stands for the key of a canonical text in a topic."""

REJECTED = "rejected"
ANSWERED = "answered"
ACCEPTED = "accepted"
ENDED = "ended"
ERASED = "erased"
"""The outcomes of requests. A request to end a run is first accepted; the run is ended at its commit."""


def inspect_request(key: Any) -> Signal:
    """Return a request for a report of a key: its state, its runs and what they wait for."""
    return Signal(INSPECT, None, key, _new_id())


def end_request(key: Any, run: str, reason: str = "", by: str | None = None) -> Signal:
    """Return a request to end a run as a dead letter.

    Args:
        key: The key of the run, in the form of the stream's key selector.
        run: Id of the run.
        reason: The reason, which the dead letter shows.
        by: Name of the person who requests it; None if unknown.
    """
    return Signal(END_RUN, {"run": run, "reason": reason, "by": by}, key, _new_id())


def erase_request(key: Any) -> Signal:
    """Return a request to erase a key: its state and its records."""
    return Signal(ERASE, None, key, _new_id())


def for_key_text(request: Signal, key_text: str) -> Signal:
    """Return ``request`` with the canonical text of a key in place of the key.

    The job turns the text into the key, because only the job has the key's class.
    """
    return replace(request, key={CANONICAL: key_text})


def _new_id() -> str:
    """Return a random id of a signal: a second request of the same kind is not a duplicate."""
    return uuid.uuid4().hex
