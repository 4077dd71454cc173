"""Runs the inputs of a key in their recorded order, see ``journal.order``, and waits for those that are late.

:class:`Replays` chooses inputs. :class:`LateReplays` keeps the numbers of skipped runs in the head of their
key until their inputs come. Their records are not pruned until then. A run whose input never comes is given
up after a time, or if too many runs of a key wait.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.waits.active_mailbox import taken_signals
from flink_agents.runtime.journal.order import InputOrder, RecordedRuns
from flink_agents.runtime.journal.records import input_digest
from flink_agents.runtime.loop.actor import KeyActor, KeyRecovery, QueuedInput
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.pending import read_input

_log = bounded_logger("flink_agents.replays")

MAX_SHOWN = 5
"""The most keys with waiting inputs that an error lists."""

LOG_INTERVAL_SECONDS = 10.0
"""The interval between log lines about inputs that did not come."""

MAX_SKIPPED = 1000
"""The most skipped runs of a key that wait for their inputs."""


class Replays:
    """Chooses the next input of keys with recorded runs; see ``KeyRecovery``.

    Flink's task thread can read all inputs from state, and examines each once. The loop has some of them in
    memory, and chooses among those if Flink's task thread is busy.

    Args:
        shared: The agent's shared objects.
        bridge: Leads to the event loop.
        begin: Resumes the work of a key; only for the loop's thread.

    Attributes:
        no_more_input: True if the input has ended, so that nothing waits for it.
        uncached: The number of inputs that the loop has chosen, and so removed from memory.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge, begin: Callable[[KeyActor], None]) -> None:
        self._shared = shared
        self._bridge = bridge
        self._begin = begin
        self._seconds = shared.reorder_timeout.total_seconds()
        self._held: dict[KeyActor, KeyRecovery] = {}
        self._logged_at = -LOG_INTERVAL_SECONDS
        self.no_more_input = False
        self.uncached = 0

    # -- for the loop's thread --------------------------------------------------------

    async def read(self, actor: KeyActor, recovery: KeyRecovery) -> None:
        """Read the records of a key. From then on its inputs can be chosen.

        Raises:
            RecordsPrunedError: State is older than the records in the store.
        """
        journals = self._shared.journals
        assert journals is not None and actor.journal is not None
        # A fresh head does not know the numbers of an earlier attempt.
        from_seq = None if recovery.fresh else actor.next_seq
        recorded = await journals.recorded(
            actor.journal.key,
            from_seq,
            recovery.marker,
            recovery.pending,
            recovery.skipped,
            recovery.origins,
        )
        with recovery.lock:
            if recovery.fresh and recorded.first is not None:
                actor.continue_generation(recorded.begin_of(recorded.first))
            order = InputOrder(recorded, actor.head.first_pending)
            # Flink's task thread has loaded these inputs already, and will not examine them again.
            for number in range(order.looked, actor.loaded):
                packed = recovery.cached.get(number)
                order.examine_input(None if packed is None else input_digest(packed))
            recovery.order = order
            # The suspended run goes first, before any other input is chosen.
            if recovery.resumes is not None:
                self._resume(actor, recovery, recovery.resumes, order)
            # Before any run starts: it could take a signal that a later recorded run has taken.
            self._reserve(actor, recorded)
            self.end_if_drained(actor, recovery)

    def _reserve(self, actor: KeyActor, recorded: RecordedRuns) -> None:
        """Reserve signals for the recorded runs that took them: earlier runs may have to execute again."""
        codec = self._shared.codec
        for records in recorded.runs:
            identities = [signal.identity for signal in taken_signals(codec, records)]
            if identities:
                actor.open_mailbox().reserve([identity for identity in identities if identity is not None])

    def _resume(
        self, actor: KeyActor, recovery: KeyRecovery, waiting: QueuedInput, order: InputOrder
    ) -> None:
        """Put a suspended run first, with its records from the store."""
        journals = self._shared.journals
        assert journals is not None and actor.journal is not None
        recovery.resumes = None
        waiting.records = order.recorded.resume(waiting.seq)
        journals.note_unreplayed_runs(actor.journal.key, order.recorded)
        actor.next_seq = max(actor.next_seq, waiting.seq + 1)
        waiting.ends_replay = not order.recorded
        waiting.ordered = True
        actor.enqueue(waiting, self._shared.telemetry.observers)
        actor.pulled += 1

    def pull(self, actor: KeyActor) -> bool:
        """Choose one more input in memory; returns True if the inbox has one."""
        recovery = actor.recovery
        if recovery is None:
            return bool(actor.inbox)
        with recovery.lock:
            if not actor.inbox and (chosen := self.choose(actor, recovery.cached.get)) is not None:
                actor.pulled += 1
                self.uncached += 1
                actor.enqueue(chosen, self._shared.telemetry.observers)
            if not actor.inbox:
                self.hold(actor)
            return bool(actor.inbox)

    def _end_overdue_wait(self, actor: KeyActor, recovery: KeyRecovery, since: float) -> None:
        """Let other inputs run first: the recorded one did not come in time.

        Args:
            actor: The actor of the key.
            recovery: Its recorded runs.
            since: The time since which the input was awaited, which identifies this wait.
        """
        with recovery.lock:
            # The input has come meanwhile, or another run waits now.
            if actor.held != since:
                return
            recovery.overdue = True
            self._stop_holding(actor)
        self._shared.telemetry.run_metrics.count("runs_reordered")
        if clock() - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = clock()
            _log.warning(
                "key %r, and maybe others: the input of a recorded run did not come within %g s "
                "(%s); others run first, and it gets its records when it comes",
                decode_key(actor.key_text),
                self._seconds,
                AgentOptions.REORDER_TIMEOUT.key,
            )
        if not actor.running:
            self._begin(actor)

    # -- for any thread, which has the lock of the recovery ------------------------------

    def choose(self, actor: KeyActor, load: Callable[[int], bytes | None]) -> QueuedInput | None:
        """Return the input that runs next; None if all have to wait, or if it cannot be loaded here."""
        recovery = actor.recovery
        journals = self._shared.journals
        if recovery is None or recovery.order is None:
            return None
        assert journals is not None and actor.journal is not None
        order = recovery.order
        choice = order.next(actor.next_seq, not (recovery.overdue or self.no_more_input))
        packed = None if choice is None else load(choice.number)
        if choice is None or packed is None:
            return None
        records = order.start_run(choice)
        journals.note_unreplayed_runs(actor.journal.key, order.recorded)
        recovery.cached.pop(choice.number, None)
        # A skipped run that comes late has a number below the next one, which stays.
        actor.next_seq = max(actor.next_seq, choice.seq + 1)
        # The wait for this input is over, so its timer has no effect.
        held = self._stop_holding(actor)
        # For a wake-up, Flink's task thread replaces both.
        record, timestamp = read_input(self._shared.codec, packed)
        ends_replay = not order.recorded
        self.end_if_drained(actor, recovery)
        return QueuedInput(
            record,
            timestamp,
            choice.number,
            packed,
            choice.seq,
            records=records,
            skips=choice.skips,
            ends_replay=ends_replay,
            ordered=True,
            state=held if held is not None and held.sequence_number == choice.seq else None,
        )

    def hold(self, actor: KeyActor) -> None:
        """If all inputs of a key wait for that of a recorded run, start the timeout."""
        recovery = actor.recovery
        if recovery is None or recovery.order is None or actor.held is not None or recovery.overdue:
            return
        order = recovery.order
        # Not all inputs were examined, so the right one may be among them.
        if actor.backlog <= 0 or order.looked < actor.head.next_pending:
            return
        if order.next(actor.next_seq, True) is not None:
            return
        self._shared.telemetry.run_metrics.count("inputs_held_back")
        held = RunState(
            actor.key_text, actor.next_seq, self._shared.telemetry.observers, Phase.INPUT, clock()
        )
        # Before the timer: it has no effect unless this state still waits.
        actor.state = held
        self._held[actor] = recovery
        bridge = self._bridge
        bridge.hand(
            bridge.loop.call_later, self._seconds, self._end_overdue_wait, actor, recovery, held.since
        )

    def _stop_holding(self, actor: KeyActor) -> RunState | None:
        """Stop holding inputs back. Returns the state of the run that waited for its input, if one did."""
        self._held.pop(actor, None)
        if actor.held is None:
            return None
        held = actor.state
        actor.state = None
        return held

    def end_if_drained(self, actor: KeyActor, recovery: KeyRecovery) -> None:
        """Let the inputs of a key run as they arrive, if no recorded run is left."""
        order = recovery.order
        if order is not None and order.drained:
            # Before the recovery ends: from then on, Flink's task thread feeds from here, without the lock.
            actor.loaded = order.looked
            # Inputs that were only cached are read from state again.
            recovery.cached.clear()
            actor.recovery = None

    # -- for any thread ---------------------------------------------------------------

    def end_of_input(self) -> None:
        """Let all inputs that wait for those of recorded runs start: no further input comes."""
        # First: a key that would hold inputs from now on chooses another one.
        self.no_more_input = True
        for actor, recovery in list(self._held.items()):
            with recovery.lock:
                self._stop_holding(actor)
            if not actor.running:
                self._begin(actor)

    def held_back(self) -> str:
        """Return the keys that hold inputs back and the reasons, as text; empty if none does.

        For any thread.
        """
        held = list(self._held.items())
        shown = [_describe(actor, recovery.order) for actor, recovery in held if recovery.order is not None]
        if not shown:
            return ""
        if len(shown) > MAX_SHOWN:
            shown[MAX_SHOWN:] = [f"and so do {len(shown) - MAX_SHOWN} more keys"]
        return (
            f"inputs wait for those of recorded runs: {'; '.join(shown)}. Give those as well, or end the "
            f"input; {AgentOptions.REORDER_TIMEOUT.key}, {self._seconds:g} s, bounds the wait"
        )


def _describe(actor: KeyActor, order: InputOrder) -> str:
    """Return key, held inputs and the run whose input is awaited, as text."""
    awaited = _awaited(actor.next_seq, order.recorded.first)
    return f"key {decode_key(actor.key_text)!r} holds {actor.backlog} back, for the input of {awaited}"


def _awaited(next_seq: int, first: int | None) -> str:
    """Return the run whose input is awaited, as text.

    Args:
        next_seq: The next sequence number of the key.
        first: The number of its first recorded run, or None.
    """
    if first is not None and next_seq < first:
        return f"run {next_seq}, which recorded nothing"
    return f"recorded run {first}"


class LateReplays:
    """Tracks recorded runs whose inputs did not come in time, and gives them up. For Flink's task thread.

    Args:
        shared: The agent's shared objects.
        clock: Returns the wall-clock time in milliseconds.
    """

    def __init__(self, shared: RunEnvironment, clock: Callable[[], int]) -> None:
        self._metrics = shared.telemetry.run_metrics
        self._clock = clock
        timeout = shared.config.get(AgentOptions.LATE_INPUT_TIMEOUT)
        self._seconds = timeout.total_seconds()
        # Time before the start does not count: no input could come.
        self._began = clock() // 1000

    def give_up_late(self, head: Head, key_text: str) -> None:
        """Give up runs that have waited for too long, of a key that has no actor."""
        skipped = head.skipped
        given_up = [seq for seq in skipped if self._is_late(skipped, seq)]
        self._give_up(head, key_text, skipped, given_up)

    def note_skipped(self, actor: KeyActor, seq: int, skips: tuple[int, ...]) -> None:
        """Note that run ``seq`` was committed before others that were recorded earlier.

        Args:
            actor: The actor of the key.
            seq: Its sequence number.
            skips: The runs that are skipped from this run on.
        """
        head = actor.head
        now = self._clock() // 1000
        skipped = {**head.skipped, **dict.fromkeys(skips, now)}
        # This run was skipped before, and its input has come.
        skipped.pop(seq, None)
        head.skipped = skipped
        self._metrics.group.get_counter("runs_replayed_late").inc(len(skips))
        oldest = next(iter(skipped), None)
        if oldest is None or not (len(skipped) > MAX_SKIPPED or self._is_late(skipped, oldest)):
            return
        # The oldest ones go first.
        surplus = len(skipped) - MAX_SKIPPED
        given_up = [
            late
            for number, late in enumerate(skipped)
            if (number < surplus or self._is_late(skipped, late)) and _forget(actor, late)
        ]
        self._give_up(head, actor.key_text, skipped, given_up)

    def _is_late(self, skipped: dict[int, int], seq: int) -> bool:
        """Return True if a skipped run has waited for its input longer than ``LATE_INPUT_TIMEOUT``."""
        return self._clock() // 1000 - max(skipped[seq], self._began) > self._seconds

    def _give_up(self, head: Head, key_text: str, skipped: dict[int, int], given_up: list[int]) -> None:
        """Forget skipped runs: their records may be pruned, and their inputs count as new ones."""
        if not given_up:
            return
        head.skipped = {seq: at for seq, at in skipped.items() if seq not in set(given_up)}
        self._metrics.group.get_counter("runs_abandoned").inc(len(given_up))
        _log.warning(
            "key %r: the inputs of %d recorded runs, such as %d, did not come again, and are waited for no "
            "longer (%s, or more than %d of a key). If one comes, its calls are made again",
            decode_key(key_text),
            len(given_up),
            given_up[0],
            AgentOptions.LATE_INPUT_TIMEOUT.key,
            MAX_SKIPPED,
        )


def _forget(actor: KeyActor, seq: int) -> bool:
    """Drop a recorded run; returns False if its input has come."""
    recovery = actor.recovery
    if recovery is None:
        return False
    with recovery.lock:
        return recovery.order is not None and recovery.order.recorded.give_up(seq)
