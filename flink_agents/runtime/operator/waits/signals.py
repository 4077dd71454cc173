"""Signals as a key service: which run gets a signal, and which signals leave because no run takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flink_agents.api.events.key_requests import PREFIX
from flink_agents.api.events.signals import TaggedSignal
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.requests.service import RequestService
from flink_agents.runtime.operator.schedules.end_times import START
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.released import ReleasedRuns, SignalTakers
from flink_agents.runtime.operator.waits.signal_store import SignalStore
from flink_agents.runtime.operator.waits.suspension import SuspensionService
from flink_agents.runtime.state.keyed_state import KeyedState, Keys, Timers


class SignalService(KeyService):
    """Hands signals to the runs that wait for them, and emits those that no run takes.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        requests: Handles the signals that are requests about a key.
        suspension: Resumes the run that a signal is for; None if the agent never waits.
    """

    receives: type | None = TaggedSignal

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        requests: RequestService,
        suspension: SuspensionService | None,
    ) -> None:
        self._store = SignalStore(shared, state, clock)
        self._requests = requests
        self._suspension = suspension
        self._released: ReleasedRuns | None = None
        self._finds_keys = suspension is None
        if suspension is None:
            # Signals of an agent that never waits expire, or leave at the end of the input.
            names = "acting", "actor_released", "committing", "drained", "fired", "input_ended"
            self.asleep = frozenset(names)

    def add_released(self, released: ReleasedRuns, takers: SignalTakers) -> None:
        """Let released runs take signals as well."""
        self._released = released
        self._store.add_takers(takers)

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Wake up if keys may have signals, which are stored with waiting inputs."""
        if self.asleep and waiting:
            self.operator.hooks.activate(self)
        return False

    # -- a signal comes ---------------------------------------------------------------

    def receive(self, key_text: str, record: TaggedSignal, timers: Timers) -> Emission:
        """Hand a signal to the run that waits for it, or store it."""
        emission = Emission()
        operator = self.operator
        signal = record.signal
        # Requests are signals with a reserved prefix.
        if type(signal.name) is str and signal.name.startswith(PREFIX):
            self._requests.request(signal, key_text, timers)
            return emission
        actor = operator.actors.get(key_text)
        if actor is not None:
            operator.waits.check_failure()
            head = actor.head
        else:
            cached = operator.cache.get(key_text)
            head = cached.head if cached is not None else operator.heads.of(key_text)
        stored = self._store.receive(signal, key_text, head, actor, timers, emission)
        if stored is None:
            return emission
        if self.asleep:
            operator.hooks.activate(self)
        # At the end of the input, signals that no run took are emitted as unmatched.
        operator.schedule.see_the_end(timers)
        # The actor may be older than the first signal of an agent that never waits.
        if actor is not None and actor.runs.mailbox is not None:
            operator.waits.loop.suspender.offer(actor.runs, stored)
        if self._suspension is not None:
            self._suspension.resume_woken(head, key_text, actor, timers)
        return emission

    # -- actors -----------------------------------------------------------------------

    def acting(self, actor: KeyActor) -> None:
        """Give an actor the signals of its key."""
        actor.runs.mailbox = self._store.active(actor.head)

    def actor_released(self, actor: KeyActor) -> None:
        """Drop the signals of a key whose actor was released."""
        self.operator.waits.loop.suspender.forget(actor.runs)

    def committing(self, ended: EndedRun, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """Remove the signals that a run took, and resume a suspended one if its next signal is there."""
        if self._store.remove_taken(ended, actor.head, timers, out):
            ended.resumes = True

    # -- signals that no run takes ----------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Let signals of the current key expire.

        This comes before waits end: a signal that has expired must not resume a run.
        """
        operator = self.operator
        head = operator.head_of(key_text) if at < START else None
        if head is None or head.signals_expire is None:
            return
        actor = operator.actors.get(key_text)
        if actor is None and self._released is not None and head.released and self._store.expires(head):
            # A run may have taken a signal that expires now. Resume it, so that its records are read.
            self._released.wake_unread(head, key_text)
        self._store.expire(key_text, head, actor, at, out, timers)
        if head.is_unused:
            operator.cache.drop(key_text)

    def input_ended(self) -> bool:
        """Find the keys with signals; ``SuspensionService`` does it if there is one."""
        finds_keys = self._finds_keys
        self._finds_keys = False
        return finds_keys

    def drained(self, key_text: str, timers: Timers, out: Emission) -> None:
        """Emit the signals of the current key that no run has taken: the input and its runs have ended."""
        head = self.operator.head_of(key_text)
        if head is not None:
            self._store.end_signals(key_text, head, out, timers)
            if head.is_unused:
                self.operator.cache.drop(key_text)
