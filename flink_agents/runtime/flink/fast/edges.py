"""Decides when records leave the buffers of a task.

Flink's own way is a thread for each output of each subtask, which wakes after every buffer timeout: at 2 ms,
the threads of an idle job of 30 outputs take an eighth of a core. Here, an operator in Python forwards each
record at once, which needs no thread and costs little beside a call of Python. An agent may emit more: it
flushes at most every :data:`FLUSH_MS`. The threads of all other outputs wake every
:data:`BUFFER_TIMEOUT_MS`.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.runtime.state.keyed_state import Timers

BUFFER_TIMEOUT_MS = 20
"""The buffer timeout of a job: of operators in Java, and of what an agent emits outside of its calls."""

FLUSH_MS = 2
"""The shortest interval in which an agent flushes its outputs."""


class PromptFlush:
    """Flushes the outputs of an operator soon after they leave, and rarely if there are many.

    The first output after a pause leaves at once. Others wait for the rest of :data:`FLUSH_MS`, and a timer
    flushes them if no call of the operator does.

    Args:
        flush: Flushes the outputs.
        clock: Returns the wall-clock time in milliseconds.
    """

    def __init__(self, flush: Callable[[], None], clock: Callable[[], int]) -> None:
        self._flush = flush
        self._clock = clock
        self._flushed_ms = 0
        self._timer_ms = 0

    def flush_after_call(self, timers: Timers, is_returned: bool) -> bool:
        """Flush after a call that has emitted outputs, or register a timer for it.

        Args:
            timers: Timers of the current key.
            is_returned: True if outputs leave only when the call has returned.

        Returns:
            True if nothing is left to flush.
        """
        now = self._clock()
        # A clock that was set back does not stop the flushes.
        if not is_returned and not 0 <= now - self._flushed_ms < FLUSH_MS:
            self._flush()
            self._flushed_ms = now
            return True
        if not now <= self._timer_ms <= now + FLUSH_MS:
            self._timer_ms = now + FLUSH_MS
            timers.register_processing_time_timer(self._timer_ms)
        return False
