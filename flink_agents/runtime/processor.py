"""The engine-free operator: takes an input or a timer of one key, returns what leaves.

The caller makes the key current in the state and timers that it hands in, as Flink does.
An input runs at once where nothing of its key waits (the inline path); otherwise it is stored
in ``pending`` and run from a timer, in the order of arrival.

**Commit** is the only place that changes state: short-term memory, then the head, then the
input's removal from ``pending``; outputs are returned after that. Flink takes no checkpoint
between these steps, so whatever the moment of a crash, state holds a run whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.errors import StateFormatError
from flink_agents.api.options import AgentOptions
from flink_agents.runtime.keys import decode_key
from flink_agents.runtime.run import Run, RunEnvironment, RunExecutor
from flink_agents.runtime.state import Head, KeyedState, Timers

END_OF_INPUT = 2**63 - 2
"""Event time of the timer that drains what waits when a bounded input ends.

Flink fires no processing-time timer after the end of the input, but every event-time timer
below the last watermark, ``Long.MAX_VALUE``.
"""


@dataclass
class Emission:
    """What leaves the operator after a commit.

    Attributes:
        outputs: Values for the main output, in order.
        side_outputs: Pairs of tag and value, in order.
    """

    outputs: list[Any] = field(default_factory=list)
    side_outputs: list[tuple[str, Any]] = field(default_factory=list)


class AgentProcessor:
    """Drives the runs of all keys of one subtask.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        clock: The wall-clock time in milliseconds.
    """

    def __init__(
        self, shared: RunEnvironment, state: KeyedState, job_id: str, clock: Callable[[], int]
    ) -> None:
        self._shared = shared
        self._state = state
        self._job_id = job_id
        self._clock = clock
        self._executor = RunExecutor(shared)
        self._inline: bool = shared.config.get(AgentOptions.INLINE)

    def process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission | Run:
        """Handle an input of the current key."""
        packed = self._state.head.value()
        head = Head.unpack(packed) if packed is not None else Head(self._job_id)
        if not self._inline or head.has_pending:
            return self._park(head, record, timestamp, timers)
        run = self._new_run(head, key_text, timestamp)
        self._executor.execute(run, record)
        self._commit(head, run)
        return run

    def on_timer(self, key_text: str, timers: Timers) -> Emission | Run:
        """Run what waits for the current key."""
        emission = Emission()
        packed = self._state.head.value()
        if packed is None:
            return emission
        head = Head.unpack(packed)
        if head.has_pending:
            while head.has_pending:
                self._run_pending(head, key_text, emission)
            timers.delete_event_time_timer(END_OF_INPUT)
        return emission

    def close(self) -> None:
        """End what runs left open."""
        self._executor.close()

    # -- the queue of a key -----------------------------------------------------------

    def _park(self, head: Head, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        if not head.has_pending:
            timers.register_processing_time_timer(timers.current_processing_time() + 1)
            timers.register_event_time_timer(END_OF_INPUT)
        self._state.pending.put(head.next_pending, self._shared.codec.encode([record, timestamp]))
        head.next_pending += 1
        self._state.head.update(head.pack())
        return Emission()

    def _run_pending(self, head: Head, key_text: str, emission: Emission) -> None:
        number = head.first_pending
        waiting = self._state.pending.get(number)
        if waiting is None:
            raise StateFormatError(
                "state lacks an input that waits for its turn",
                expected=f"inputs {number} to {head.next_pending - 1} of key {decode_key(key_text)!r}",
                fix="restore from another checkpoint, and report this: state is never written so",
            )
        record, timestamp = self._shared.codec.decode(waiting)
        run = self._new_run(head, key_text, timestamp)
        self._executor.execute(run, record)
        head.first_pending += 1
        self._commit(head, run)
        self._state.pending.remove(number)
        emission.outputs += run.outputs
        emission.side_outputs += run.side_outputs

    # -- one run ----------------------------------------------------------------------

    def _new_run(self, head: Head, key_text: str, timestamp: int | None) -> Run:
        return Run(
            self._shared,
            head.journal_id,
            key_text,
            head.next_seq,
            timestamp,
            self._clock(),
            self._state.memory,
        )

    def _commit(self, head: Head, run: Run) -> None:
        run.short_term.commit()
        head.next_seq += 1
        self._state.head.update(head.pack())
