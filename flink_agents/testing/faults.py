"""A store that fails at chosen appends: before or after the records are stored.

    faults = Faults(at_append(2, Fault.UNACKNOWLEDGED))
    harness = OperatorHarness(MyAgent, store=faults.store)

The attempt that meets a fault fails; ``harness.restore(snapshot)`` starts the next one, which
finds the stored records.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from typing_extensions import override

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalKey,
    Record,
    RecordKind,
    closed_error,
)
from flink_agents.api.errors import AppendOutcomeUnknownError, RecordTooLargeError, StoreUnavailableError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal.other_jobs import ForwardingStore


class Fault(StrEnum):
    """A way in which an append fails.

    Attributes:
        REFUSED: Nothing is stored, and the caller gets ``StoreUnavailableError``. Also noted if the store
            rejects a record as too large.
        LOST: Nothing is stored, and the caller gets ``AppendOutcomeUnknownError``.
        UNACKNOWLEDGED: The records are stored, but the caller gets ``AppendOutcomeUnknownError``.
        HANGS: Nothing is stored, and the append waits until the attempt ends.
        HANGS_STORED: The records are stored, and the append waits until the attempt ends.
    """

    REFUSED = "refused"
    LOST = "lost"
    UNACKNOWLEDGED = "unacknowledged"
    HANGS = "hangs"
    HANGS_STORED = "hangs-stored"

    @property
    def stores(self) -> bool:
        """True if the append stores its records."""
        return self in (Fault.UNACKNOWLEDGED, Fault.HANGS_STORED)

    @property
    def hangs(self) -> bool:
        """True if the append waits until the attempt ends."""
        return self in (Fault.HANGS, Fault.HANGS_STORED)


Choose = Callable[[int, JournalKey, Sequence[Record]], "Fault | None"]
"""Chooses the fault of an append from its number over all attempts, from 0, its journal and its records."""


def at_append(number: int, fault: Fault) -> Choose:
    """Return a chooser of ``fault`` for the append with a number, counted from 0 over all attempts."""
    return lambda append_number, journal, records: fault if append_number == number else None


def at_record(kind: RecordKind, fault: Fault, number: int = 0) -> Choose:
    """Return a chooser of ``fault`` for the append ``number``, from 0, of those with a record of ``kind``."""
    matching_appends: list[int] = []

    def choose(append_number: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        if all(record.kind is not kind for record in records):
            return None
        matching_appends.append(append_number)
        return fault if len(matching_appends) == number + 1 else None

    return choose


class Faults:
    """Makes the stores of all attempts, which share their records, and decides when they fail.

    Args:
        choose: Chooses the fault of each append; None if it succeeds. Default: all succeed.
        make: Creates the store that holds the records. Default: stores of one place in memory.

    Attributes:
        appends: All appends so far: journal, records, and fault or None.
        hanging: Set while an append hangs.
    """

    def __init__(
        self, choose: Choose | None = None, make: Callable[[], ActionStateStore] | None = None
    ) -> None:
        place = MemoryPlace()
        self.choose = choose
        self.appends: list[tuple[JournalKey, tuple[Record, ...], Fault | None]] = []
        self.hanging = threading.Event()
        self._make = make or (lambda: MemoryStore(place))
        self._lock = threading.Lock()

    def store(self) -> FaultyStore:
        """Create the store of one attempt of one subtask; pass this method as ``store`` of a harness."""
        return FaultyStore(self._make(), self)

    def next_fault(self, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        """Choose the fault of an append, and add both to ``appends``; None if it succeeds."""
        if journal.journal_id.startswith("\x00"):
            return None  # The runtime's own append, of no key.
        with self._lock:
            fault = self.choose(len(self.appends), journal, records) if self.choose is not None else None
            self.appends.append((journal, tuple(records), fault))
            return fault

    def note_refused(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Change the fault of the latest append of these records: the store itself rejected it."""
        with self._lock:
            same = (entry[:2] == (journal, tuple(records)) for entry in self.appends[::-1])
            self.appends[~next(place for place, is_same in enumerate(same) if is_same)] = (
                journal,
                tuple(records),
                Fault.REFUSED,
            )


class FaultyStore(ForwardingStore):
    """A store whose appends fail as a test chooses.

    Args:
        store: The store that holds the records.
        faults: Chooses the appends that fail.
    """

    def __init__(self, store: ActionStateStore, faults: Faults) -> None:
        super().__init__(store)
        self._faults = faults
        self._broken = False

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Append records, or fail in the way that ``faults`` chooses.

        After an unknown outcome, all further appends are rejected.
        """
        if self._broken:
            raise closed_error("an append before this one had an unknown outcome")
        fault = self._faults.next_fault(journal, records)
        if fault is None or fault.stores:
            try:
                await super().append(journal, records)
            except RecordTooLargeError:
                self._faults.note_refused(journal, records)
                raise
        if fault is None:
            return
        if fault is Fault.REFUSED:
            # Appends of concurrent calls are in flight then.
            await asyncio.sleep(0)
            raise StoreUnavailableError("the test rejects this append")
        self._broken = True
        if fault.hangs:
            self._faults.hanging.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._faults.hanging.clear()
        raise AppendOutcomeUnknownError("the test makes the outcome of this append unknown")
