"""Delayed events and the actors of their keys: what both kinds of processor share."""

from __future__ import annotations

import heapq
from typing import Any

from flink_agents.runtime.operator.harvest import START
from flink_agents.runtime.operator.waits.waiting_processor import WaitingProcessor
from flink_agents.runtime.state.keyed_state import Head, Timers

LEFT_MS = 60_000
"""How far ahead the timer of events is that stay in state at the end of the input."""


class AwaitedKeys:
    """The keys for whose delayed events the end of a bounded input waits, in the order of their time."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[int, Any]] = {}
        self._heap: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._keys)

    def note(self, key_text: str, key: Any, due: int | None) -> None:
        """Note when the first event of a key is due; None where it has none."""
        if due is None:
            self._keys.pop(key_text, None)
        elif self._keys.get(key_text, (None,))[0] != due:
            self._keys[key_text] = due, key
            heapq.heappush(self._heap, (due, key_text))

    def take(self, now: int) -> Any:
        """A key of which an event is due, and which is waited for no longer; None where there is none."""
        while self._heap and self._heap[0][0] <= now:
            due, key_text = heapq.heappop(self._heap)
            if self._keys.get(key_text, (None,))[0] == due:
                return self._keys.pop(key_text)[1]
        return None


class DelayingProcessor(WaitingProcessor):
    """Lets delayed events begin runs when a timer of their key fires. Arguments are those of its base."""

    def _head_of(self, key_text: str) -> Head | None:
        """The head of the current key, wherever it is at hand."""
        known = self._actors.get(key_text) or self._cache.get(key_text)
        return known.head if known is not None else self._heads.read(key_text)

    def _deliver(self, key_text: str, fired: int, timers: Timers) -> None:
        """Let delayed events of the current key begin their runs, if they are due.

        Args:
            key_text: The key.
            fired: Time of the timer that has fired, which may be there for something else.
            timers: Timers of the key.
        """
        head = self._head_of(key_text)
        if head is None or head.delayed_due is None or fired >= START:
            return
        if self._delays.leaves:
            # It stays in state, also for a job that starts from a checkpoint of this time.
            timers.register_processing_time_timer(max(self._clock(), fired) + LEFT_MS)
        elif not self._delays.is_due(head):
            self._delays.look_again(head, fired, timers)
        elif key_text not in self._actors and self._waits.is_full:
            # As inputs do: they wait until the loop has room, as long as streams behind need no sign.
            self._waits.wait_for_a_sign()
            if self._waits.is_full:
                timers.register_processing_time_timer(max(self._clock(), fired) + 1)
            else:
                self._come_in(head, key_text, timers)
        else:
            self._come_in(head, key_text, timers)

    def _come_in(self, head: Head, key_text: str, timers: Timers, early: bool = False) -> None:
        """Let events of the current key be inputs, and have them run.

        Args:
            head: The key's head.
            key_text: The key.
            timers: Timers of the key.
            early: Let all events come in, whether they are due or not.
        """
        self._waits.check_failure()
        actor, pending = self._actors.get(key_text), head.has_pending
        held = actor is None and self._is_held(head)
        if actor is None and not held:
            self._heads.mark(head, key_text)
        self._delays.come_in(head, key_text, timers, early)
        if actor is not None:
            self._feed(actor)
            self._fed(actor, timers)
        elif not held:
            self._wake(head, key_text, pending, timers)
        elif self._low is not None:
            self._low.park(key_text)

    def _come_in_at_end(self, key_text: str, timers: Timers) -> int | None:
        """Let delayed events of the current key come in as the end of a bounded input has it.

        Args:
            key_text: The key.
            timers: Timers of the key.

        Returns:
            When the next event is due that is waited for; None where there is none.
        """
        head = self._head_of(key_text)
        if head is None or head.delayed_due is None:
            return None
        if self._delays.skips or self._delays.is_due(head):
            self._come_in(head, key_text, timers, early=self._delays.skips)
        return head.delayed_due
