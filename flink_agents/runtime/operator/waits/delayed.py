"""Delayed events in state: what Flink's thread has to do with them.

The commit of a run, or its suspension, puts what it sent with a delay into state, in the same update of the
key. A timer of the key fires when the first event is due. Then the bytes of what is due become inputs of the
key that wait, again in one update: behind those that wait already, and with the bytes that they had, so that
a run which was recorded is found again by the digest of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from flink_agents.api.events import DELAYED_TAG
from flink_agents.api.logs import bounded_logger
from flink_agents.api.options import AgentOptions
from flink_agents.api.signals import TimersAtEnd
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.delayed import delayed_input
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.pending import read_input

MOST_AT_ONCE = 100
"""How many events of a key come in by one timer, so that other keys and checkpoints have their turn."""

LEFT = "delayed_events_left"

_log = bounded_logger("flink_agents.delayed")


class Delays:
    """Keeps delayed events of the current key in state, and lets them come in. Only for Flink's thread.

    Args:
        shared: What all runs share.
        state: Keyed state.
        clock: The wall-clock time in milliseconds.
        low: The low watermark; None where outputs need no timestamps.
        see_the_end: Has a timer fire at the end of a bounded input, for the sake of the current key.

    Attributes:
        active: Whether any key may have delayed events.
        skips: Whether all events come in at the end of a bounded input, whether they are due or not.
        leaves: Whether what is sent with a delay from now on stays in state: the input has ended, and nobody
            waits for what comes later.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        low: LowWatermark | None,
        see_the_end: Callable[[Timers], None],
    ) -> None:
        self._shared = shared
        self._state = state
        self._clock = clock
        self._low = low
        self._see_the_end = see_the_end
        self.active = False
        self.skips = TimersAtEnd(shared.config.get(AgentOptions.TIMERS_AT_END)) is TimersAtEnd.SKIP
        self.leaves = False

    def keep(self, run: Run, head: Head, timers: Timers) -> None:
        """Put what a run sent with a delay into state, out of its side outputs. The caller writes the head.

        Args:
            run: The run, which is committed or suspended now.
            head: The head of its key.
            timers: Timers of the key.
        """
        sent = [cast("list[Any]", value) for tag, value in run.side_outputs if tag == DELAYED_TAG]
        if not sent:
            return
        run.side_outputs = [one for one in run.side_outputs if one[0] != DELAYED_TAG]
        first = before = head.delayed_due
        for due, *content in sent:
            packed = self._shared.codec.encode([delayed_input(run, content), run.timestamp])
            first = self._state.delayed.add(due, packed)
        head.delayed_due = first
        self.active = True
        if first is not None and first != before:
            timers.register_processing_time_timer(max(first, self._clock() + 1))
        if self.leaves:
            self._tell(len(sent))
        else:
            self._see_the_end(timers)

    def is_due(self, head: Head) -> bool:
        """Whether an event of the current key is to come in."""
        due = head.delayed_due
        return due is not None and due <= self._clock()

    def come_in(self, head: Head, key_text: str, timers: Timers, early: bool = False) -> None:
        """Let events that are due be inputs of the current key that wait.

        Args:
            head: The key's head, which is written.
            key_text: The key.
            timers: Timers of the key.
            early: Let all events come in, whether they are due or not.
        """
        most, until = (None, None) if early else (MOST_AT_ONCE, self._clock())
        come, head.delayed_due = self._state.delayed.pop(most, until)
        for packed in come:
            self._state.pending.put(head.next_pending, packed)
            if self._low is not None:
                self._low.delayed(key_text, head.next_pending, read_input(self._shared.codec, packed)[1])
            head.next_pending += 1
        self._state.head.update(head.pack())
        if head.delayed_due is not None:
            timers.register_processing_time_timer(max(head.delayed_due, self._clock() + 1))

    def look_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Have a timer fire once more for an event whose timer came before its time, by this clock."""
        due = head.delayed_due
        if due is not None and due <= fired:
            # Flink goes on with timers that are not behind the one at hand, and would not come to an end.
            timers.register_processing_time_timer(max(self._clock(), fired) + 1)

    def _tell(self, count: int) -> None:
        for _ in range(count):
            self._shared.run_metrics.count(LEFT)
        _log.warning(
            "%d delayed events were sent after the end of the input, and %s is %s: they stay in state",
            count,
            AgentOptions.TIMERS_AT_END.key,
            TimersAtEnd.SKIP.value,
        )
