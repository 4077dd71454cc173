"""The open waits of a key's runs in memory, and the signals that they can take."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.records import WaitRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.mailbox import OF_ID, StoredSignal
from flink_agents.runtime.state.suspended import StoredWait


class ActiveWait(Protocol):
    """An open wait of a run in memory; see ``durable_wait``."""

    @property
    def wait_id(self) -> str:
        """The text by which a signal can name the wait."""
        ...

    @property
    def run(self) -> int:
        """Sequence number of the run that waits."""
        ...

    @property
    def stored(self) -> StoredWait:
        """The form in which state stores the wait."""
        ...

    def is_for(self, name: str) -> bool:
        """Return True if a signal of that name can end the wait."""
        ...

    def take_signal(self) -> bool:
        """End the wait by a signal, if there is one for it; returns True if it has ended."""
        ...

    def end_if_due(self) -> None:
        """End the wait if its time has come, or if nothing else can end it."""
        ...


class ActiveMailbox:
    """The open waits of a key's runs in memory, and the signals of the key.

    All that Flink's task thread tells open waits goes through it, also if no signal is involved. The event
    loop uses it. Flink's task thread adds signals, removes expired ones, and counts them. One lock decides if
    a wait took a signal or if the signal expired first.

    Args:
        clock: Returns the wall-clock time in milliseconds.
        signals: Signals that no wait has taken.
        ttl: Milliseconds for which a signal waits for a run.
        resuming: True if a suspended run resumes and has not come to its open waits yet.

    Attributes:
        clock: Returns the wall-clock time in milliseconds.
        resuming: True if a suspended run resumes and has not come to its open waits yet.
        open: The open waits, in the order in which they were opened.
        runs: Sequence numbers of the runs that started, or resumed, with these signals.
        ended: True if the input has ended, so that no signal comes any longer.
        skips: True if pauses end with the input.
    """

    def __init__(
        self, clock: Callable[[], int], signals: list[StoredSignal], ttl: int, resuming: bool = False
    ) -> None:
        self.clock = clock
        self.resuming = resuming
        self.open: dict[ActiveWait, None] = {}
        self.runs: set[int] = set()
        self.ended = self.skips = False
        self._ended_runs: set[int] = set()
        self._signals = signals
        self._ttl = ttl
        # Identities of signals that are dropped when the source reads them again.
        self._owed: list[str] = []
        # Identities of signals that recorded runs took: before their replay, and then until their commit.
        self._reserved: list[str] = []
        self._forgotten: list[str] = []
        # Signals of waits whose action has not learned of them yet.
        self._picked: list[StoredSignal] = []
        self._lock = threading.Lock()
        # Each is written by one thread only.
        self._sent = self._offered = 0
        self._recorded = 0

    # -- for Flink's thread -----------------------------------------------------------

    def sent(self, signal: StoredSignal) -> None:
        """Note that a signal was handed to the event loop, which will call :meth:`offer`."""
        self._sent += signal.wait is None

    def expire(self, now: int) -> list[StoredSignal]:
        """Remove and return the signals that expired before a wait took them.

        While recorded runs are still to be replayed, none expires: their records may say that they took it.
        """
        with self._lock:
            # Recorded runs are still to be replayed, and may have taken expired signals.
            if self._recorded:
                return []
            expired = [signal for signal in self._free(self._signals) if signal.until <= now]
            if expired:
                expired_ids = set(map(id, expired))
                self._signals[:] = [signal for signal in self._signals if id(signal) not in expired_ids]
        return expired

    def free(self, signals: Iterable[StoredSignal]) -> list[StoredSignal]:
        """Return the signals of ``signals`` that are not reserved for recorded runs."""
        with self._lock:
            return self._free(signals)

    def is_reserved(self, signal: StoredSignal) -> bool:
        """Return True if a recorded run took a signal with this identity and is not committed yet."""
        with self._lock:
            return signal.identity in self._reserved or signal.identity in self._forgotten

    def confirm(self, identities: Iterable[str]) -> None:
        """Note that the run that took these signals, according to its records, is committed or suspended."""
        with self._lock:
            for identity in identities:
                self._forgotten.remove(identity)

    @property
    def waiting(self) -> int:
        """The number of signals that name no wait and were not taken, with those on their way to the loop."""
        with self._lock:
            here = sum(signal.wait is None for signal in self._free(self._signals))
        return here + self._sent - self._offered

    def unanswered_for(self, name: str, named: Container[str]) -> int:
        """Return the number of open waits for a name that have no signal.

        Args:
            name: The name of the signal.
            named: The ids of waits that a signal names, taken or not.
        """
        with self._lock:
            meant_counts = Counter(
                signal.run for signal in self._signals if signal.wait is None and signal.name == name
            )
        wait_count = 0
        for wait in self.open.copy():
            if not wait.is_for(name) or wait.wait_id in named:
                continue
            if meant_counts[wait.run]:
                meant_counts[wait.run] -= 1
            else:
                wait_count += 1
        return wait_count

    # -- for the agent loop -----------------------------------------------------------

    def offer(self, signal: StoredSignal) -> None:
        """Hand a signal to an open wait, or store it for a later one."""
        # Only signals that name no wait are counted, as in `sent`.
        self._offered += signal.wait is None
        if signal.identity in self._owed:
            # According to a record, it was taken before the restart. The source has read it again.
            self._owed.remove(signal.identity)
            return
        with self._lock:
            # Its run may have ended while the signal was on its way.
            self._signals.append(signal._replace(run=None) if signal.run in self._ended_runs else signal)
        self._let_take()

    def release(self, run: int) -> None:
        """Let other runs take the signals that were meant for a run which has ended."""
        with self._lock:
            self._ended_runs.add(run)
            self._signals[:] = [
                signal._replace(run=None) if signal.run == run else signal for signal in self._signals
            ]

    def pick(self, name: str, wait_id: str, run: int) -> StoredSignal | None:
        """Reserve the first signal for a wait of run number ``run``, and return it; None if there is none.

        It names the wait by its id, or else has the name that the wait is for.

        Call :meth:`remove_picked` when the action learns of it, and :meth:`release_picked` if it cancels the
        wait.
        """
        with self._lock:
            now = self.clock()
            for signal in self._free(self._signals):
                has_name = signal.name == name and signal.run in (None, run)
                is_wanted = has_name if signal.wait is None else signal.wait == wait_id
                if is_wanted and signal.until > now:
                    # Reserved, not removed: the action may cancel the wait before it learns of the signal.
                    self._picked.append(signal)
                    return signal
        return None

    def remove_picked(self, signal: StoredSignal) -> None:
        """Remove a signal that :meth:`pick` reserved, because the action learns of it."""
        with self._lock:
            self._unpick(signal)
            place = next(at for at, queued_signal in enumerate(self._signals) if queued_signal is signal)
            del self._signals[place]

    def release_picked(self, signal: StoredSignal) -> None:
        """Release a signal that was picked for a wait that the action has cancelled."""
        with self._lock:
            self._unpick(signal)
        self._let_take()

    def _unpick(self, signal: StoredSignal) -> None:
        """Release a signal that is reserved for a wait. Call it with the lock."""
        self._picked = [picked_signal for picked_signal in self._picked if picked_signal is not signal]

    def end_input(self, skips: bool) -> None:
        """End waits for signals, and pauses if they are skipped at the end of the input."""
        self.ended = True
        self.skips = skips
        for wait in list(self.open):
            wait.end_if_due()

    def reserve(self, identities: Iterable[str]) -> None:
        """Reserve signals for recorded runs that took them, according to their records."""
        with self._lock:
            self._reserved += identities

    def forget(self, identity: str, reserved: bool) -> None:
        """Remove a signal that a run took, according to its record.

        Args:
            identity: The identity of the signal.
            reserved: True if it was reserved for that run.
        """
        with self._lock:
            self._forgotten.append(identity)
            if reserved and identity in self._reserved:
                self._reserved.remove(identity)
            place = next((at for at, signal in enumerate(self._signals) if signal.identity == identity), None)
            if place is not None:
                del self._signals[place]
            else:
                # The signal has not come again yet. When it does, it must be dropped.
                self._owed.append(identity)

    def put_back(self, wait_records: Iterable[WaitRecord]) -> Sequence[StoredSignal]:
        """Let waits take signals again because the records of their taking are void. Returns these signals.

        They come before all others.
        """
        until = self.clock() + self._ttl
        back = [_mail_of(record, until) for record in sorted(wait_records, key=lambda record: record.order)]
        with self._lock:
            # Before all others, as when they were taken first.
            self._signals[:0] = back
        return back

    def expect(self, runs: int) -> None:
        """Add to the number of recorded runs still to be replayed; -1 after a replay. For any thread."""
        with self._lock:
            self._recorded += runs

    def resumed(self) -> None:
        """Note that the resumed run has come to the waits that were open when it was suspended."""
        self.resuming = False

    def _let_take(self) -> None:
        """Offer the signals to the open waits, in their order, until one of them has ended."""
        for wait in list(self.open):
            # At most one wait takes it. The others stay open.
            if wait.take_signal():
                return

    def _free(self, signals: Iterable[StoredSignal]) -> list[StoredSignal]:
        """Return the signals reserved neither for a recorded run nor for a wait. Call it with the lock."""
        if not (self._reserved or self._picked):
            return list(signals)
        reserved = list(self._reserved)
        free = list[StoredSignal]()
        for signal in signals:
            if any(signal is picked for picked in self._picked):
                continue
            if signal.identity in reserved:
                # Equal signals count one by one.
                reserved.remove(signal.identity)
            else:
                free.append(signal)
        return free


def taken_signals(codec: ValueCodec, records: Iterable[Record]) -> list[WaitRecord]:
    """Return the records of waits of one run that ended by signals, without those that are void.

    Args:
        codec: Reads the records.
        records: Records of the run, in order.
    """
    wait_records: dict[tuple[str, int], WaitRecord] = {}
    for record in records:
        if record.kind is RecordKind.WAIT:
            wait_record = WaitRecord.unpack(codec, record.data)
            if wait_record.identity is not None:
                wait_records[record.step, record.index] = wait_record
        elif record.kind is RecordKind.RERUN:
            for place in [
                wait_place for wait_place in wait_records if task_of(wait_place[0])[0] == record.step
            ]:
                del wait_records[place]
    return list(wait_records.values())


def _mail_of(record: WaitRecord, until: int) -> StoredSignal:
    """Return the signal that a wait took, from its record; it expires at ``until``, in milliseconds."""
    assert record.identity is not None and record.value is not None
    signal_id = record.identity.removeprefix(OF_ID) if record.identity.startswith(OF_ID) else None
    return StoredSignal(record.identity, record.name or "", record.value, signal_id, record.wait, until)
