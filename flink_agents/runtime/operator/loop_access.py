"""Connects Flink's task thread with the agent loop: creates the loop, and waits for it.

The loop is created when the first run needs it. So a subtask whose runs all end on Flink's task thread has no
second thread. Flink's task thread waits in short slices. Between two slices, it checks if the task was
cancelled or the loop has failed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cached_property

from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import FLINK_SLICE_SECONDS
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock


class LoopAccess:
    """Creates the agent loop, and waits for it.

    Only for Flink's task thread, except :attr:`running_loop` and :meth:`close`.

    Args:
        shared: The agent's shared objects.
        clock: Returns the wall-clock time in milliseconds.
        check_cancelled: Called while Flink's task thread waits; raises if the task was cancelled.
        most_seconds: The longest time for which Flink's task thread may wait in one call.
        to_look_at: Receives the actors whose runs have ended, for Flink's task thread to commit.

    Attributes:
        running_loop: The agent loop; None before the first run that needs it.
        most_load: The number of inputs in memory from which on Flink's task thread takes no more.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        clock: Callable[[], int],
        check_cancelled: Callable[[], None],
        most_seconds: float,
        to_look_at: deque[KeyActor],
    ) -> None:
        self._shared = shared
        self._clock = clock
        self.most_load = shared.config.get(AgentOptions.MAX_IN_FLIGHT) + shared.config.get(
            AgentOptions.QUEUE_TOTAL
        )
        self._check_cancelled = check_cancelled
        self._most_seconds = most_seconds
        self._to_look_at = to_look_at
        self._metrics = shared.telemetry.run_metrics
        self.running_loop: AgentLoop | None = None
        self._input_has_ended = False

    @cached_property
    def loop(self) -> AgentLoop:
        """The agent loop, created at its first use."""
        self.running_loop = loop = AgentLoop(self._shared, self._clock, self._to_look_at)
        # The first run that waits may come after the end of the input.
        if self._input_has_ended:
            loop.suspender.end_of_input()
        return loop

    def end_of_input(self) -> None:
        """Tell the loop that the input has ended, so that waits for signals end: none comes any longer."""
        self._input_has_ended = True
        if self.running_loop is not None:
            self.running_loop.suspender.end_of_input()

    def open_store(self) -> None:
        """Open the store of durable calls, if there is one, and wait until it is open.

        Raises:
            StoreError: The store cannot be opened.
        """
        if self._shared.journals is not None:
            # Before any input: from here on, no earlier attempt can append.
            self.loop.open_store(self._check_cancelled)
            self._shared.journals.name_store()

    def close(self, wait: bool = True) -> None:
        """Stop the loop, if there is one; with ``wait``, block until it has ended, for a bounded time."""
        # Not `self.loop`: a close must not start a loop.
        if self.running_loop is not None:
            self.running_loop.close(wait)

    # -- waiting ----------------------------------------------------------------------

    def check_failure(self) -> None:
        """Raise the error with which the loop has failed, if it has. It ends the task attempt."""
        # No lock: the loop sets it once, and Flink ends the attempt with it.
        if self.running_loop is not None and self.running_loop.failure is not None:
            raise self.running_loop.failure

    def wait_for_progress(self, seen: int) -> None:
        """Block for at most 50 ms until the loop's ``progress`` counter is greater than ``seen``.

        Raises:
            Exception: The task was cancelled, or the loop has failed.
        """
        self.loop.wait_for_progress(seen, FLINK_SLICE_SECONDS)
        # After each slice: Flink must be able to cancel the task while its thread waits here.
        self._check_cancelled()
        self.check_failure()

    def wait_for_room(self) -> None:
        """Block while the loop has enough work, which is backpressure. Counts the time in the metrics."""
        if self.running_loop is not None and self.running_loop.load >= self.most_load:
            self._wait_while_full(math.inf)

    def wait_for_a_sign(self) -> None:
        """Block until the loop has room, at most until downstream would count this subtask as idle."""
        self._wait_while_full(self.next_sign())

    def next_sign(self) -> float:
        """Return the time until which Flink's task thread may wait in one call.

        In seconds, by ``run_metrics.clock``. After that, downstream streams count this subtask as idle.
        """
        return clock() + self._most_seconds

    @property
    def is_full(self) -> bool:
        """True if the loop has ``most_load`` inputs in memory, so that Flink's task thread takes no more."""
        return self.running_loop is not None and self.running_loop.load >= self.most_load

    def _wait_while_full(self, until: float) -> None:
        began = clock()
        while self.is_full and clock() < until:
            self.wait_for_progress(self.loop.progress)
        self._metrics.backpressure += clock() - began
