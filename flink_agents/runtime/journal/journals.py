"""The journals of all keys of a subtask, and their store.

A key's head names the store of its runs, so a wrong store is found when such a key comes. If only other keys
come, nothing would show that journals were deleted, emptied or replaced, and recorded steps would be made
again. So the operator's state names the store as well. It is part of each checkpoint from the first one on,
and is compared when the store opens. Its size does not depend on the number of keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, origins_in
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import RecordsPrunedError, StoreMismatchError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentPlan
from flink_agents.runtime.journal.identity import journal_name
from flink_agents.runtime.journal.order import RecordedRuns
from flink_agents.runtime.journal.other_jobs import GroupedStore, Origin, OtherJobs, inherited
from flink_agents.runtime.journal.plans import Plans, SharedValues
from flink_agents.runtime.journal.records import portions
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import POSITION, Head
from flink_agents.runtime.state.slots import OperatorSlot

MAX_REPLAYED = 100_000
"""The most keys that are remembered as fully replayed. The records of other keys are read again."""

_JOB = "job"
_STORE = "store"

_log = bounded_logger("flink_agents.durable")


class KeyJournal(NamedTuple):
    """The journal of one key. Its actor holds it, so that it is looked up once.

    Attributes:
        store: The store that has the records: the job's own one, unless they may belong to a former job.
        key: The name of the journal, under which the store has the key's records.
    """

    store: ActionStateStore
    key: JournalKey


class RecentKeys:
    """The journals that were added last, up to a number. For any thread.

    Args:
        most: The most journals.

    Attributes:
        journals: The journals, oldest first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.journals: dict[JournalKey, None] = {}
        self._lock = threading.Lock()

    def add(self, journal: JournalKey) -> None:
        """Add a journal. If there are too many, the oldest is removed."""
        with self._lock:
            self.journals[journal] = None
            if len(self.journals) > self._most:
                del self.journals[next(iter(self.journals))]

    def discard(self, journal: JournalKey) -> None:
        """Remove a journal, if it is there."""
        with self._lock:
            self.journals.pop(journal, None)


class Journals:
    """The journals of all keys of a subtask.

    Args:
        make_store: Creates the store, and others like it for journals of jobs that this one succeeds.
        owner: The owner of the records.
        codec: Encodes records.
        plan: The agent's plan.
        config: Options of the job.
        job_id: Identity of the job.
        state: The operator's state, which names the store; None if the host has none.
        pruner: Removes records that no checkpoint needs; None if nothing is removed.
        on_call: Called with the ``ActionRun`` and the ``DurableCall`` of each call, before anything else; for
            debugging, or None.

    Attributes:
        store: The store of the job and of those that it succeeds.
        other_jobs: Decides on keys whose state another job has written.
        position: Returns the position of the job's store, for a comparison after a restore.
        is_named: True if state names the store. It does so as soon as the store has records.
        store_id: Id of the store, once it was opened. Timers fire after the end of an attempt, and may still
            read it.
        plan: Fingerprint of the agent's plan.
        values: Large results of calls, which the records of several runs share.
        on_call: Called with each durable call; for debugging, or None.
        pruner: Removes records that no checkpoint needs; None if nothing is removed.
    """

    def __init__(
        self,
        make_store: Callable[[], ActionStateStore],
        owner: Owner,
        codec: ValueCodec,
        plan: AgentPlan,
        config: Configuration,
        job_id: str,
        state: OperatorSlot | None,
        pruner: Pruner | None,
        on_call: Callable[[Any, Any], None] | None,
    ) -> None:
        # Almost all journals are the job's own. They use its store directly.
        self._own = make_store()
        self._group = owner.group
        self.store = GroupedStore(self._own, make_store)
        self.other_jobs = OtherJobs(config, job_id)
        self.position: Callable[[], bytes] = self._own.position
        self._identity = None if state is None else JournalIdentity(state, job_id, self.other_jobs)
        self.is_named = False
        self.store_id = ""
        self._copied: frozenset[str] = frozenset()
        self.codec = codec
        self._owner = owner
        self._agent = plan.name
        self._plans = Plans(self.store, plan, OnPlanChange(config.get(AgentOptions.ON_PLAN_CHANGE)))
        self.plan = plan.fingerprint
        self.values = SharedValues(self.store, codec)
        self._replayed = RecentKeys(MAX_REPLAYED)
        self._name = "", f"/{plan.name}"
        # Skipped runs of keys whose other runs were replayed.
        self._skipped: dict[JournalKey, RecordedRuns] = {}
        self.on_call = on_call
        self.pruner = pruner

    async def open(self) -> None:
        """Open the store, and check it against restored state. Earlier attempts cannot append then.

        Raises:
            StoreError: The store cannot be opened, or lacks records that a checkpoint has seen.
            StoreMismatchError: State belongs to another store.
        """
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
        """Name the store in state if it has records, so that checkpoints do. For Flink's task thread."""
        self.is_named = self._identity is None or self._identity.write(self._own)

    async def close(self) -> None:
        """Stop pruning, and close the store."""
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
        """Return the name of a key's journal. Each agent of a job has its own journals.

        Args:
            journal_id: Identity of the job that the key's runs belong to.
            key_text: The key.
        """
        last_id, name = self._name
        if last_id != journal_id:  # almost all keys share one text
            name = journal_name(journal_id, self._agent)
            self._name = journal_id, name
        return JournalKey(name, key_text)

    def of_key(self, journal_id: str, key_text: str) -> KeyJournal:
        """Return the journal of a key as :meth:`key` does, with the store that has it."""
        last_id, name = self._name
        if last_id != journal_id:
            name = self.key(journal_id, key_text).journal_id
        return KeyJournal(self._own if name == self._group else self.store, JournalKey(name, key_text))

    def may_have(self, head: Head, key_text: str, pending: bool) -> bool:
        """Return True if an earlier attempt may have recorded runs of a key. For any thread.

        Args:
            head: The key's head, which has the position before its records.
            key_text: The key.
            pending: True if inputs of it wait in state.
        """
        store, journal = self.of_key(head.journal_id, key_text)
        return journal not in self._replayed.journals and store.may_have(journal, head.marker, pending)

    async def recorded(
        self,
        journal: JournalKey,
        from_seq: int | None,
        marker: bytes | None,
        pending: bool,
        skipped: Collection[int] = (),
        origins: Sequence[Origin] = (),
    ) -> RecordedRuns:
        """Return the recorded runs of a key from number ``from_seq`` on, and the skipped ones.

        Args:
            journal: The journal of the key.
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
        # This attempt has read the journal before: only runs without their inputs are left of it.
        recorded_runs = self._skipped.get(journal)
        if recorded_runs is not None:
            for seq in recorded_runs.skipped - set(skipped):
                recorded_runs.give_up(seq)
            return recorded_runs
        # Before reading: the former owner must not append after we have read.
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
        self.note_unreplayed_runs(journal, runs)
        return runs

    async def _read(
        self,
        journal: JournalKey,
        from_seq: int | None,
        marker: bytes | None,
        pending: bool,
        skipped: Collection[int],
    ) -> list[Record] | None:
        """Return the records of a journal; None if the store has none. Arguments as of :meth:`recorded`."""
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
        """Copy the records of the first origin that has some into an empty journal, and return them.

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

    async def keeps_records(self, journal: JournalKey) -> bool:
        """Return True if the store has any record in a journal."""
        await self.store.rebuild(journal, None, True)
        return bool(await self.store.scan(journal))

    def note_unreplayed_runs(self, journal: JournalKey, runs: RecordedRuns) -> None:
        """Note the recorded runs of a key that are still to be replayed, if any. For any thread.

        Skipped runs stay in memory: their inputs may come when the key has no actor.
        """
        if runs and runs.first is None:
            self._skipped[journal] = runs
        elif not runs:
            self._skipped.pop(journal, None)
        # All awaited runs were taken. Skipped ones stay in memory.
        if runs.first is None:
            self._replayed.add(journal)

    def unmark_replayed(self, journal: JournalKey) -> None:
        """Note that runs of a key were chosen but not replayed. Their records are read again."""
        self._skipped.pop(journal, None)
        self._replayed.discard(journal)

    def committed(self, journal: JournalKey, through_seq: int, runs: int) -> None:
        """Note that only a restore can need the runs of a key up to ``through_seq``. For Flink's task thread.

        Args:
            journal: The journal of the key.
            through_seq: The last of them.
            runs: The number of runs with records that were committed since the last call for the key; 0 for
                the runs of the checkpoint that the job was restored from.
        """
        if self.pruner is None:
            return
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


class JournalIdentity:
    """Names the store in the operator's state, and compares it with the restored name.

    Args:
        state: The operator's state.
        job_id: Identity of the job.
        other_jobs: Decides whose journals this job continues.
    """

    def __init__(self, state: OperatorSlot, job_id: str, other_jobs: OtherJobs) -> None:
        self._state = state
        self._job_id = job_id
        self._other_jobs = other_jobs
        # Only Flink's task thread may read state, and the loop's thread compares.
        self._restored = dict(entries := list(state.items()))
        self._positions = {value for name, value in entries if name == POSITION}

    async def check(self, store: ActionStateStore, copied: Collection[str]) -> None:
        """Check that an open store has the journals that the restored state was written with.

        A fork has its own journals, and may have another store.

        Args:
            store: The store.
            copied: Ids of the stores whose journals were copied into it.

        Raises:
            StoreMismatchError: It is another store.
            StoreError: It lacks records that the restored checkpoint had seen.
        """
        restored = self._restored
        if _STORE not in restored or not self._other_jobs.continues(restored[_JOB].decode()):
            return
        store_id = restored[_STORE].decode()
        if store_id == store.store_id:
            for position in self._positions:
                await store.check_position(position)
        elif store_id not in copied:
            raise other_store(store_id, store.store_id)

    def write(self, store: ActionStateStore) -> bool:
        """Name an open store in state; return False if it has no records. For Flink's task thread."""
        position = store.position()
        if not position:
            return False
        self._state.put(_JOB, self._job_id.encode())
        self._state.put(_STORE, store.store_id.encode())
        self._state.put(POSITION, position)
        return True


def other_store(expected: str, present: str) -> StoreMismatchError:
    """Return the error about a store that is not the one with the journals of the state.

    Args:
        expected: Id of the store, from state.
        present: Id of the configured store, or a text if there is none.
    """
    return StoreMismatchError(
        "state belongs to another store of durable calls than the configured one",
        expected=f"the store with the id {expected}",
        found=present,
        fix="configure the store that the state was written with (action-state.store and its options), or "
        "restore its file or topic if it was deleted; copy its journals into this one (flink-agents journal "
        "copy); or start without that state",
    )
