"""What was forgotten stays so, in whatever order a partition is read; no broker is needed to tell."""

from __future__ import annotations

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.index import JournalIndex
from flink_agents.connectors.action_state.kafka.layout import (
    FORGET,
    BatchKey,
    Entry,
    pack_batch,
    pack_entry,
    unpack_batch,
)

JOURNAL = JournalKey("orders/shop", "i1")
OTHER = JournalKey("bills/shop", "i1")


def appended(seq: int, journal: JournalKey = JOURNAL) -> Entry:
    return Entry(journal, [Record(RecordKind.CALL, seq, "step", 0, b"data")])


def removed(through: int, journal: JournalKey = JOURNAL) -> Entry:
    return Entry(journal, (), through)


LOG: list[list[Entry]] = [
    [appended(8), appended(0, OTHER)],
    [appended(9)],
    [removed(7)],
    [removed(FORGET)],
    [appended(0)],
    [appended(5)],
    [removed(2)],
]
"""A partition. Of JOURNAL are left run 5, the removal through 2, and what says that the rest is forgotten."""

KEPT = {0, 3, 5, 6}
"""Batches that are needed: the first one for the other journal."""


def batch(number: int) -> Batch:
    return Batch(0, BatchKey("token", number))


@pytest.mark.parametrize("cut", range(len(LOG) + 1))
@pytest.mark.parametrize("again", [False, True])
def test_garbage_is_the_same_from_wherever_it_is_read(cut: int, again: bool) -> None:
    """A part that lies before what was read is told from its end, as ``Scanner.read_from`` does."""
    garbage = Garbage()
    for number in [*range(cut, len(LOG)), *reversed(range(cut))]:
        for _ in range(1 + again):
            garbage.add_batch(batch(number), number, LOG[number])
    dead = {dead_batch.key.number for dead_batch in garbage.take_dead()}
    assert dead == set(range(len(LOG))) - KEPT
    assert garbage.pruned_through(JOURNAL) == 2
    assert garbage.with_runs() == {batch(0), batch(5)}
    counts = garbage.counts()
    assert (counts["runs_kept"], counts["batches_kept"]) == (2, len(KEPT))


@pytest.mark.parametrize("cut", range(len(LOG) + 1))
@pytest.mark.parametrize("older_first", [True, False])
def test_the_index_is_the_same_from_wherever_it_is_read(cut: int, older_first: bool) -> None:
    older = JournalIndex()
    newer = JournalIndex()
    for entries in LOG[:cut]:
        older.apply_entries(entries)
    for entries in LOG[cut:]:
        newer.apply_entries(entries)
    if older_first:
        index = older
        index.extend(newer)
    else:
        index = newer
        index.prepend(older)
    assert [stored_record.seq for stored_record in index.scan(JOURNAL, None, None)] == [5]
    assert index.pruned_through(JOURNAL) == 2
    assert [stored_record.seq for stored_record in index.scan(OTHER, None, None)] == [0]


def test_a_forgotten_journal_is_unknown() -> None:
    index = JournalIndex()
    garbage = Garbage()
    for number, entries in enumerate(LOG[:4]):
        index.apply_entries(entries)
        garbage.add_batch(batch(number), number, entries)
    assert JOURNAL not in index
    assert index.pruned_through(JOURNAL) == garbage.pruned_through(JOURNAL) == NOTHING_PRUNED
    assert not garbage.knows(JOURNAL)


def test_forgetting_again_needs_one_batch_only() -> None:
    garbage = Garbage()
    for number in range(3):
        garbage.add_batch(batch(number), number, [removed(FORGET)])
    assert [dead_batch.key.number for dead_batch in garbage.take_dead()] == [0, 1]


def test_removals_of_other_jobs_are_not_written_anew() -> None:
    """They may have been forgotten since they were read."""
    garbage = Garbage()
    many = [removed(3, JournalKey("orders/shop", f"i{number}")) for number in range(10)]
    garbage.add_batch(batch(0), 0, [*many, removed(3, OTHER)])
    garbage.add_batch(batch(1), 1, many)
    foreign, current_owner = (Owner.create("job", group) for group in ("orders/shop", "bills/shop"))
    assert garbage.take_sparse(100, foreign) == []
    assert garbage.take_sparse(100, current_owner) == [(OTHER, 3)]


def test_what_is_forgotten_survives_the_format() -> None:
    (entry,) = unpack_batch(pack_batch([pack_entry(removed(FORGET))]))
    assert entry == removed(FORGET)
