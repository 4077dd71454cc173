"""The signals of a key: those that no run has taken yet, and what is remembered of those that one has.

A signal is known again by its *identity*: the id that its sender gave, or a digest of what it says. It stays
here until the run that took it is committed or suspended, in the same update of state. A run that is
replayed by the store's records may have taken a signal that comes again later: that one is *owed*, and
absorbed when it comes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import msgpack

from flink_agents.api.errors import StateFormatError
from flink_agents.api.events.signals import Signal

_VERSION = b"\x01"
_MEANT_VERSION = b"\x02"
"""Of a mailbox in which a signal is meant for a run: such a one has a field more."""

_pack = cast("Callable[[object], bytes]", msgpack.packb)


UNDECIDED = -1
"""In place of a run, in a signal of which only records that nobody has read yet can say whose it is."""

OF_ID = "id "
"""The identity of a signal with an id begins so."""


def identity_of(signal: Signal, value: bytes) -> str:
    """Return what a signal is known again by; ``value`` is what it says, encoded."""
    if signal.id is not None:
        return f"{OF_ID}{signal.id}"
    said = repr((signal.name, signal.wait, value)).encode("utf-8", "surrogatepass")
    return f"value {hashlib.blake2b(said, digest_size=16).hexdigest()}"


class StoredSignal(NamedTuple):
    """A signal that waits for a run.

    Attributes:
        identity: What it is known again by.
        name: Its name.
        value: What it says, encoded.
        id: The id that its sender gave it, or None.
        wait: The wait that it is for, or None.
        until: When it expires, in milliseconds since the epoch.
        run: Sequence number of the run that waited for it when it came, which others leave it to;
            ``UNDECIDED``, or None.
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
        mail: Those that wait for a run, in the order of their arrival.
        seen: Ids of those that were taken, each with the time until which a second one is a duplicate.
        owed: Identities of those that were taken before they came, each with the same.
    """

    mail: list[StoredSignal] = field(default_factory=list[StoredSignal])
    seen: dict[str, int] = field(default_factory=dict[str, int])
    owed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def knows(self, id: str) -> bool:
        """Whether a signal of that id has come before."""
        return id in self.seen or any(one.id == id for one in self.mail)

    def absorb(self, identity: str) -> bool:
        """Whether a signal that comes was taken already by a run; only once for each time."""
        for place, (owed, _) in enumerate(self.owed):
            if owed == identity:
                del self.owed[place]
                return True
        return False

    def find(self, identity: str) -> StoredSignal | None:
        """The first signal of that identity that waits for a run, or None."""
        return next((one for one in self.mail if one.identity == identity), None)

    def undecided(
        self, taken: Iterable[str], recorded: Iterable[tuple[str, str | None]]
    ) -> list[tuple[StoredSignal, int]]:
        """The undecided signals, each with how many of its name a run has taken that come behind it.

        Args:
            taken: Identities of the signals that a run has taken.
            recorded: Those among them that only the store knows of, with names. What is not here comes later.
        """
        if all(one.run != UNDECIDED for one in self.mail):
            return []
        here, identities = {one.identity for one in self.mail}, set(taken)
        later = Counter(name for identity, name in recorded if identity not in here)
        found: list[tuple[StoredSignal, int]] = []
        for place, mail in enumerate(self.mail):
            if mail.run == UNDECIDED:
                behind = [one for one in self.mail[place + 1 :] if one.name == mail.name]
                ended = sum(one.identity in identities for one in behind)
                found.append((mail, ended + later[mail.name]))
        return found

    def take(self, identities: Iterable[str], until: int) -> None:
        """Remove the signals that a run has taken, and remember them."""
        for identity in identities:
            found = self.find(identity)
            if found is None:
                self.owed.append((identity, until))
                continue
            self.mail.remove(found)
            if found.id is not None:
                self.seen[found.id] = until

    def expire(self, now: int, untaken: Iterable[StoredSignal] | None = None) -> list[StoredSignal]:
        """Forget what has expired; returns the signals that no run has taken.

        Args:
            now: The present.
            untaken: The signals that have expired and that no run took, where a run may have taken some whose
                commit is still to come. Default: all that have expired.
        """
        # Which run one is meant for may be known here only.
        wanted = [one._replace(run=None) for one in (self.mail if untaken is None else untaken)]
        expired = [one for one in self.mail if one.until <= now and one._replace(run=None) in wanted]
        if expired:
            self.mail = [one for one in self.mail if one not in expired]
        self.seen = {id: until for id, until in self.seen.items() if until > now}
        self.owed = [one for one in self.owed if one[1] > now]
        return expired

    @property
    def expires(self) -> int | None:
        """When the first thing in it expires; None where there is nothing in it."""
        times = [*(one.until for one in self.mail), *self.seen.values(), *(until for _, until in self.owed)]
        return min(times, default=None)

    def pack(self) -> bytes | None:
        """The bytes; None where there is nothing in it."""
        if not (self.mail or self.seen or self.owed):
            return None
        meant = any(one.run is not None for one in self.mail)
        mail = [list(one if meant else one[:6]) for one in self.mail]
        return (_MEANT_VERSION if meant else _VERSION) + _pack((mail, self.seen, self.owed))

    @classmethod
    def unpack(cls, data: bytes | None) -> Mailbox:
        """The mailbox of which ``data`` are the bytes; an empty one for None.

        Raises:
            StateFormatError: They are corrupt, or of an unknown version.
        """
        if data is None:
            return cls()
        if data[:1] not in (_VERSION, _MEANT_VERSION):
            raise StateFormatError(
                "the signals of a key are of a format that this version cannot read",
                expected=f"version {_VERSION[0]} or {_MEANT_VERSION[0]}",
                found=f"version {data[0]}" if data else "no bytes",
                fix="run the version of flink-agents-python that wrote it, or a newer one",
            )
        try:
            mail, seen, owed = msgpack.unpackb(data[1:])[:3]
            return cls(
                [StoredSignal(*one) for one in mail], seen, [(identity, until) for identity, until in owed]
            )
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StateFormatError("the signals of a key cannot be read", found=str(error)) from error
