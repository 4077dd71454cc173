"""Delayed events in state: the work of Flink's task thread.

When a run is committed or suspended, the events that it sent with a delay are put into state, in the same
update of the key. A timer of the key fires when the first event is due. Then the bytes of the due events
become inputs of the key that wait, again in one update: after those that wait already, and with unchanged
bytes, so that the digest of an input finds its recorded run.

If the job would fail when the time of an event comes, because the code has changed since it was sent, then it
fails at its start: an event may have hours to wait.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import OnError
from flink_agents.api.errors import StateError
from flink_agents.api.events import DELAYED_TAG
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import event_of_input, no_action_takes
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.services.service import START, Emission, KeyService
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers
from flink_agents.runtime.state.pending import read_input

MOST_AT_ONCE = 100
"""The most events of a key that one timer delivers, so that other keys and checkpoints have their turn."""

MOST_CHECKED = 200
"""The most restored keys whose events one heartbeat checks, so that a large state delays no start."""

LEFT_MS = 60_000
"""The delay, in milliseconds, of the timer of events that stay in state at the end of the input."""

LEFT = "delayed_events_left"
"""Name of the counter of delayed events that stay in state at the end of the input."""

_FAIL = (OnError.FAIL, OnError.RETRY)
"""The policies with which the job fails."""

_log = bounded_logger("flink_agents.delayed")


class AwaitedKeys:
    """The keys whose delayed events the end of a bounded input waits for, ordered by their first event."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[int, Any]] = {}
        self._heap: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._keys)

    def note(self, key_text: str, key: Any, due: int | None) -> None:
        """Note the time, in milliseconds, of the first delayed event of a key; None if it has none left."""
        if due is None:
            self._keys.pop(key_text, None)
        elif self._keys.get(key_text, (None,))[0] != due:
            self._keys[key_text] = due, key
            heapq.heappush(self._heap, (due, key_text))

    def pop_due(self, now: int) -> Any:
        """Remove and return the key with the earliest event; None if no event is due at ``now``."""
        while self._heap and self._heap[0][0] <= now:
            due, key_text = heapq.heappop(self._heap)
            if self._keys.get(key_text, (None,))[0] == due:
                return self._keys.pop(key_text)[1]
        return None


class Delays(KeyService):
    """Stores delayed events of the current key, and delivers them. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        low: The low watermark; None if outputs need no timestamps.
        keys: The keys of the subtask.

    Attributes:
        awaited: The keys whose events the end of the input waits for; None before the input ends.
        unchecked: Restored keys whose events are still to be checked.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        low: LowWatermark | None,
        keys: Keys,
    ) -> None:
        self._shared = shared
        self._state = state
        self._clock = clock
        self._low = low
        self._keys = keys
        # True if all events are delivered at the end of a bounded input, whether they are due or not.
        self._skips_timers = shared.skips_timers
        # True if new delayed events stay in state: the input has ended, and nothing waits for them.
        self._keeps_events = False
        self.awaited: AwaitedKeys | None = None
        # Until a run sends the first delayed event, or one is found in restored state.
        self._has_events = False
        self._fails_on_error = shared.on_error in _FAIL
        self._fails_on_unhandled = shared.on_unhandled in _FAIL
        self.unchecked: deque[Any] = deque()

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find the restored keys with delayed events. Flink restores the timers of the events itself."""
        checks = self._fails_on_error or self._fails_on_unhandled
        if self._has_events or timers is None or not (delaying := keys.delaying(None if checks else 1)):
            return False
        if checks:
            self.unchecked.extend(delaying)
        self._expect_events()
        keys.switch(delaying[0])
        self.operator.schedule.see_the_end(timers)
        return True

    def check_restored(self) -> None:
        """Check that the present code handles the delayed events of up to ``MOST_CHECKED`` restored keys.

        Raises:
            StateError: An event cannot be read, so the job would fail when its time comes.
            Error: No action handles an event, and the policy is to fail.
        """
        for _ in range(min(len(self.unchecked), MOST_CHECKED)):
            self._keys.switch(self.unchecked.popleft())
            for _, packed in self._state.delayed.list_events():
                self._check_event(packed)

    def _check_event(self, packed: bytes) -> None:
        """Raise the error with which the run of a delayed event would fail the job, if it would."""
        try:
            event = event_of_input(packed, self._shared)
        except StateError:
            if self._fails_on_error:
                raise
            return
        route = self._shared.routes.find_route(event)
        if self._fails_on_unhandled and route is not None and not (route.leaves or route.actions):
            raise no_action_takes(event, self._shared)

    def keep_delayed(self, run: Run, head: Head, timers: Timers) -> None:
        """Move the events that a run sent with a delay from its side outputs into state.

        The caller writes the head.
        """
        sent = [cast("list[Any]", value) for tag, value in run.side_outputs if tag == DELAYED_TAG]
        if not sent:
            return
        run.side_outputs = [output for output in run.side_outputs if output[0] != DELAYED_TAG]
        first = previous_due = head.delayed_due
        for due, *content in sent:
            packed = self._shared.codec.encode([delayed_input(run, content), run.timestamp])
            first = self._state.delayed.add(due, packed)
        head.delayed_due = first
        self._expect_events()
        if first is not None and first != previous_due:
            timers.register_processing_time_timer(max(first, self._clock() + 1))
        if self._keeps_events:
            self._report_left_in_state(len(sent))
        else:
            self.operator.schedule.see_the_end(timers)

    def _expect_events(self) -> None:
        self._has_events = self.operator.has_key_timers = True

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Turn due events of the current key into inputs, or register another timer for them."""
        head = self.operator.head_of(key_text) if self._has_events and at < START else None
        if head is None or head.delayed_due is None:
            return
        loop_access = self.operator.loop_access
        if self._keeps_events:
            # The event stays in state. The timer is for a job that starts from a checkpoint of this time.
            timers.register_processing_time_timer(max(self._clock(), at) + LEFT_MS)
        elif not self._is_due(head):
            if head.delayed_due <= at:
                # By this clock, the timer fired too early. Flink also fires a new timer that is not later
                # than this one, so with the same time it would never stop.
                timers.register_processing_time_timer(max(self._clock(), at) + 1)
        elif key_text not in self.operator.actors and loop_access.is_full:
            # Like inputs, they wait until the loop has room, unless downstream would count as idle.
            loop_access.wait_for_a_sign()
            if loop_access.is_full:
                timers.register_processing_time_timer(max(self._clock(), at) + 1)
            else:
                self._deliver(head, key_text, timers)
        else:
            self._deliver(head, key_text, timers)

    # -- the end of a bounded input ---------------------------------------------------

    def end_keys(self, keys: Keys, first: bool, timers: Timers) -> None:
        """Find the keys whose delayed events the end of the input waits for, or delivers at once.

        Args:
            keys: The keys of the subtask.
            first: True for the first timer at the end of the input.
            timers: Timers of the current key.
        """
        if self.awaited is not None or not self._has_events:
            return
        self.awaited = AwaitedKeys()
        if self._skips_timers and not first:
            # All pending events were delivered before a restart.
            self._keeps_events = True
            return
        for key in keys.delaying():
            self._await(keys, key, timers)
        self._keeps_events = self._skips_timers

    def deliver_awaited(self, timers: Timers) -> None:
        """Deliver the due events of all keys that the end of the input waits for."""
        while self.awaited is not None and (key := self.awaited.pop_due(self._clock())) is not None:
            self._await(self._keys, key, timers)

    def note_committed(self, key_text: str, key: Any, head: Head) -> None:
        """Note the first delayed event of a key whose runs were committed after the end of the input."""
        if self.awaited is not None and not self._keeps_events:
            self.awaited.note(key_text, key, head.delayed_due)

    def _await(self, keys: Keys, key: Any, timers: Timers) -> None:
        """Deliver the due events of a key, and note the time of its next one."""
        keys.switch(key)
        key_text = keys.text()
        assert self.awaited is not None
        self.awaited.note(key_text, key, self._deliver_at_end(key_text, timers))

    def _deliver_at_end(self, key_text: str, timers: Timers) -> int | None:
        """Deliver due events of the current key at the end of a bounded input; all if timers are skipped.

        Returns:
            The time of the next event that the end waits for, or None.
        """
        head = self.operator.head_of(key_text)
        if head is None or head.delayed_due is None:
            return None
        if self._skips_timers or self._is_due(head):
            self._deliver(head, key_text, timers, early=self._skips_timers)
        return head.delayed_due

    # -- events that are due ----------------------------------------------------------

    def _is_due(self, head: Head) -> bool:
        """Return True if the time of a key's first delayed event has come."""
        due = head.delayed_due
        return due is not None and due <= self._clock()

    def _deliver(self, head: Head, key_text: str, timers: Timers, early: bool = False) -> None:
        """Make events of the current key its inputs, and let its actor run them.

        Args:
            head: The key's head.
            key_text: The key.
            timers: Timers of the key.
            early: True to deliver all events, whether they are due or not.
        """
        operator = self.operator
        operator.loop_access.check_failure()
        actor = operator.actors.get(key_text)
        pending = head.has_pending
        blocked = actor is None and operator.is_blocked(head)
        # Before it counts as an input: the marker is before the first record that its run may make.
        if actor is None and not blocked:
            operator.heads.mark(head, key_text)
        self.come_in(head, key_text, timers, early)
        if actor is not None:
            operator.feed(actor, timers)
        elif blocked:
            operator.blocked(key_text, head)
        else:
            operator.make_actor(head, key_text, pending, timers)

    def come_in(self, head: Head, key_text: str, timers: Timers, early: bool = False) -> None:
        """Move due events of the current key to its waiting inputs; at most ``MOST_AT_ONCE`` if not early.

        Args:
            head: The key's head, which is written.
            key_text: The key.
            timers: Timers of the key.
            early: True to deliver all events, whether they are due or not.
        """
        most, until = (None, None) if early else (MOST_AT_ONCE, self._clock())
        # All of it in one call of Flink: a checkpoint has an event delayed, or as an input, never both.
        due_inputs, head.delayed_due = self._state.delayed.pop(most, until)
        for packed in due_inputs:
            number = self._state.put_input(head, packed)
            if self._low is not None:
                self._low.delayed(key_text, number, read_input(self._shared.codec, packed)[1])
        self._state.write(head)
        if head.delayed_due is not None:
            timers.register_processing_time_timer(max(head.delayed_due, self._clock() + 1))

    def _report_left_in_state(self, count: int) -> None:
        """Count and log delayed events that nothing delivers before the job starts again."""
        for _ in range(count):
            self._shared.telemetry.run_metrics.count(LEFT)
        _log.warning(
            "%d delayed events were sent after the end of the input, and %s is %s: they stay in state",
            count,
            AgentOptions.TIMERS_AT_END.key,
            TimersAtEnd.SKIP.value,
        )


def delayed_input(run: Run, sent: list[Any]) -> DelayedInput:
    """Return the input that a delayed event will be.

    Args:
        run: The run that sent it.
        sent: The event, the action that sent it, and the id of the event that this action handled.
    """
    event, action, upstream = sent
    return DelayedInput(event, action, upstream, run.lineage.id, run.sequence_number)
