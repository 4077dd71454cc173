"""The signals of a key: those that no run has taken yet, and the ids of those that were taken.

A signal has an *identity*: the id that its sender gave, or a digest of its content. It stays in the mailbox
until the run that took it is committed or suspended, in the same update of state. A run that is replayed from
the store's records may have taken a signal that the source sends again later. Such a signal is *owed*: it is
dropped when it comes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flink_agents.api.events.signals import Signal
from flink_agents.runtime.state.slots import pack, unpack

_VERSION = b"\x01"

UNDECIDED = -1
"""In place of a run's number: which run took the signal is in records that were not read yet."""

OF_ID = "id "
"""Prefix of the identity of a signal with an id."""


def identity_of(signal: Signal, value: bytes) -> str:
    """Return a text that two signals share if they have one id, or no id and the same content.

    Args:
        signal: The signal.
        value: Its encoded value.
    """
    if signal.id is not None:
        return f"{OF_ID}{signal.id}"
    content = repr((signal.name, signal.wait, value)).encode("utf-8", "surrogatepass")
    return f"value {hashlib.blake2b(content, digest_size=16).hexdigest()}"


class StoredSignal(NamedTuple):
    """A signal in state, which waits for a run.

    Attributes:
        identity: The result of :func:`identity_of`.
        name: The name that waits ask for.
        value: The encoded value.
        id: The id that the sender gave it, or None.
        wait: The id of the wait that it answers; None if any wait for its name can take it.
        until: The time at which it expires, in milliseconds since the epoch.
        run: Sequence number of the run that it is reserved for; ``UNDECIDED``; None if any run may take it.
    """

    identity: str
    name: str
    value: bytes
    id: str | None
    wait: str | None
    until: int
    run: int | None = None


@dataclass
class Mailbox:
    """The signals of one key.

    Attributes:
        signals: Signals that wait for a run, in the order of their arrival.
        seen: Ids of signals that were taken, each with the time until which another one is a duplicate.
        owed: Identities of signals that a replayed run took before they came again, each with such a time.
    """

    signals: list[StoredSignal] = field(default_factory=list[StoredSignal])
    seen: dict[str, int] = field(default_factory=dict[str, int])
    owed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def knows(self, id: str) -> bool:
        """Return True if a signal with that id waits, or was taken and is still remembered."""
        return id in self.seen or any(signal.id == id for signal in self.signals)

    def absorb(self, identity: str) -> bool:
        """Drop a signal that comes if a replayed run took it already; return True if so.

        Another signal with the same identity is a new one.
        """
        for place, (owed_identity, _) in enumerate(self.owed):
            if owed_identity == identity:
                # Each entry drops one signal.
                del self.owed[place]
                return True
        return False

    def find(self, identity: str) -> StoredSignal | None:
        """Return the first signal with that identity that waits for a run, or None."""
        return next((signal for signal in self.signals if signal.identity == identity), None)

    def undecided(
        self, taken_identities: Iterable[str], recorded: Iterable[tuple[str, str | None]]
    ) -> list[tuple[StoredSignal, int]]:
        """Return the undecided signals, each with the number of later signals of its name that a run took.

        Args:
            taken_identities: Identities of the signals that a run has taken.
            recorded: Identity and name of those among them that only the store has. If the mailbox lacks
                one, it comes later.
        """
        if all(signal.run != UNDECIDED for signal in self.signals):
            return []
        here = {signal.identity for signal in self.signals}
        identities = set(taken_identities)
        later = Counter(name for identity, name in recorded if identity not in here)
        undecided_signals: list[tuple[StoredSignal, int]] = []
        for place, signal in enumerate(self.signals):
            if signal.run == UNDECIDED:
                after = [
                    later_signal
                    for later_signal in self.signals[place + 1 :]
                    if later_signal.name == signal.name
                ]
                ended = sum(later_signal.identity in identities for later_signal in after)
                undecided_signals.append((signal, ended + later[signal.name]))
        return undecided_signals

    def remove_taken(self, identities: Iterable[str], until: int) -> None:
        """Remove the signals that a run has taken, and remember their ids.

        Args:
            identities: The identities of the signals.
            until: The time, in milliseconds, until which another signal with such an id is a duplicate.
        """
        for identity in identities:
            signal = self.find(identity)
            if signal is None:
                # The source will send it again after a restore. Then it must be dropped.
                self.owed.append((identity, until))
                continue
            self.signals.remove(signal)
            if signal.id is not None:
                # A signal with the same id is a duplicate until then.
                self.seen[signal.id] = until

    def expire(self, now: int, untaken: Iterable[StoredSignal] | None = None) -> list[StoredSignal]:
        """Remove everything that has expired; return the expired signals that no run has taken.

        Args:
            now: The present time in milliseconds.
            untaken: The expired signals that no run took, if a run may have taken some whose commit is still
                to come. Default: all that have expired.
        """
        # Only this mailbox may know the run of a signal, so compare without it.
        removable = [signal._replace(run=None) for signal in (self.signals if untaken is None else untaken)]
        expired = [
            signal
            for signal in self.signals
            if signal.until <= now and signal._replace(run=None) in removable
        ]
        if expired:
            self.signals = [signal for signal in self.signals if signal not in expired]
        self.seen = {id: until for id, until in self.seen.items() if until > now}
        self.owed = [entry for entry in self.owed if entry[1] > now]
        return expired

    @property
    def expires(self) -> int | None:
        """The time, in milliseconds, at which the first entry expires; None if the mailbox is empty."""
        times = [
            *(signal.until for signal in self.signals),
            *self.seen.values(),
            *(until for _, until in self.owed),
        ]
        return min(times, default=None)

    def pack(self) -> bytes | None:
        """Return the bytes; None if the mailbox is empty."""
        if not (self.signals or self.seen or self.owed):
            return None
        return _VERSION + pack((self.signals, self.seen, self.owed))

    @classmethod
    def unpack(cls, data: bytes | None) -> Mailbox:
        """Return the mailbox from its bytes; an empty one for None.

        Raises:
            StateFormatError: They are corrupt, or of an unknown version.
        """
        if data is None:
            return cls()
        return unpack("the list of signals of a key", data, cls._from_fields, _VERSION)

    @classmethod
    def _from_fields(cls, fields: Any) -> Mailbox:
        signals, seen, owed = fields
        return cls(
            [StoredSignal(*signal) for signal in signals], seen, [(name, until) for name, until in owed]
        )
