"""Chooses the removals that a store ``kafka`` keeps only to find out a state that is too old.

A state from before a removal would have its runs executed again. The runtime removes no run that a
checkpoint of Flink's can ask for, so that this is about states that somebody chose by hand: an old savepoint,
or none at all. The latest removals of each partition are kept, so that such a state is refused for each key.
Of older ones a sample is kept that thins out with age: the count of what is kept grows with the
logarithm of the history only, and a state from any time meets one of them soon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from flink_agents.api.action_state import JournalKey, encode_text

SAMPLE = 1 / 16
"""How many of those that are a little older than what is kept are in the sample."""

OWN_SLACK, SLACK = 4, 32
"""A look, which sorts them, is worth while where so large a part of what is kept came since the last one."""


class Dated(NamedTuple):
    """A removal.

    Attributes:
        since: Where in its partition it was first.
        own: True if this owner wrote it, or wrote it again.
        journal: Of which journal it is the last one.
    """

    since: int
    own: bool
    journal: JournalKey


class Remembered:
    """Counts the removals of each partition, and chooses those to keep.

    Args:
        latest: How many removals of each partition are kept.
        own: How many of these may be by this owner, so that all of a job together keep as many.
    """

    def __init__(self, latest: int, own: int) -> None:
        self._latest = max(1, latest)
        self._own = max(1, own)
        self._left: dict[int, int] = {}

    def is_over(self, partition: int, count: int) -> bool:
        """Return True if so many removals of a partition are worth a look."""
        return count > self._left.get(partition, self._own) + self._own // OWN_SLACK + self._latest // SLACK

    def looked(self, partition: int, count: int) -> None:
        """Note how many were left by a look: some could not go, and others are the sample."""
        self._left[partition] = max(count, self._own)

    def surplus(self, found: Iterable[Dated]) -> list[JournalKey]:
        """Return the journals of a partition whose removals are not to be kept, the oldest first."""
        newest_first = sorted(found, key=lambda one: one.since, reverse=True)
        surplus: list[JournalKey] = []
        count = own = 0
        # How long ago the last one was that is kept.
        span = 0
        for one in newest_first:
            age = newest_first[0].since - one.since
            if count < self._latest and not (one.own and own >= self._own):
                count += 1
                own += one.own
                span = age
            elif _fraction(one.journal) * (age + 1) > SAMPLE * (span + 1):
                surplus.append(one.journal)
        return surplus[::-1]


def _fraction(journal: JournalKey) -> float:
    """Return a number from 0 to 1 that is the same for a journal everywhere."""
    text = encode_text(f"{journal.key}:{journal.journal_id}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
