"""Calls that go on when the attempt of a job ends in a living process, and the grace that they get.

What such a call does outside is done. So it may come to its end and be recorded, and the next attempt
does not make it again. Nothing begins any more: no call, no further attempt of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flink_agents.api.logs import bounded_logger

_log = bounded_logger("flink_agents.durable")


class AttemptEnded(Exception):
    """A call may not begin any more. Nobody but the runtime sees this."""


class CallInFlight:
    """One call that goes on.

    Args:
        closed: Whether the attempt of the job has ended.
        key_text: Key of the run whose own task makes the call; None where another task does.

    Attributes:
        closed: See above.
        key_text: See above.
        inside: Whether the function, or the reconciler, is executed, or its result not yet taken.
        recording: Whether its result is being recorded.
        task: The task that makes the call.
        ended: Ends with the call; None as long as nobody waits for that.
    """

    __slots__ = ("closed", "ended", "inside", "key_text", "recording", "task")

    def __init__(self, closed: Callable[[], bool], key_text: str | None = None) -> None:
        self.closed = closed
        self.key_text = key_text
        self.inside = self.recording = False
        self.task: asyncio.Task[Any] | None = None
        self.ended: asyncio.Future[None] | None = None

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

    @property
    def effective(self) -> bool:
        """Whether it may have had an effect that is not recorded."""
        return self.inside or self.recording


class InFlight:
    """The calls of a subtask that go on. Only for the thread of the agent loop.

    Args:
        closed: Whether the attempt of the job has ended.

    Attributes:
        over: Whether the grace is over, so that nothing is recorded any more.
    """

    def __init__(self, closed: Callable[[], bool]) -> None:
        self._closed = closed
        self._going_on: set[CallInFlight] = set()
        self.over = False

    def begin(self, key_text: str | None = None) -> CallInFlight:
        """Count a call that the running task makes; ``key_text`` where that is the task of the run itself."""
        call = CallInFlight(self._closed, key_text)
        call.task = asyncio.current_task()
        self._going_on.add(call)
        return call

    def end(self, call: CallInFlight) -> None:
        """Note that a call has ended, recorded or not."""
        self._going_on.discard(call)
        call.task = None
        if call.ended is not None and not call.ended.done():
            call.ended.set_result(None)

    @property
    def keys(self) -> set[str]:
        """Keys whose runs make calls in their own tasks that must not be cancelled yet."""
        return {call.key_text for call in self._going_on if call.effective and call.key_text is not None}

    async def drain(self, seconds: float) -> None:
        """Let what goes on end and be recorded, for so long at most; from then on, nothing is."""
        loop, waited_for = asyncio.get_running_loop(), list[asyncio.Future[None]]()
        for call in list(self._going_on):
            if call.effective:
                call.ended = loop.create_future()
                waited_for.append(call.ended)
            elif call.task is not None:
                # It waits for its turn, for a thread or for its next attempt.
                call.task.cancel()
        if waited_for and seconds > 0:
            _, late = await asyncio.wait(waited_for, timeout=seconds)
            if late:
                _log.warning(
                    "%d durable calls did not end within %g s of the end of the attempt: the next one makes "
                    "them again",
                    len(late),
                    seconds,
                )
        self.over = True
        for call in list(self._going_on):
            # A call in the run's own task is cancelled with that.
            if call.task is not None and call.key_text is None:
                call.task.cancel()
