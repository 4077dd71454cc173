"""Suspended runs and signals as a key service: decides when a run is resumed, and which run gets a signal."""

from __future__ import annotations

from collections.abc import Sequence

from flink_agents.api.events.key_requests import ERASE, PREFIX
from flink_agents.api.events.signals import Signal, TaggedSignal
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor, ReplayStatus
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.end_times import START
from flink_agents.runtime.operator.requests.answering import RequestAnswers
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.released import ReleasedRuns
from flink_agents.runtime.operator.waits.suspended import SuspendedRuns
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers

OF_SIGNALS = frozenset({"restored", "keeps_end", "ending"})
"""Hooks of an agent that never waits, until its first signal comes."""


class SuspensionService(KeyService):
    """Resumes runs when their time, or a signal, has come.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        suspended: Stores suspended runs and signals.
        requests: Handles the signals that are requests about a key.
        hooks: All hooks, for an agent that never waits.

    Attributes:
        suspended: Stores suspended runs and signals.
        input_over: True if the input has ended.
        released: Wakes released runs; None if there are none.
    """

    receives: type | None = TaggedSignal

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        suspended: SuspendedRuns,
        requests: RequestAnswers,
        hooks: tuple[str, ...],
    ) -> None:
        self._state = state
        self.suspended = suspended
        self._requests = requests
        self._open_waits = shared.run_metrics.open_waits
        self.input_over = False
        self.released: ReleasedRuns | None = None
        if shared.may_wait:
            shared.run_metrics.add_gauges("waits", self._open_waits.read)
        else:
            self.asleep = frozenset(hooks) - OF_SIGNALS

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Wake up if keys may have signals, which are stored with waiting inputs."""
        if self.asleep and waiting:
            self.operator.hooks.wake(self)
        return False

    # -- keys without actors ----------------------------------------------------------

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key without an actor wait for the end of a suspended run."""
        return head.suspended is not None

    def rests(self, head: Head, key_text: str) -> bool:
        """Return True if the suspended run of a key still waits."""
        rests = self.blocks(head) and not (self.input_over or self.suspended.is_due(head))
        if rests:
            self.suspended.restored(head, key_text)
        return rests

    # -- actors -----------------------------------------------------------------------

    def acting(self, actor: KeyActor) -> None:
        """Give an actor the signals of its key."""
        actor.mail = self.suspended.mail(actor.head)

    def resuming(self, actor: KeyActor) -> None:
        """Put the suspended run of an actor's key first, before all other inputs."""
        if actor.head.suspended is None:
            return
        waiting = self.suspended.resume(actor.head)
        actor.resumed = waiting.number
        self._open_waits.resumed(actor.key_text, waiting.run_seq)
        if actor.order is ReplayStatus.UNREAD:
            actor.resumes = waiting
            return
        actor.next_seq = max(actor.next_seq, waiting.seq + 1)
        self.operator.waits.loop.submit(actor, waiting)

    def idle(self, actor: KeyActor) -> None:
        """Drop the signals of a key whose actor was released."""
        self.operator.waits.loop.suspensions.forget(actor)

    def keeps_end(self, head: Head) -> bool:
        """Return True if the end of the input discards signals of the key."""
        return head.mail_expires is not None

    # -- commits ----------------------------------------------------------------------

    def committing(self, ended: EndedRun, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """Store a run that was suspended, or remove the stored form of one that has finished."""
        head, suspension = actor.head, ended.suspension
        if suspension is not None:
            self._open_waits.suspended(actor.key_text, suspension.seq, suspension.waits)
        if suspension is None:
            if ended.run.waits is not None or ended.resumed:
                assert ended.number is not None
                self.suspended.committed(ended.run, ended.number, head, out, timers)
        elif not ended.released:
            resumes = self.suspended.suspend(ended, actor, timers, out)
            ended.resumes = resumes or self.input_over

    def after_commit(self, actor: KeyActor, last: EndedRun | None, timers: Timers) -> None:
        """Release an actor whose last run was suspended, and resume that run if it can be."""
        head, key_text, operator = actor.head, actor.key_text, self.operator
        if last is None:
            return
        resumes = last.resumes
        if head.ends and self._hasten(head, key_text):
            # It was suspended at the moment when a user wanted it to end.
            self._state.head.update(head.pack())
            resumes = True
        # Later inputs stay in state. The next actor reads them again.
        operator.waits.loop.withdraw(actor)
        operator.feeder.drop(actor)
        operator.waits.loop.suspensions.forget(actor)
        del operator.actors[key_text]
        # The timer at the end of a bounded input stays: it resumes the run.
        if resumes:
            operator.wake(head, key_text, True, timers)
            return
        operator.cache.keep(key_text, head, {}, False, searched=False)
        if head.has_pending:
            operator.blocked(key_text)

    # -- signals ----------------------------------------------------------------------

    def receive(self, key_text: str, record: TaggedSignal, timers: Timers) -> Emission:
        """Hand a signal to the run that waits for it, or store it."""
        emission, operator = Emission(), self.operator
        actor, name = operator.actors.get(key_text), record.signal.name
        # Requests are signals with a reserved prefix.
        if type(name) is str and name.startswith(PREFIX):
            self._take_request(key_text, record.signal, actor, timers)
            return emission
        if actor is not None:
            operator.waits.check_failure()
            head = actor.head
        else:
            cached = operator.cache.get(key_text)
            head = cached.head if cached is not None else operator.heads.of(key_text)
        mail = self.suspended.receive(record.signal, key_text, head, actor, timers, emission)
        if mail is None:
            return emission
        if self.asleep:
            # The agent never waits, but its signals expire, and leave at the end of the input.
            operator.hooks.wake(self)
        # At the end of the input, signals that no run took leave as unmatched.
        operator.schedule.see_the_end(timers)
        if actor is not None:
            # The actor may be older than the first signal of an agent that never waits.
            if actor.mail is not None:
                operator.waits.loop.suspensions.offer(actor, mail)
                self._feed_woken(actor, timers)
        elif self._can_resume(head):
            operator.wake(head, key_text, True, timers)
        return emission

    def ending(self, run: Run, actor: KeyActor) -> None:
        """Remove the mark of a run that was to end."""
        self._requests.ended(run, actor.head)
        actor.ends = actor.head.ends

    def _take_request(self, key_text: str, signal: Signal, actor: KeyActor | None, timers: Timers) -> None:
        """Handle a request about the current key, and end the run that it marks."""
        operator, head = self.operator, self.operator.head_of(key_text)
        seq = self._requests.take(signal, key_text, head, actor)
        if head is None or (seq is None and signal.name != ERASE):
            return
        if actor is None:
            operator.cache.drop(key_text)
        if seq is not None:
            self._hasten(head, key_text)
        self._state.head.update(head.pack())
        if seq is None:
            return
        if actor is not None:
            actor.ends = head.ends
            operator.waits.loop.end_run(actor, seq)
            self._feed_woken(actor, timers)
        elif self._can_resume(head):
            operator.waits.check_failure()
            operator.wake(head, key_text, True, timers)

    def _hasten(self, head: Head, key_text: str) -> bool:
        """Make the suspended runs of a key that a user wants to end resume; returns True if there are any."""
        some = self.released is not None and self.released.wake_marked(head, key_text)
        if head.suspended is not None and head.suspended[1] in head.ends:
            head.suspended = *head.suspended[:2], 0
            some = True
        return some

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Resume a suspended run of the current key whose time has come, and let signals expire."""
        operator = self.operator
        head = operator.head_of(key_text) if at < START else None
        if head is None:
            return
        actor = operator.actors.get(key_text)
        had_signals = head.mail_expires is not None
        released = self.released if head.released else None
        if actor is None and released is not None and self.suspended.expires(head):
            # A run may have taken a signal that expires now. Resume it, so that its records are read.
            released.wake_unread(head, key_text)
        # Before waits end: a signal that has expired must not resume a run.
        self.suspended.expire(key_text, head, actor, at, out, timers)
        waits = head.mail_expires or head.delayed_due or head.has_pending or head.released
        if had_signals and not waits:
            operator.schedule.ignore_the_end(timers)
        if head.is_unused:
            operator.cache.drop(key_text)
            return
        if released is not None:
            released.wake_due(head, key_text, actor, at, timers)
        if actor is None and head.suspended is not None:
            if self.suspended.is_due(head):
                operator.waits.check_failure()
                operator.wake(head, key_text, True, timers)
            else:
                self.suspended.look_again(head, at, timers)

    def _can_resume(self, head: Head) -> bool:
        """Return True if a suspended run of a key without an actor can be resumed."""
        if head.suspended is not None:
            return self.suspended.is_due(head)
        return self.released is not None and self.released.has_woken(head)

    def _feed_woken(self, actor: KeyActor, timers: Timers) -> None:
        """Run the wake-ups of an actor's key."""
        if self.released is None or actor.suspended is not None:
            return
        if self.released.has_woken(actor.head, actor.woken):
            self.operator.feed(actor, timers)

    # -- the end of a bounded input ---------------------------------------------------

    def input_ended(self) -> bool:
        """Resume suspended runs, and end their waits for signals; return True the first time."""
        first, self.input_over = not self.input_over, True
        if first:
            self.operator.waits.loop.suspensions.end_of_input()
        return first

    def drained(self, key_text: str, timers: Timers, out: Emission) -> None:
        """Emit the signals of the current key that no run has taken: the input and its runs have ended."""
        head = self.operator.head_of(key_text)
        if head is not None:
            self.suspended.end_signals(key_text, head, out, timers)
            if head.is_unused:
                self.operator.cache.drop(key_text)
