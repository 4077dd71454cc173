"""What a processor does with suspended runs, with those that are set aside, and with signals."""

from __future__ import annotations

from flink_agents.api.key_requests import ERASE, PREFIX
from flink_agents.api.signals import Signal
from flink_agents.runtime.loop.actor import KeyActor, Unread
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.harvest import START
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.waits.asides import woken_of
from flink_agents.runtime.state.keyed_state import Head, Timers


class WaitingProcessor(AgentProcessor):
    """Lets runs that are suspended go on when their time, or a signal, has come."""

    def _park(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Put the last run of an actor into state, and let go of the actor."""
        key_text, loop = actor.key_text, self._waits.loop
        if (left := actor.suspended) is not None:
            names = [one.name for one in left[1].waits]
            self._shared.run_metrics.open_waits.suspended(key_text, left[1].seq, names)
        if actor.part is not None:
            goes_on = self._set_aside(actor, emission, timers)
        else:
            goes_on = self._suspended.park(actor, emission, timers) or self._ending
        if actor.head.ends and self._hasten(actor.head, key_text):
            # It was suspended just when somebody wanted it to end.
            self._state.head.update(actor.head.pack())
            goes_on = True
        loop.withdraw(actor)
        self._feeder.drop(actor)
        loop.suspensions.forget(actor)
        del self._actors[key_text]
        # The timer at the end of a bounded input, which the actor had, stays: it lets the run go on.
        if goes_on:
            self._wake(actor.head, key_text, True, timers)
            return
        self._cache.keep(key_text, actor.head, {}, False, searched=False)
        if self._low is not None and actor.head.has_pending:
            self._low.park(key_text)

    def _set_aside(self, actor: KeyActor, emission: Emission, timers: Timers) -> bool:
        """Set the last run of an actor aside; whether the key has something to do."""
        assert actor.suspended is not None and actor.part is not None
        head, seq, part = actor.head, actor.suspended[1].seq, actor.part
        ready = self._commits.set_aside(actor, emission, timers)
        # Where records have said that the run ends here, there may be some of what it did behind that.
        if ready or part.replayed or self._ending:
            self._asides.wake(head, actor.key_text, lambda one: one.seq == seq)
        self._asides.wake_due(head, actor.key_text)
        self._state.head.update(head.pack())
        return self._asides.has_turn(head) and head.suspended is None

    def _is_held(self, head: Head) -> bool:
        """Whether the inputs of a key without an actor wait for the end of a suspended run."""
        return head.suspended is not None or (self._asides.is_full(head) and not self._asides.has_turn(head))

    def _wake_asides(self, head: Head, key_text: str, pending: bool) -> None:
        """Wake the runs that are set aside, where it is time for them."""
        if self._ending:
            some = self._asides.wake(head, key_text, lambda one: True)
        else:
            some = self._asides.wake_searched(
                head, key_text, lambda: self._heads.may_have_records(head, key_text, True)
            )
        if some:
            self._state.head.update(head.pack())

    def _end_input(self) -> None:
        """Let suspended runs go on, and their waits for signals end: the input has ended."""
        self._ending = True
        self._waits.loop.suspensions.end_of_input()

    def _resume(self, actor: KeyActor) -> None:
        """Let the suspended run of an actor's key go on, before all other inputs."""
        waiting = self._suspended.resume(actor.head)
        actor.resumed = waiting.number
        self._shared.run_metrics.open_waits.resumed(actor.key_text, waiting.run_seq)
        if actor.order is Unread.UNREAD:
            actor.resumes = waiting
            return
        actor.next_seq = max(actor.next_seq, waiting.seq + 1)
        self._waits.loop.submit(actor, waiting)

    def _take_signal(self, key_text: str, signal: Signal, timers: Timers) -> Emission:
        """Hand a signal to the run that waits for it, or keep it."""
        emission = Emission()
        actor = self._actors.get(key_text)
        if type(signal.name) is str and signal.name.startswith(PREFIX):
            self._take_request(key_text, signal, actor, timers)
            return emission
        if actor is not None:
            self._waits.check_failure()
            head = actor.head
        else:
            kept = self._cache.get(key_text)
            head = kept.head if kept is not None else self._heads.of(key_text)
        mail = self._suspended.receive(signal, key_text, head, actor, timers, emission)
        if mail is None:
            return emission
        self._see_the_end(timers)
        if actor is not None:
            self._waits.loop.suspensions.offer(actor, mail)
            self._feed_woken(actor, timers)
        elif self._suspended.is_due(head) or (head.suspended is None and bool(woken_of(head))):
            self._wake(head, key_text, True, timers)
        return emission

    def _take_request(self, key_text: str, signal: Signal, actor: KeyActor | None, timers: Timers) -> None:
        """Take a request about the current key, and let a run end that it marks."""
        known = actor or self._cache.get(key_text)
        head = known.head if known is not None else self._heads.read(key_text)
        seq = self._requests.take(signal, key_text, head, actor)
        if head is None or (seq is None and signal.name != ERASE):
            return
        if actor is None:
            self._cache.drop(key_text)
        if seq is None:
            self._state.head.update(head.pack())
            return
        self._hasten(head, key_text)
        self._state.head.update(head.pack())
        if actor is not None:
            actor.ends = head.ends
            self._waits.loop.end_run(actor, seq)
            self._feed_woken(actor, timers)
        elif self._suspended.is_due(head) or (head.suspended is None and bool(woken_of(head))):
            self._waits.check_failure()
            self._wake(head, key_text, True, timers)

    def _hasten(self, head: Head, key_text: str) -> bool:
        """Let the suspended runs of a key resume that are to be ended; whether there are any."""
        some = self._asides.wake(head, key_text, lambda one: one.seq in head.ends)
        if head.suspended is not None and head.suspended[1] in head.ends:
            head.suspended = *head.suspended[:2], 0
            some = True
        return some

    def _tend(self, key_text: str, fired: int, timers: Timers) -> Emission:
        """Let a suspended run of the current key go on whose time has come, and signals expire."""
        emission = Emission()
        if not self._shared.may_wait or fired >= START:
            return emission
        actor = self._actors.get(key_text)
        kept = self._cache.get(key_text) if actor is None else None
        known = actor if actor is not None else kept
        head = known.head if known is not None else self._heads.read(key_text)
        if head is None:
            return emission
        had_signals = head.mail_expires is not None
        if actor is None and head.aside and self._suspended.expires(head):
            # A run may have taken what expires now. It goes on, if only to wait again, and its records tell.
            self._wake_asides(head, key_text, head.has_pending)
        self._suspended.expire(key_text, head, actor, fired, emission, timers)
        waits = head.mail_expires or head.delayed_due or head.has_pending or head.aside
        if had_signals and not waits:
            self._ignore_the_end(timers)
        if head.is_unused:
            self._cache.drop(key_text)
            return emission
        if head.aside and (self._asides.wake_due(head, key_text) or (actor is None and woken_of(head))):
            self._state.head.update(head.pack())
            if actor is not None:
                self._feed_woken(actor, timers)
            elif head.suspended is None:
                self._waits.check_failure()
                self._wake(head, key_text, True, timers)
                return emission
        elif head.aside:
            self._asides.look_again(head, fired, timers)
        if actor is None and head.suspended is not None:
            if self._suspended.is_due(head):
                self._waits.check_failure()
                self._wake(head, key_text, True, timers)
            else:
                self._suspended.look_again(head, fired, timers)
        return emission

    def _feed_woken(self, actor: KeyActor, timers: Timers) -> None:
        """Let a run of an actor's key go on that was woken."""
        if actor.suspended is None and any(number not in actor.woken for number in woken_of(actor.head)):
            self._feed(actor)
            self._fed(actor, timers)

    def _end_signals(self, key_text: str, emission: Emission, timers: Timers) -> None:
        """Let signals of the current key leave that nobody has taken: the input has ended, and its runs."""
        kept = self._cache.get(key_text)
        head = kept.head if kept is not None else self._heads.read(key_text)
        if head is not None:
            self._suspended.end_signals(key_text, head, emission, timers)
            if head.is_unused:
                self._cache.drop(key_text)
