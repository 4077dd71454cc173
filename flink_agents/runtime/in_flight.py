"""Calls that go on when the attempt of a job ends in a living process, and the grace that they get.

What such a call does outside is done. So it may come to its end and be recorded, and the next attempt
does not make it again. Nothing begins any more: no call, no further attempt of a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger("flink_agents.durable")


class AttemptEnded(Exception):
    """A call may not begin any more. Nobody but the runtime sees this."""


class Begun:
    """Whether a call is being made right now.

    Args:
        closed: Whether the attempt of the job has ended.

    Attributes:
        inside: Whether the function, or the reconciler, is executed, or its result not yet taken.
    """

    __slots__ = ("closed", "inside")

    def __init__(self, closed: Callable[[], bool]) -> None:
        self.closed = closed
        self.inside = False

    def enter(self) -> None:
        """Note that the function begins; in the thread in which it does.

        Raises:
            AttemptEnded: It may not.
        """
        # First this, then the look: whoever ends the attempt looks here afterwards.
        self.inside = True
        if self.closed():
            self.inside = False
            raise AttemptEnded

    def leave(self) -> None:
        """Note that its result was taken, or that nobody waits for it."""
        self.inside = False


class InFlight:
    """The calls of a subtask that go on. Only for the thread of the agent loop."""

    def __init__(self) -> None:
        self._going_on: dict[asyncio.Task[Any], Callable[[], bool]] = {}
        self.over = False

    @contextmanager
    def one(self, effective: Callable[[], bool]) -> Iterator[None]:
        """Count the call that the running task makes.

        Args:
            effective: Whether it has begun outside, and may have had its effect, or is being recorded.
        """
        task = asyncio.current_task()
        assert task is not None
        self._going_on[task] = effective
        try:
            yield
        finally:
            del self._going_on[task]

    async def drain(self, seconds: float) -> None:
        """Let what goes on end and be recorded, for so long at most; from then on, nothing is."""
        going_on = [task for task, effective in self._going_on.items() if effective()]
        for task in self._going_on.keys() - set(going_on):
            # It waits for its turn, for a thread or for its next attempt.
            task.cancel()
        if going_on and seconds > 0:
            _, late = await asyncio.wait(going_on, timeout=seconds)
            if late:
                _log.warning(
                    "%d durable calls did not end within %g s of the end of the attempt: the next one makes "
                    "them again",
                    len(late),
                    seconds,
                )
        self.over = True
