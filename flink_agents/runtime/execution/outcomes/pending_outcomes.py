"""Outcomes that an action waits for: pending ones, and those in the queue for delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from flink_agents.runtime.journal.calls import Number, Outcome


class PendingOutcome:
    """An outcome that an action waits for.

    Args:
        number: Its number.

    Attributes:
        gone: True if the action no longer waits for it.
        ended: True if the outcome exists, delivered or not.
        performing: The task that produces the outcome; None before that starts.
        stopped: True if that task was cancelled, because nothing waits for the outcome.
        not_before: Seconds since the start of the execution before which the outcome does not come.
        outlasts: True if the run can be suspended while the action waits for nothing else.
        encloses: True if it is the end of code of the action, which waits for other outcomes meanwhile.
        in_transit: True if such code is about to start, or has just ended.
    """

    outlasts = False
    encloses = False
    in_transit = False

    __slots__ = ("ended", "gone", "not_before", "number", "performing", "stopped")

    def __init__(self, number: Number) -> None:
        self.number = number
        self.not_before = 0.0
        self.gone = self.ended = self.stopped = False
        self.performing: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Start what produces the outcome."""

    def is_there(self) -> bool:
        """Return True if a replay that has come to the outcome can deliver it now."""
        return True

    def deliver(self, outcome: Outcome) -> None:
        """Hand the outcome to the code that waits for it."""
        raise NotImplementedError

    def abandon_wait(self) -> None:
        """End the wait without an outcome: the execution is over."""

    def stop(self) -> None:
        """Cancel the task that produces the outcome. An outcome that already exists is still recorded."""
        if self.performing is not None and not (self.ended or self.performing.done()):
            self.stopped = True
            self.performing.cancel()

    def perform(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> asyncio.Task[Any]:
        """Start a task that produces the outcome. It does not count as a task of the action."""
        loop = asyncio.get_running_loop()
        self.performing = asyncio.Task(coroutine, loop=loop, context=context)
        return self.performing


class QueuedOutcome:
    """An outcome that waits for those before it.

    Args:
        pending: The wait that it ends.
        outcome: The outcome; None while it is being recorded.

    Attributes:
        outcome: The outcome; None while it is being recorded.
        recorded: True if it is in a record.
    """

    __slots__ = ("outcome", "pending", "recorded")

    def __init__(self, pending: PendingOutcome, outcome: Outcome | None) -> None:
        self.pending = pending
        self.outcome = outcome
        self.recorded = False
