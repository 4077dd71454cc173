"""The journals of all keys of a subtask, and the store behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, origins_in
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError
from flink_agents.plan import AgentPlan
from flink_agents.runtime.journal.calls import Call
from flink_agents.runtime.journal.grouped import GroupedStore
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.journal.order import RecordedRuns
from flink_agents.runtime.journal.other_jobs import Origin, inherited
from flink_agents.runtime.journal.plans import Plans
from flink_agents.runtime.journal.portions import portions
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.retention.remembered import Recent
from flink_agents.runtime.retention.shared_values import SharedValues
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head

MAX_SETTLED = 100_000
"""Of how many keys it is known that nothing recorded is left to be run. Of others, the store is asked."""

_log = bounded_logger("flink_agents.durable")


class KeyJournal(NamedTuple):
    """Where the records of one key are. Its actor keeps it, so that nobody looks it up again.

    Attributes:
        store: The store that has them: the own one, unless they may belong to a former job.
        key: The journal in it.
    """

    store: ActionStateStore
    key: JournalKey


class Journals:
    """Gives the journals of all keys of a subtask.

    Args:
        store: The store; not open yet.
        owner: Who appends.
        codec: Encodes records.
        plan: The agent's plan.
        on_plan_change: What happens where another plan recorded a run.
        make: Makes further stores like ``store``, for journals of jobs that this one succeeds.
        pruner: Removes records that no checkpoint can ask for; None where nothing does.
        on_call: Told of each durable call, by its ``ActionRun``, before anything else happens; for
            debugging, or None.

    Attributes:
        store_id: Id of the store, once it was opened. Timers fire after the end of an attempt, and
            may still ask for it.
        plan: Fingerprint of the agent's plan.
        values: What many runs have in common.
        on_call: See above.
        pruner: See above.
    """

    def __init__(
        self,
        store: ActionStateStore,
        owner: Owner,
        codec: ValueCodec,
        plan: AgentPlan,
        on_plan_change: OnPlanChange = OnPlanChange.CONTINUE_COMPATIBLE,
        make: Callable[[], ActionStateStore] | None = None,
        pruner: Pruner | None = None,
        on_call: Callable[[Any, Call], None] | None = None,
    ) -> None:
        # Almost all journals are the job's own: they go to its store without a detour.
        self._own, self._group = store, owner.group
        self.store = store = store if make is None else GroupedStore(store, make)
        self.store_id = ""
        self._copied: frozenset[str] = frozenset()
        self.codec = codec
        self._owner = owner
        self._agent = plan.name
        self._plans = Plans(store, plan, on_plan_change)
        self.plan = plan.fingerprint
        self.values = SharedValues(store, codec)
        self._settled: Recent[JournalKey] = Recent(MAX_SETTLED)
        self._name = "", f"/{plan.name}"
        # Overtaken runs of keys whose other runs are settled.
        self._kept: dict[JournalKey, RecordedRuns] = {}
        self.on_call = on_call
        self.pruner = pruner

    async def open(self) -> None:
        """Open the store; from then on no other attempt of the subtask can append."""
        await self.store.open(self._owner)
        self.store_id = self.store.store_id
        plans = await self.store.plans()
        self._copied = origins_in(plans)
        self.values.open(plans)
        await self._plans.remember()
        if self.pruner is not None:
            self.pruner.open(self.store)

    async def close(self) -> None:
        """Close the store."""
        if self.pruner is not None:
            await self.pruner.close()
        await self.store.close()

    def adopt(self, head: Head) -> None:
        """Let a key whose runs were recorded in a copied store continue with the copy.

        Positions in the other store mean nothing here, so all records of the key are read. If the first run
        of a key is in flight, its head does not say which store its position belongs to.
        """
        if head.store in self._copied or (self._copied and head.store is None):
            head.move(self.store_id)

    def key(self, journal_id: str, key_text: str) -> JournalKey:
        """The journal of a key. Agents of one job have journals of their own."""
        known, name = self._name
        if known != journal_id:  # almost all keys share one text
            name = journal_name(journal_id, self._agent)
            self._name = journal_id, name
        return JournalKey(name, key_text)

    def of_key(self, journal_id: str, key_text: str) -> KeyJournal:
        """The journal of a key, with the store that has it."""
        known, name = self._name
        if known != journal_id:
            name = self.key(journal_id, key_text).journal_id
        return KeyJournal(self._own if name == self._group else self.store, JournalKey(name, key_text))

    def may_have(self, journal_id: str, key_text: str, marker: bytes | None, pending: bool) -> bool:
        """Whether runs of the key may have been recorded by an earlier attempt. For any thread.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            marker: Where its records can lie, as state says; None where it does not.
            pending: Whether inputs of it wait in state.
        """
        store, journal = self.of_key(journal_id, key_text)
        return journal not in self._settled.things and store.may_have(journal, marker, pending)

    def marker(self, journal_id: str, key_text: str) -> bytes:
        """Before what is recorded of the key from now on. For any thread."""
        store, journal = self.of_key(journal_id, key_text)
        return store.recovery_marker(journal)

    async def recorded(
        self,
        journal_id: str,
        key_text: str,
        from_seq: int | None,
        marker: bytes | None,
        pending: bool,
        overtaken: Collection[int] = (),
        origins: Sequence[Origin] = (),
    ) -> RecordedRuns:
        """The recorded runs of the key from number ``from_seq`` on, and those that were overtaken.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            from_seq: The first number; None for all that the store has of the key.
            marker: Where its records can lie, as state says; None where it does not.
            pending: Whether inputs of it wait in state.
            overtaken: Numbers of those that were overtaken.
            origins: Jobs that this one is a fork of, if they may have recorded something for those inputs.

        Raises:
            RecordsPrunedError: They were pruned: state is older than what the store keeps.
            PlanChangedError: They are of another plan, and the policy is to refuse.
            JobIdentifierInUseError: They belong to a job that lives.
        """
        journal = self.key(journal_id, key_text)
        kept = self._kept.get(journal)
        if kept is not None:
            for seq in kept.overtaken - set(overtaken):
                kept.give_up(seq)
            return kept
        if isinstance(self.store, GroupedStore):
            await self.store.claim(journal.journal_id)
        await self.store.rebuild(journal, marker, pending)
        records: list[Record] = []
        if self.store.may_have(journal, marker, pending):
            for seq in sorted(overtaken):
                records += await self.store.read(journal, seq)
            records += await self.store.scan(journal, from_seq)
        elif not origins:
            return RecordedRuns(self.codec, ())
        if not records:
            records = await self._inherit(journal, from_seq, origins)
        runs = RecordedRuns(self.codec, records, overtaken)
        for fingerprint in runs.plans:
            await self._plans.check(fingerprint)
        self.left(journal_id, key_text, runs)
        return runs

    async def _inherit(
        self, journal: JournalKey, from_seq: int | None, origins: Sequence[Origin]
    ) -> list[Record]:
        """Copy into an empty journal what one of its origins recorded, and return it.

        All at once, where a store takes it so: what the origin records from now on concerns nobody here,
        and as soon as the journal has a record, nobody looks at the origin again.
        """
        for origin in origins:
            source = self.key(origin.journal_id, journal.key)
            try:
                await self.store.rebuild(source, origin.marker, True)
                found = inherited(self.codec, await self.store.scan(source, from_seq), origin)
            except (RecordsPrunedError, StoreMismatchError) as error:
                _log.warning(
                    "inputs that were in flight begin anew: of what job %s recorded for them, "
                    "nothing is left here: %s",
                    origin.journal_id,
                    error.message,
                )
                return []
            if found:
                for portion in portions(found, self.store.max_record_bytes):
                    await self.store.append(journal, portion)
                return found
        return []

    async def keeps_records(self, journal_id: str, key_text: str) -> bool:
        """Whether the store has records of the key, of whatever attempt."""
        journal = self.key(journal_id, key_text)
        await self.store.rebuild(journal, None, True)
        return bool(await self.store.scan(journal))

    def left(self, journal_id: str, key_text: str, runs: RecordedRuns) -> None:
        """Note which runs of a key are left to be run, after some were. For any thread.

        Those that were overtaken are kept: their inputs may come when nobody has them in memory.
        """
        journal = self.key(journal_id, key_text)
        if runs and runs.first is None:
            self._kept[journal] = runs
        elif not runs:
            self._kept.pop(journal, None)
        if runs.first is None:
            self.settle(journal_id, key_text)

    def settle(self, journal_id: str, key_text: str) -> None:
        """Note that nothing which an earlier attempt recorded for the key is left to be run."""
        self._settled.add(self.key(journal_id, key_text))

    def unsettle(self, journal_id: str, key_text: str) -> None:
        """Note that runs of a key which were chosen are not run: what is recorded of them is read again."""
        journal = self.key(journal_id, key_text)
        self._kept.pop(journal, None)
        self._settled.discard(journal)

    def committed(self, journal_id: str, key_text: str, through_seq: int, runs: int) -> None:
        """Note that only a restore can ask for the runs of a key up to ``through_seq``. For Flink's thread.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            through_seq: The last of them.
            runs: How many of them with records were committed since this was last called for the key;
                0 where they are those of the checkpoint that the job was restored from.
        """
        if self.pruner is None:
            return
        journal = self.key(journal_id, key_text)
        if runs:
            self.pruner.committed(journal, through_seq, runs)
        else:
            self.pruner.restored(journal, through_seq)


def check_store(journals: Journals | None, store_id: str) -> None:
    """Check that the runs of a key were recorded in the store at hand.

    Args:
        journals: What is at hand; None where there is no store.
        store_id: Id of the store that state names.

    Raises:
        StoreMismatchError: They were not: what they did would be done again.
    """
    found = journals.store_id if journals is not None else "no store"
    if found != store_id:
        raise StoreMismatchError(
            "state belongs to another store of durable calls than the one at hand",
            expected=f"the store with the id {store_id}",
            found=found,
            fix="configure the store that the state was written with (action-state.store and its options), "
            "copy its journals into this one (flink-agents journal copy), or start without that state",
        )
