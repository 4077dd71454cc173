"""Chooses the removals that a store ``kafka`` keeps only to detect a state that is too old.

A state from before a removal would execute its runs again. The runtime removes no run that a
checkpoint of Flink's can need, so this is only about states that you choose by hand: an old savepoint,
or none at all. The latest removals of each partition are kept, so that such a state is rejected for each key.
Of older removals, a sample is kept that becomes sparser with age: the number of kept removals grows with the
logarithm of the history only, and a state of any age soon meets one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from flink_agents.api.action_state import JournalKey, encode_text

SAMPLE = 1 / 16
"""The size of the sample of removals that are slightly older than the kept ones."""

OWN_SLACK = 4
SLACK = 32
"""A search sorts all removals, so it waits for new ones: 1 in 32 of the kept ones, and 1 in 4 of its own."""


class Dated(NamedTuple):
    """The last removal of a journal, with its age.

    Attributes:
        since: Offset at which it was first written in its partition. A rewritten removal keeps it.
        is_own: True if this owner wrote it, or wrote it again.
        journal: The journal whose runs it removed.
    """

    since: int
    is_own: bool
    journal: JournalKey


class Remembered:
    """Counts the removals of each partition, and chooses those to keep.

    Args:
        latest: Number of removals of each partition that are kept.
        own_share: Maximum number of these that belong to this owner, so that all owners of a job together
            keep ``latest``.
    """

    def __init__(self, latest: int, own_share: int) -> None:
        self._latest = max(1, latest)
        self._own_share = max(1, own_share)
        self._tombstone_counts: dict[int, int] = {}

    def is_over(self, partition: int, count: int) -> bool:
        """Return True if a partition has enough removals for a search for superfluous ones.

        Args:
            partition: Number of the partition.
            count: Number of its known removals.
        """
        return (
            count
            > self._tombstone_counts.get(partition, self._own_share)
            + self._own_share // OWN_SLACK
            + self._latest // SLACK
        )

    def record_tombstones(self, partition: int, count: int) -> None:
        """Record how many removals a clean-up of a partition left; the next one waits for more."""
        self._tombstone_counts[partition] = max(count, self._own_share)

    def surplus_journals(self, removals: Iterable[Dated]) -> list[JournalKey]:
        """Return the journals of a partition whose removals can be dropped, the oldest first."""
        newest_first = sorted(removals, key=lambda dated_removal: dated_removal.since, reverse=True)
        surplus: list[JournalKey] = []
        count = own_count = 0
        # The age of the last removal that is kept.
        span = 0
        for removal in newest_first:
            age = newest_first[0].since - removal.since
            if count < self._latest and not (removal.is_own and own_count >= self._own_share):
                count += 1
                own_count += removal.is_own
                span = age
            elif _journal_fraction(removal.journal) * (age + 1) > SAMPLE * (span + 1):
                surplus.append(removal.journal)
        return surplus[::-1]


def _journal_fraction(journal: JournalKey) -> float:
    """Return a number from 0 to 1 by the hash of a journal: all owners draw the same sample."""
    text = encode_text(f"{journal.key}:{journal.journal_id}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
