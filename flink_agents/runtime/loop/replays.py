"""Lets the inputs of a key run in the order that was recorded, as ``journal.order`` says."""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox, taken_signals
from flink_agents.runtime.journal.order import InputOrder, RecordedRuns
from flink_agents.runtime.journal.records import input_digest
from flink_agents.runtime.loop.actor import KeyActor, QueuedInput
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.pending import read_input

_log = bounded_logger("flink_agents.replays")

MAX_TOLD = 5
"""Of how many keys an error tells that they hold inputs back."""


TOLD_SECONDS = 10.0
"""How long a line of the log about inputs that did not come stands for all others of its kind."""


class Replays:
    """Chooses what actors with recorded runs run next.

    Flink's thread has all inputs at hand, which are in state, and looks at each once. The loop has those
    in memory, and chooses among them where Flink's thread has not come by.

    Args:
        shared: What all runs share.
        bridge: Leads to the agent loop.
        begin: Lets an actor go on; only for the loop's thread.

    Attributes:
        no_more_input: Whether nobody waits any more.
        uncached: How many of the inputs that Flink's thread left in memory the loop has chosen.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge, begin: Callable[[KeyActor], None]) -> None:
        self._shared = shared
        self._bridge = bridge
        self._begin = begin
        self._seconds: float = shared.config.get(AgentOptions.REORDER_TIMEOUT).total_seconds()
        self._held: dict[KeyActor, None] = {}
        self._told = -TOLD_SECONDS
        self.no_more_input = False
        self.uncached = 0

    # -- for the loop's thread --------------------------------------------------------

    async def read(self, actor: KeyActor) -> None:
        """Learn what was recorded of a key; from then on its inputs can be chosen.

        Raises:
            RecordsPrunedError: State is older than what the store keeps.
        """
        journals = self._shared.journals
        assert journals is not None
        from_seq = None if actor.fresh else actor.next_seq
        recorded = await journals.recorded(
            actor.journal_id,
            actor.key_text,
            from_seq,
            actor.marker,
            actor.pending,
            actor.overtaken,
            actor.origins,
        )
        with actor.lock:
            if actor.fresh and recorded.first is not None:
                actor.go_on_from(recorded.begin_of(recorded.first))
            order = InputOrder(recorded, actor.head.first_pending)
            for number in range(order.looked, actor.loaded):
                packed = actor.cached.get(number)
                order.look(None if packed is None else input_digest(packed))
            actor.order = order
            if actor.resumes is not None:
                self._resume(actor, actor.resumes, order)
            if actor.mail is not None:
                self._reserve(actor.mail, recorded)
            self.let_drained_go(actor, order)

    def _reserve(self, mail: ActiveMailbox, recorded: RecordedRuns) -> None:
        """Keep the signals for recorded runs that those have taken: runs before them may be executed anew."""
        codec = self._shared.codec
        for records in recorded.runs:
            mail.reserve([one.identity for one in taken_signals(codec, records) if one.identity is not None])

    def _resume(self, actor: KeyActor, waiting: QueuedInput, order: InputOrder) -> None:
        """Let a suspended run go on first, with what the store has of it besides."""
        journals = self._shared.journals
        assert journals is not None
        actor.resumes = None
        waiting.records = order.recorded.resume(waiting.seq)
        journals.left(actor.journal_id, actor.key_text, order.recorded)
        actor.next_seq = max(actor.next_seq, waiting.seq + 1)
        waiting.settled, waiting.ordered = not order.recorded, True
        actor.put(waiting, self._shared.observers)
        actor.pulled += 1

    def pull(self, actor: KeyActor) -> bool:
        """Choose one more input of those in memory; whether there is one in the queue."""
        if actor.order is None:
            return bool(actor.queue)
        with actor.lock:
            if not actor.queue and (chosen := self.choose(actor, actor.cached.get)) is not None:
                actor.pulled += 1
                self.uncached += 1
                actor.put(chosen, self._shared.observers)
            if not actor.queue:
                self.hold(actor)
            return bool(actor.queue)

    def _overdue(self, actor: KeyActor, since: float) -> None:
        """Wait no longer for the input of a recorded run: it did not come."""
        with actor.lock:
            if actor.held != since:
                return
            actor.overdue = True
            self._let_go(actor)
        self._shared.run_metrics.count("runs_reordered")
        if clock() - self._told >= TOLD_SECONDS:
            self._told = clock()
            _log.warning(
                "key %r, and maybe others: the input of a recorded run did not come within %g s "
                "(%s); others overtake it, and it gets what was recorded when it comes",
                decode_key(actor.key_text),
                self._seconds,
                AgentOptions.REORDER_TIMEOUT.key,
            )
        if not actor.running:
            self._begin(actor)

    # -- for any thread, which has the lock of the actor ---------------------------------

    def choose(self, actor: KeyActor, load: Callable[[int], bytes | None]) -> QueuedInput | None:
        """The input that runs next; None where all have to wait, or it cannot be loaded here."""
        order, journals = actor.order, self._shared.journals
        if not isinstance(order, InputOrder):
            return None
        assert journals is not None
        choice = order.next(actor.next_seq, not (actor.overdue or self.no_more_input))
        packed = None if choice is None else load(choice.number)
        if choice is None or packed is None:
            return None
        records = order.take(choice)
        journals.left(actor.journal_id, actor.key_text, order.recorded)
        actor.cached.pop(choice.number, None)
        actor.next_seq = max(actor.next_seq, choice.seq + 1)
        held = self._let_go(actor)
        # Of a wake-up, Flink's thread knows both.
        record, timestamp = read_input(self._shared.codec, packed)
        settled = not order.recorded
        self.let_drained_go(actor, order)
        return QueuedInput(
            record,
            timestamp,
            choice.number,
            packed,
            choice.seq,
            records=records,
            overtakes=choice.overtakes,
            settled=settled,
            ordered=True,
            state=held if held is not None and held.sequence_number == choice.seq else None,
        )

    def hold(self, actor: KeyActor) -> None:
        """Note that all inputs of a key wait for that of a recorded run, if it is so."""
        order = actor.order
        if actor.held is not None or actor.overdue or not isinstance(order, InputOrder):
            return
        if actor.parked <= 0 or order.looked < actor.head.next_pending:
            return
        if order.next(actor.next_seq, True) is not None:
            return
        self._shared.run_metrics.count("inputs_held_back")
        held = RunState(actor.key_text, actor.next_seq, self._shared.observers, Phase.INPUT, clock())
        actor.state = held
        self._held[actor] = None
        bridge = self._bridge
        bridge.hand(bridge.loop.call_later, self._seconds, self._overdue, actor, held.since)

    def _let_go(self, actor: KeyActor) -> RunState | None:
        """Hold inputs back no more; returns the state of the run that waited for its input, if one did."""
        self._held.pop(actor, None)
        if actor.held is None:
            return None
        held, actor.state = actor.state, None
        return held

    def let_drained_go(self, actor: KeyActor, order: InputOrder) -> None:
        """Let the inputs of a key run as they arrive, once no recorded run is left."""
        if order.drained:
            actor.order = None
            actor.cached.clear()
            actor.loaded = order.looked

    # -- for any thread ---------------------------------------------------------------

    def rest(self, actor: KeyActor) -> float | None:
        """How many seconds the inputs of a key may still wait for another one; None where they do not."""
        since = actor.held
        return None if since is None else max(0.0, since + self._seconds - clock())

    def end_of_input(self) -> None:
        """Let nobody wait any more."""
        self.no_more_input = True
        for actor in list(self._held):
            with actor.lock:
                self._let_go(actor)
            if not actor.running:
                self._begin(actor)

    def held_back(self) -> str:
        """Which keys hold inputs back, and for what, in words; empty where none does. For any thread."""
        told = [
            f"key {decode_key(actor.key_text)!r} holds {actor.parked} back, "
            f"for the input of {_awaited(actor.next_seq, actor.order.recorded.first)}"
            for actor in list(self._held)
            if isinstance(actor.order, InputOrder)
        ]
        if not told:
            return ""
        if len(told) > MAX_TOLD:
            told[MAX_TOLD:] = [f"and so do {len(told) - MAX_TOLD} more keys"]
        return (
            f"inputs wait for those of recorded runs: {'; '.join(told)}. Give those as well, or end the "
            f"input; {AgentOptions.REORDER_TIMEOUT.key}, {self._seconds:g} s, bounds the wait"
        )


def _awaited(next_seq: int, first: int | None) -> str:
    if first is not None and next_seq < first:
        return f"run {next_seq}, which recorded nothing"
    return f"recorded run {first}"
