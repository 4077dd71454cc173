"""Interleaved runs as a key service: decides when a run is woken, and stores it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.interleaving.release import Interleaving
from flink_agents.runtime.operator.interleaving.runs import InterleavedRuns
from flink_agents.runtime.operator.interleaving.signals import InterleavedSignals
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.signals import SignalService
from flink_agents.runtime.operator.waits.suspension import SuspensionService
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.suspended import Suspension


class InterleavingService(KeyService):
    """Lets the inputs of a key run while earlier runs of it are suspended, and resumes those in between.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        low: The low watermark; None if outputs need no timestamps.
        suspension: Suspends and resumes runs. Its hooks are called after those of this service.
        signals: Gives signals to runs, the same.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        low: LowWatermark | None,
        suspension: SuspensionService,
        signals: SignalService,
    ) -> None:
        self._state = state
        self._clock = clock
        self._suspension = suspension
        self._runs = InterleavedRuns(shared, state, clock, low)
        self._signals = signals
        self._release = Interleaving(shared)

    def attach(self, operator: AgentProcessor) -> None:
        """Store the operator, and register with it."""
        super().attach(operator)
        operator.feeder.wake_ups = self._runs
        self._suspension.released = self
        self._signals.add_released(self, InterleavedSignals(self._runs))

    # -- keys without actors ----------------------------------------------------------

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key wait, because it has the most interleaved runs."""
        return bool(head.released) and self._runs.is_full(head) and not self._runs.has_turn(head)

    def rests(self, head: Head, key_text: str) -> bool:
        """Return True if the inputs of a key wait for an interleaved run."""
        if self._suspension.input_has_ended:
            self.wake_unread(head, key_text)
            return False
        if head.released and self._runs.wake_others(head, key_text):
            self._state.head.update(head.pack())
        return head.suspended is None and self.blocks(head)

    def waking(self, head: Head, key_text: str, pending: bool) -> None:
        """Wake interleaved runs if it is time for them."""
        if head.released:
            self.wake_unread(head, key_text)

    def acting(self, actor: KeyActor) -> None:
        """Let an actor release its key when it suspends a run."""
        actor.runs.release = self._release

    # -- wake-ups ---------------------------------------------------------------------

    def has_woken(self, head: Head, taken_wake_ups: Collection[int] = ()) -> bool:
        """Return True if a run is awake whose wake-up was not taken yet; see ``ReleasedRuns``."""
        return any(number not in taken_wake_ups for number in self._runs.woken(head))

    def wake_unread(self, head: Head, key_text: str) -> None:
        """Wake all runs of a key if an earlier attempt may have recorded more of them, or the input ended."""
        if self._suspension.input_has_ended:
            has_wake_up = self._runs.wake(head, key_text, lambda run: True)
        else:
            may_have = self.operator.heads.may_have_records
            has_wake_up = self._runs.wake_searched(head, key_text, lambda: may_have(head, key_text, True))
        # The new wake-ups are in the head, so both are written in one call of Flink.
        if has_wake_up:
            self._state.head.update(head.pack())

    def wake_marked(self, head: Head, key_text: str) -> bool:
        """Wake the runs that the user wants to end. Return True if there are any."""
        return self._runs.wake(head, key_text, lambda run: run.seq in head.ends)

    def wake_due(self, head: Head, key_text: str, actor: KeyActor | None, at: int, timers: Timers) -> None:
        """Wake the runs whose time has come, and resume those that are awake; see ``ReleasedRuns``."""
        has_wake_up = self._runs.wake_due(head, key_text)
        if not has_wake_up and (actor is not None or not self.has_woken(head)):
            self._runs.look_again(head, at, timers)
            return
        self._state.head.update(head.pack())
        operator = self.operator
        if actor is None:
            if head.suspended is None:
                operator.waits.check_failure()
                operator.make_actor(head, key_text, True, timers)
        elif actor.runs.suspended is None and self.has_woken(head, actor.woken):
            operator.feed(actor, timers)

    # -- commits ----------------------------------------------------------------------

    def committing(self, ended: EndedRun, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """Store an interleaved run that was suspended, or remove the stored form of one that finished."""
        head = actor.head
        key_text = actor.key_text
        suspension = ended.suspension
        if suspension is None:
            if head.released and ended.number is not None:
                self._runs.end(head, key_text, ended.number)
            return
        if not ended.frees_key:
            return
        ending = self._suspension.input_has_ended
        if ending:
            self._runs.wake(head, key_text, lambda run: True)
        self._store(suspension, key_text, head, timers)
        # If records say that the part ends here, the next part may have records as well.
        if ended.replayed or ending:
            self._runs.wake(head, key_text, lambda run: run.seq == suspension.seq)
        self._runs.wake_due(head, key_text)

    def after_commit(self, actor: KeyActor, last: EndedRun | None, timers: Timers) -> None:
        """Set if the key of an actor whose last run was interleaved has something to run."""
        head = actor.head
        if self._suspension.input_has_ended and head.released:
            self.wake_unread(head, actor.key_text)
        if last is not None and last.frees_key:
            last.resumes = self._runs.has_turn(head) and head.suspended is None

    def _store(self, suspension: Suspension, key_text: str, head: Head, timers: Timers) -> None:
        """Put a suspended run into state."""
        self._runs.keep(suspension, key_text, head, timers)
        # A run must be listed once, or its end would leave an entry behind.
        if head.suspended is not None and head.suspended[1] == suspension.seq:
            # It was suspended under another policy.
            head.suspended = None
