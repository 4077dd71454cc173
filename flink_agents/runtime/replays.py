"""Lets the inputs of a key run in the order that was recorded; see ``journal.order``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.options import AgentOptions
from flink_agents.runtime.actor import KeyActor, Unread, Waiting
from flink_agents.runtime.journal.canonical import digest_of_bytes
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.journal.order import RecordedRuns
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.keys import decode_key
from flink_agents.runtime.memory import MemoryTree
from flink_agents.runtime.run import Run
from flink_agents.runtime.shared import RunEnvironment

MAX_DEBUG_BYTES = 64 * 1024
"""The most bytes of an input, and of memory, that a run's header keeps for debugging."""

MAX_TOLD = 5
"""Of how many keys an error tells that they hold inputs back."""


class Replays:
    """Chooses what actors with recorded runs run next. Only for the thread of the agent loop.

    Args:
        shared: What all runs share.
        loop: The agent loop.
        begin: Lets an actor go on.
    """

    def __init__(
        self, shared: RunEnvironment, loop: asyncio.AbstractEventLoop, begin: Callable[[KeyActor], None]
    ) -> None:
        self._shared = shared
        self._loop = loop
        self._begin = begin
        self._seconds: float = shared.config.get(AgentOptions.REORDER_TIMEOUT).total_seconds()
        self._held: dict[KeyActor, asyncio.TimerHandle] = {}
        self._no_more_input = False

    async def choose(
        self, actor: KeyActor, recorded: RecordedRuns | Unread
    ) -> tuple[Waiting, list[Record]] | None:
        """The input that runs next, with what was recorded of it; None where all have to wait.

        Raises:
            RecordsPrunedError: State is older than what the store keeps.
        """
        journals = self._shared.journals
        assert journals is not None
        if isinstance(recorded, Unread):
            recorded = await journals.recorded(
                actor.journal_id, actor.key_text, actor.next_seq, actor.marker, actor.pending, actor.origins
            )
            actor.recorded = recorded
        at_hand = [actor.queue[position] for position in range(len(actor.queue))]
        for waiting in at_hand:
            if waiting.digest is None and recorded:
                waiting.digest = digest_of_bytes(waiting.packed)
        may_wait = not (actor.overdue or self._no_more_input)
        chosen = recorded.choose([waiting.digest or b"" for waiting in at_hand], actor.next_seq, may_wait)
        if chosen is None:
            self._hold(actor)
            return None
        self._let_go(actor)
        position, seq = chosen
        records = recorded.take(seq)
        if not recorded:
            actor.recorded = None
            journals.settle(actor.journal_id, actor.key_text)
        del actor.queue[position]
        actor.seq = seq
        return at_hand[position], records

    def attach(self, run: Run, waiting: Waiting, records: list[Record]) -> None:
        """Give a run its journal, and the time at which it was recorded to begin.

        Args:
            run: The run.
            waiting: Its input.
            records: What was recorded of the run.
        """
        journals = self._shared.journals
        if journals is None:
            return
        if records and records[0].kind is RecordKind.RUN:
            run.started_at = RunHeader.unpack(journals.codec, records[0].data).started_at
        # Without the run, which has the journal: each run would be left to the collector of cycles.
        header = partial(_header, journals, run.started_at, run.short_term, waiting.packed, waiting.digest)
        run.journal = journals.of_run(run.journal_id, run.key_text, run.sequence_number, header, records)

    def ended(self, actor: KeyActor, run: Run) -> None:
        """Note where later runs of the key can have records: behind what ``run`` recorded."""
        journals = self._shared.journals
        if journals is not None and run.journal is not None and run.journal.begun and actor.recorded is None:
            run.journal.end = journals.marker(actor.journal_id, actor.key_text)

    def end_of_input(self) -> None:
        """Let nobody wait any more."""
        self._no_more_input = True
        for actor in list(self._held):
            self._go_on(actor)

    @property
    def held(self) -> int:
        """How many inputs wait for those of recorded runs. For any thread."""
        return sum(len(actor.queue) for actor in list(self._held))

    def held_back(self) -> str:
        """Which keys hold inputs back, and for what, in words; empty where none does. For any thread."""
        told = [
            f"key {decode_key(actor.key_text)!r} holds {len(actor.queue) + actor.parked} back, "
            f"for the input of {_awaited(actor.next_seq, actor.recorded.first)}"
            for actor in list(self._held)
            if isinstance(actor.recorded, RecordedRuns)
        ]
        if not told:
            return ""
        if len(told) > MAX_TOLD:
            told[MAX_TOLD:] = [f"and so do {len(told) - MAX_TOLD} more keys"]
        return (
            f"inputs wait for those of recorded runs: {'; '.join(told)}. Give those as well, or end the "
            f"input; {AgentOptions.REORDER_TIMEOUT.key}, {self._seconds:g} s, bounds the wait"
        )

    def _hold(self, actor: KeyActor) -> None:
        if actor not in self._held:
            self._shared.run_metrics.count("inputs_held_back")
            actor.held = True
            self._held[actor] = self._loop.call_later(self._seconds, self._overdue, actor)

    def _overdue(self, actor: KeyActor) -> None:
        """Wait no longer for the input of a recorded run: it did not come."""
        actor.overdue = True
        self._shared.run_metrics.count("runs_reordered")
        self._go_on(actor)

    def _go_on(self, actor: KeyActor) -> None:
        self._let_go(actor)
        if not actor.running and actor.queue:
            self._begin(actor)

    def _let_go(self, actor: KeyActor) -> None:
        actor.held = False
        timer = self._held.pop(actor, None)
        if timer is not None:
            timer.cancel()


def _awaited(next_seq: int, first: int | None) -> str:
    if first is not None and next_seq < first:
        return f"run {next_seq}, which recorded nothing"
    return f"recorded run {first}"


def _header(
    journals: Journals, started_at: int, short_term: MemoryTree, packed: bytes, digest: bytes | None
) -> RunHeader:
    memory = short_term.nodes()
    return RunHeader(
        digest or digest_of_bytes(packed),
        started_at,
        journals.plan,
        packed if len(packed) <= MAX_DEBUG_BYTES else None,
        memory if sum(map(len, memory.values())) <= MAX_DEBUG_BYTES else None,
    )
