"""The journals of all keys of a subtask, and their store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, origins_in
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError
from flink_agents.plan import AgentPlan
from flink_agents.runtime.journal.grouped import GroupedStore
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.journal.order import RecordedRuns
from flink_agents.runtime.journal.other_jobs import JournalIdentity, Origin, inherited, other_store
from flink_agents.runtime.journal.plans import Plans
from flink_agents.runtime.journal.records import portions
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.retention.remembered import Recent
from flink_agents.runtime.retention.shared_values import SharedValues
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head

MAX_REPLAYED = 100_000
"""The most keys that are remembered as fully replayed. Other keys are read from the store."""

_log = bounded_logger("flink_agents.durable")


class KeyJournal(NamedTuple):
    """The journal of one key. Its actor holds it, so that it is looked up once.

    Attributes:
        store: The store that has the records: the job's own one, unless they may belong to a former job.
        key: The journal in it.
    """

    store: ActionStateStore
    key: JournalKey


class Journals:
    """The journals of all keys of a subtask.

    Args:
        store: The store; not open yet.
        owner: The owner of the records.
        codec: Encodes records.
        plan: The agent's plan.
        on_plan_change: The policy if another plan recorded a run.
        make: Creates further stores like ``store``, for journals of jobs that this one succeeds.
        pruner: Removes records that no checkpoint needs; None if nothing is removed.
        on_call: Called with the ``ActionRun`` and the ``DurableCall`` of each call, before anything else; for
            debugging, or None.
        identity: Compares the store with the restored state; None if the host has no state for it.

    Attributes:
        position: Returns the position of the store.
        is_named: False as long as state does not name the store, because it has nothing to lose.
        store_id: Id of the store, once it was opened. Timers fire after the end of an attempt, and may still
            read it.
        plan: Fingerprint of the agent's plan.
        values: Values that many runs share.
        on_call: Called with each durable call; for debugging, or None.
        pruner: Removes records that no checkpoint needs; None if nothing is removed.
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
        on_call: Callable[[Any, Any], None] | None = None,
        identity: JournalIdentity | None = None,
    ) -> None:
        # Almost all journals are the job's own. They use its store directly.
        self._own = store
        self._group = owner.group
        self.store = store = store if make is None else GroupedStore(store, make)
        self.position: Callable[[], bytes] = self._own.position
        self._identity = identity
        self.is_named = False
        self.store_id = ""
        self._copied: frozenset[str] = frozenset()
        self.codec = codec
        self._owner = owner
        self._agent = plan.name
        self._plans = Plans(store, plan, on_plan_change)
        self.plan = plan.fingerprint
        self.values = SharedValues(store, codec)
        self._replayed: Recent[JournalKey] = Recent(MAX_REPLAYED)
        self._name = "", f"/{plan.name}"
        # Skipped runs of keys whose other runs were replayed.
        self._skipped: dict[JournalKey, RecordedRuns] = {}
        self.on_call = on_call
        self.pruner = pruner

    async def open(self) -> None:
        """Open the store. From then on no other attempt of the subtask can append."""
        # First: from here on, an older attempt can no longer append.
        await self.store.open(self._owner)
        self.store_id = self.store.store_id
        plans = await self.store.plans()
        self._copied = origins_in(plans)
        if self._identity is not None:
            await self._identity.check(self._own, self._copied)
        self.values.open(plans)
        await self._plans.remember()
        if self.pruner is not None:
            self.pruner.open(self.store)

    def name_store(self) -> None:
        """Name the store in state, so that each checkpoint has its identity. For Flink's task thread."""
        self.is_named = self._identity is None or self._identity.write(self._own)

    async def close(self) -> None:
        """Close the store."""
        if self.pruner is not None:
            await self.pruner.close()
        await self.store.close()

    def adopt(self, head: Head) -> None:
        """Let a key whose runs were recorded in a copied store continue with the copy.

        Positions in the original store mean nothing here, so all records of the key are read. If the first
        run of a key is in flight, its head does not name the store of its position.
        """
        if head.store in self._copied or (self._copied and head.store is None):
            head.move(self.store_id)

    def key(self, journal_id: str, key_text: str) -> JournalKey:
        """Return the journal key of a key. Each agent of a job has its own journals."""
        last_id, name = self._name
        if last_id != journal_id:  # almost all keys share one text
            name = journal_name(journal_id, self._agent)
            self._name = journal_id, name
        return JournalKey(name, key_text)

    def of_key(self, journal_id: str, key_text: str) -> KeyJournal:
        """Return the journal of a key, with the store that has it."""
        last_id, name = self._name
        if last_id != journal_id:
            name = self.key(journal_id, key_text).journal_id
        return KeyJournal(self._own if name == self._group else self.store, JournalKey(name, key_text))

    def may_have(self, journal_id: str, key_text: str, marker: bytes | None, pending: bool) -> bool:
        """Return True if an earlier attempt may have recorded runs of the key. For any thread.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            marker: The position before its records, from state; None if state has none.
            pending: True if inputs of it wait in state.
        """
        store, journal = self.of_key(journal_id, key_text)
        return journal not in self._replayed.things and store.may_have(journal, marker, pending)

    async def recorded(
        self,
        journal_id: str,
        key_text: str,
        from_seq: int | None,
        marker: bytes | None,
        pending: bool,
        skipped: Collection[int] = (),
        origins: Sequence[Origin] = (),
    ) -> RecordedRuns:
        """Return the recorded runs of a key from number ``from_seq`` on, and the skipped ones.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            from_seq: The first number; None for all that the store has of the key.
            marker: The position before its records, from state; None if state has none.
            pending: True if inputs of it wait in state.
            skipped: Numbers of the runs that were skipped, because their inputs did not come in time.
            origins: Jobs that this one is a fork of, if they may have recorded something for those inputs.

        Raises:
            RecordsPrunedError: They were pruned: state is older than the records in the store.
            PlanChangedError: They are of another plan, and the policy is to fail.
            JobIdentifierInUseError: They belong to a job that is running.
        """
        journal = self.key(journal_id, key_text)
        # This attempt has read the journal before: only runs without their inputs are left of it.
        recorded_runs = self._skipped.get(journal)
        if recorded_runs is not None:
            for seq in recorded_runs.skipped - set(skipped):
                recorded_runs.give_up(seq)
            return recorded_runs
        # Before reading: the former owner must not append after we have read.
        if isinstance(self.store, GroupedStore):
            await self.store.claim(journal.journal_id)
        records = await self._read(journal, from_seq, marker, pending, skipped)
        if records is None and not origins:
            return RecordedRuns(self.codec, ())
        # Only an empty journal inherits. Otherwise this fork has started already.
        if not records:
            records = await self._inherit(journal, from_seq, origins)
        runs = RecordedRuns(self.codec, records, skipped)
        # Before any run is replayed with the wrong plan.
        for fingerprint in runs.plans:
            await self._plans.check(fingerprint)
        self.left(journal_id, key_text, runs)
        return runs

    async def _read(
        self,
        journal: JournalKey,
        from_seq: int | None,
        marker: bytes | None,
        pending: bool,
        skipped: Collection[int],
    ) -> list[Record] | None:
        """Return the records of a journal; None if the store has none. The arguments are as above."""
        # `may_have` is exact only after the store has read the records from the marker on.
        await self.store.rebuild(journal, marker, pending)
        if not self.store.may_have(journal, marker, pending):
            return None
        records: list[Record] = []
        # Skipped runs are before `from_seq`, so the scan would miss them.
        for seq in sorted(skipped):
            records += await self.store.read(journal, seq)
        return records + list(await self.store.scan(journal, from_seq))

    async def _inherit(
        self, journal: JournalKey, from_seq: int | None, origins: Sequence[Origin]
    ) -> list[Record]:
        """Copy the records of one of its origins into an empty journal, and return them.

        The copy is one append if the store allows that. Later records of the origin do not matter here: once
        the journal has a record, the origin is never read again.
        """
        for origin in origins:
            source = self.key(origin.journal_id, journal.key)
            try:
                await self.store.rebuild(source, origin.marker, True)
                inherited_records = inherited(self.codec, await self.store.scan(source, from_seq), origin)
            except (RecordsPrunedError, StoreMismatchError) as error:
                _log.warning(
                    "inputs that were in flight start again, because the records of job %s for them are "
                    "not available here: %s",
                    origin.journal_id,
                    error.message,
                )
                return []
            if inherited_records:
                for portion in portions(inherited_records, self.store.max_record_bytes):
                    await self.store.append(journal, portion)
                return inherited_records
        return []

    async def keeps_records(self, journal_id: str, key_text: str) -> bool:
        """Return True if the store has records of the key, of any attempt."""
        journal = self.key(journal_id, key_text)
        await self.store.rebuild(journal, None, True)
        return bool(await self.store.scan(journal))

    def left(self, journal_id: str, key_text: str, runs: RecordedRuns) -> None:
        """Note which recorded runs of a key are still to be replayed. For any thread.

        Skipped runs stay in memory: their inputs may come when the key has no actor.
        """
        journal = self.key(journal_id, key_text)
        if runs and runs.first is None:
            self._skipped[journal] = runs
        elif not runs:
            self._skipped.pop(journal, None)
        # All awaited runs were taken. Skipped ones stay in memory.
        if runs.first is None:
            self.mark_replayed(journal_id, key_text)

    def mark_replayed(self, journal_id: str, key_text: str) -> None:
        """Note that all recorded runs of the key were replayed."""
        self._replayed.add(self.key(journal_id, key_text))

    def unmark_replayed(self, journal_id: str, key_text: str) -> None:
        """Note that runs of a key were chosen but not replayed. Their records are read again."""
        journal = self.key(journal_id, key_text)
        self._skipped.pop(journal, None)
        self._replayed.discard(journal)

    def committed(self, journal_id: str, key_text: str, through_seq: int, runs: int) -> None:
        """Note that only a restore can need the runs of a key up to ``through_seq``. For Flink's task thread.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
            through_seq: The last of them.
            runs: The number of runs with records that were committed since the last call for the key; 0 for
                the runs of the checkpoint that the job was restored from.
        """
        if self.pruner is None:
            return
        journal = self.key(journal_id, key_text)
        if runs:
            self.pruner.committed(journal, through_seq, runs)
        else:
            self.pruner.restored(journal, through_seq)


def check_store(journals: Journals | None, store_id: str) -> None:
    """Check that the runs of a key were recorded in the present store.

    Args:
        journals: The present journals; None if there is no store.
        store_id: Id of the store, from state.

    Raises:
        StoreMismatchError: They were not, so their effects would be repeated.
    """
    actual_store = journals.store_id if journals is not None else "no store"
    if actual_store != store_id:
        raise other_store(store_id, actual_store)
