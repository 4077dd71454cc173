"""Signals as a key service: which run gets a signal, and which signals leave because no run takes them."""

from __future__ import annotations

from flink_agents.api.events.key_requests import PREFIX
from flink_agents.api.events.signals import TaggedSignal
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.end_times import START
from flink_agents.runtime.operator.requests import RequestService
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.signal_store import SignalStore
from flink_agents.runtime.operator.waits.suspension import SuspensionService
from flink_agents.runtime.state.keyed_state import Timers


class SignalService(KeyService):
    """Hands signals to the runs that wait for them, and emits those that no run takes.

    Args:
        store: The signals in state.
        requests: Handles the signals that are requests about a key.
        suspension: Resumes the run that a signal is for.

    Attributes:
        suspension: The same.
    """

    receives: type | None = TaggedSignal

    def __init__(
        self,
        store: SignalStore,
        requests: RequestService,
        suspension: SuspensionService,
    ) -> None:
        self._store = store
        self._requests = requests
        self.suspension = suspension

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
            operator.loop_access.check_failure()
            head = actor.head
        else:
            cached = operator.cache.get(key_text)
            head = cached.head if cached is not None else operator.heads.read_or_create(key_text)
        self.suspension.expect_waits()
        if actor is not None:
            # Before state has the signal: a run that waits for the first time may create it without.
            actor.open_mailbox()
        stored = self._store.receive(signal, key_text, head, actor, timers, emission)
        if stored is None:
            return emission
        # At the end of the input, signals that no run took are emitted as unmatched.
        operator.schedule.see_the_end(timers)
        if actor is not None:
            operator.loop_access.loop.suspender.offer(actor, stored)
        self.suspension.resume_woken(head, key_text, actor, timers)
        return emission

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
        if actor is None and head.suspended and self._store.expires(head):
            # A run may have taken a signal that expires now. Resume it, so that its records are read.
            self.suspension.wake_unread(head, key_text)
        self._store.expire(key_text, head, actor, at, out, timers)
        if head.is_unused:
            operator.cache.remove_key(key_text)

    def end_signals(self, key_text: str, timers: Timers, out: Emission) -> None:
        """Emit the signals of the current key that no run has taken: the input and its runs have ended."""
        head = self.operator.head_of(key_text)
        if head is not None:
            self._store.end_signals(key_text, head, out, timers)
            if head.is_unused:
                self.operator.cache.remove_key(key_text)
