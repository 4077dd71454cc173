"""Calls that go on when the attempt of a job ends in a living process, and the grace that they get.

What such a call does outside is done. So it may come to its end and be recorded, and the next attempt
does not make it again. Nothing begins any more: no call, no further attempt of a call.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import Any

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.phases import Wait
from flink_agents.runtime.execution.run import Run

_log = bounded_logger("flink_agents.durable")


class AttemptEnded(Exception):
    """A call may not begin any more. Nobody but the runtime sees this."""


class CallInFlight(Wait):
    """One call that goes on: its run waits for it.

    Args:
        bridge: Knows whether the attempt of the job is over.
        run: The run that makes it.
        function: What is called.
        task: The run's own task, where that makes the call; None where another one does.

    Attributes:
        bridge: See above.
        run: See above.
        in_own_task: Whether the run's own task makes the call.
        inside: Whether the function, or the reconciler, is executed, or its result not yet taken.
        recording: Whether its result is being recorded.
        task: The task that makes the call.
        ended: Ends with the call; None as long as nobody waits for that.
    """

    __slots__ = ("bridge", "ended", "in_own_task", "inside", "recording", "run", "task")

    def __init__(self, bridge: Bridge, run: Run, function: str, task: asyncio.Task[Any] | None) -> None:
        super().__init__(Phase.CALL, function)
        self.bridge = bridge
        self.run = run
        self.in_own_task = task is not None
        self.inside = self.recording = False
        self.task = task
        self.ended: asyncio.Future[None] | None = None

    @property
    def what(self) -> str:
        """The call, and whether its result is being recorded."""
        text = f"durable call {self._what}"
        return f"{text}, whose result is being recorded" if self.recording else text

    def enter(self) -> None:
        """Note that the function begins; in the thread in which it does.

        Raises:
            AttemptEnded: It may not.
        """
        # First this, then the look: whoever ends the attempt looks here afterwards.
        self.inside = True
        self.thread = get_ident()
        if self.bridge.over:
            self.inside = False
            raise AttemptEnded

    def leave(self) -> None:
        """Note that its result was taken, or that nobody waits for it."""
        self.inside = False
        self.awaited = self.thread = None

    @property
    def effective(self) -> bool:
        """Whether it may have had an effect that is not recorded."""
        return self.inside or self.recording


class InFlight:
    """The calls of a subtask that go on. Only for the thread of the agent loop.

    Args:
        bridge: Knows whether the attempt of the job is over.

    Attributes:
        over: Whether the grace is over, so that nothing is recorded any more.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._going_on: set[CallInFlight] = set()
        self.over = False

    def begin(self, run: Run, function: str, task: asyncio.Task[Any] | None = None) -> CallInFlight:
        """Count a call of ``function`` that the running task makes, for which ``run`` waits.

        Args:
            run: The run.
            function: What is called.
            task: The run's own task, where that makes the call.
        """
        call = CallInFlight(self._bridge, run, function, task)
        if task is None:
            call.task = asyncio.current_task()
        self._going_on.add(call)
        run.state.begin_wait(call)
        return call

    def end(self, call: CallInFlight) -> None:
        """Note that a call has ended, recorded or not."""
        self._going_on.discard(call)
        call.run.state.end_wait(call)
        call.task = None
        if call.ended is not None and not call.ended.done():
            call.ended.set_result(None)

    @property
    def keys(self) -> set[str]:
        """Keys whose runs make calls in their own tasks that must not be cancelled yet."""
        return {call.run.key_text for call in self._going_on if call.effective and call.in_own_task}

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
            if call.task is not None and not call.in_own_task:
                call.task.cancel()
