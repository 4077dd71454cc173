"""What the store ``kafka`` removes: all that nobody needs, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import replace

import pytest

from flink_agents.api.action_state import JournalKey, Record
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.layout import BatchKey, Entry
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.kafka.kafka_stores import (
    Raw,
    batches,
    compact,
    indexes,
    journal_in,
    opened,
    record,
    run,
)

KEYS = [JournalKey("job", f"s{number}") for number in range(500)]


def removals_only(found: list[Raw]) -> bool:
    """Whether batches hold nothing but removals."""
    entry_lists = [
        raw_record.entries
        for raw_record in found
        if raw_record.key is not None and raw_record.entries is not None
    ]
    return all(entry.through is not None for entries in entry_lists for entry in entries)


async def append_and_prune(store: KafkaStore, seq: int) -> None:
    """One run of each key, which is then removed."""
    await asyncio.gather(*(store.append(key, [record(seq, seq, b"x" * 200)]) for key in KEYS))
    await asyncio.gather(*(store.prune(key, seq) for key in KEYS))


def test_when_all_is_pruned_only_removals_are_left(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        for seq in range(3):
            await append_and_prune(store, seq)
        await store.close()
        await asyncio.to_thread(
            compact, settings, lambda records: _compacted(records) and removals_only(records)
        )
        again = await opened(settings)
        await again.rebuild()
        assert {await again.pruned_through(key) for key in KEYS[:20]} == {2}
        assert (await again.stats()).records == 0
        await again.close()

    run(body())


def _compacted(found: list[Raw]) -> bool:
    """Whether nothing is there twice, and no batch beside what says that it was removed."""
    keys = [(raw_record.partition, raw_record.key) for raw_record in found if raw_record.key is not None]
    return len(keys) == len(set(keys))


def test_the_size_stays_the_same(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await append_and_prune(store, 0)
        first = await _size_at_rest(settings, 0)
        for seq in range(1, 20):
            await append_and_prune(store, seq)
        await _size_at_rest(settings, 2 * first)
        await store.close()

    run(body())


async def _size_at_rest(settings: KafkaSettings, most: int) -> int:
    """The bytes of all batches, once they are at most so many; 0 for any number that stays as it is.

    What is not needed any more is removed behind the prunes, sooner or later.
    """
    previous_size = -1
    for _ in range(600):
        size = sum(stored_batch.size for stored_batch in await asyncio.to_thread(batches, settings))
        if size <= most or (not most and size == previous_size):
            return size
        previous_size = size
        await asyncio.sleep(0.1)
    raise AssertionError(f"{previous_size} bytes stay, and {most} are expected")


def test_a_batch_with_one_run_that_waits_survives(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await asyncio.gather(*(store.append(key, [record(0, 7)]) for key in KEYS[:50]))
        await asyncio.gather(*(store.prune(key, 0) for key in KEYS[1:50]))
        await store.close()
        await asyncio.to_thread(compact, settings, _compacted)
        again = await opened(settings)
        await again.rebuild()
        assert indexes(await again.scan(KEYS[0])) == [7]
        await again.prune(KEYS[0], 0)
        await again.close()
        await asyncio.to_thread(
            compact, settings, lambda records: _compacted(records) and removals_only(records)
        )

    run(body())


def test_batches_that_never_counted_are_removed(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        old = await opened(settings)
        await old.append(journal, [record(0, 1)])
        new = await opened(settings)
        with pytest.raises(Exception, match="took over"):
            await old.append(journal, [record(0, 2)])
        await new.append(journal, [record(0, 3)])
        await old.close()
        await new.close()
        stored_batches = await asyncio.to_thread(batches, settings)
        assert len(stored_batches) >= 2
        last = await opened(settings)
        await last.rebuild()
        assert indexes(await last.scan(journal)) == [1, 3]
        await last.close()
        stored_batches = await asyncio.to_thread(batches, settings)
        assert [
            stored_record.index
            for raw in stored_batches
            for entry in raw.entries or ()
            for stored_record in entry.records
        ] == [1, 3]

    run(body())


def test_few_removals_of_a_batch_are_written_anew(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await append_and_prune(store, 0)
        large_keys = {
            stored_batch.key
            for stored_batch in await asyncio.to_thread(batches, settings)
            if len(stored_batch.entries or ()) >= 40
        }
        assert large_keys, "no batch is large enough"
        # All but each tenth, so that each batch is needed for a few.
        many = [key for number, key in enumerate(KEYS) if number % 10 != 9]
        await asyncio.gather(*(store.append(key, [record(1)]) for key in many))
        await asyncio.gather(*(store.prune(key, 1) for key in many))
        while large_keys & {stored_batch.key for stored_batch in await asyncio.to_thread(batches, settings)}:
            pass
        again = await opened(settings)
        await again.rebuild()
        assert await again.pruned_through(KEYS[0]) == 1
        assert await again.pruned_through(KEYS[-1]) == 0
        await store.close()
        await again.close()

    run(body())


# -- the counting, without a broker -------------------------------------------------------


def entry(name: str, *seqs: int, through: int | None = None) -> Entry:
    return Entry(JournalKey("job", name), [record(seq) for seq in seqs], through)


def batch(token: str, number: int) -> Batch:
    return Batch(0, BatchKey(token, number))


def test_two_who_write_the_same_removal_anew_keep_one_of_them() -> None:
    """Each of them has its own first, and then sees that of the other."""
    first = Garbage()
    second = Garbage()
    old = batch("old", 0)
    mine = batch("a", 0)
    theirs = batch("b", 0)
    for garbage in (first, second):
        garbage.add_batch(old, 0, [entry("x", through=5)])
    first.add_batch(mine, 1, [entry("x", through=5)])
    second.add_batch(theirs, 2, [entry("x", through=5)])
    first.add_batch(theirs, 2, [entry("x", through=5)])
    second.add_batch(mine, 1, [entry("x", through=5)])
    dead = {*first.take_dead(), *second.take_dead()}
    assert old in dead
    assert theirs not in dead


def test_what_is_counted_again_counts_once() -> None:
    garbage = Garbage()
    for _ in range(2):
        garbage.add_batch(batch("a", 0), 0, [entry("x", 1), entry("y", 1)])
    garbage.add_batch(batch("a", 1), 1, [entry("x", through=1)])
    assert garbage.take_dead() == []
    garbage.add_batch(batch("a", 2), 2, [entry("y", through=1)])
    assert garbage.take_dead() == [batch("a", 0)]


def test_older_batches_may_be_counted_later() -> None:
    garbage = Garbage()
    garbage.add_batch(batch("a", 3), 3, [entry("x", through=5), entry("y", 0)])
    garbage.add_batch(batch("a", 1), 1, [entry("x", 3, 4), entry("x", through=2)])
    assert garbage.take_dead() == [batch("a", 1)]
    garbage.add_batch(batch("a", 2), 2, [entry("x", 5, 6)])
    assert garbage.take_dead() == []
    assert garbage.pruned_through(JournalKey("job", "x")) == 5


# -- all of it against a model ------------------------------------------------------------


class Model:
    """What must be found; all that is done is done here as well.

    Args:
        chosen: What is done.
        forgets: Whether the store may forget what was removed.
    """

    def __init__(self, chosen: random.Random, forgets: bool) -> None:
        self.chosen = chosen
        self.forgets = forgets
        self.journals = [JournalKey("job", f"s{number}") for number in range(12)]
        self.records: defaultdict[JournalKey, list[Record]] = defaultdict(list)
        self.pruned: defaultdict[JournalKey, int] = defaultdict(lambda: -1)
        self.last: defaultdict[JournalKey, int] = defaultdict(int)
        self.markers: dict[JournalKey, bytes] = {}

    def remaining_records(self, journal: JournalKey) -> list[Record]:
        """What was appended and not removed, in the order of a scan."""
        remaining_records = [
            stored_record
            for stored_record in self.records[journal]
            if stored_record.seq > self.pruned[journal]
        ]
        return sorted(remaining_records, key=lambda stored_record: stored_record.seq)

    async def append(self, store: KafkaStore, journal: JournalKey, number: int) -> None:
        later = self.last[journal] + (self.chosen.random() < 0.7)
        seq = self.last[journal] = max(later, self.pruned[journal] + 1)
        records = [record(seq, number), record(seq, -number)]
        self.records[journal] += records
        await store.append(journal, records)

    async def prune(self, store: KafkaStore, journal: JournalKey) -> None:
        if self.records[journal]:
            through = self.chosen.randrange(self.last[journal] + 1)
            self.pruned[journal] = max(self.pruned[journal], through)
            await store.prune(journal, through)

    async def work(self, store: KafkaStore) -> None:
        """Some rounds of appends and removals, each at a time."""
        for turn in range(4):
            appended = self.chosen.sample(self.journals, 8)
            await asyncio.gather(
                *(self.append(store, journal_key, 10 * turn + 1) for journal_key in appended)
            )
            for journal in self.journals:
                if not self.remaining_records(journal):
                    self.markers[journal] = store.recovery_marker(journal)
            pruned = self.chosen.sample(self.journals, 6)
            await asyncio.gather(*(self.prune(store, journal_key) for journal_key in pruned))

    async def check(self, store: KafkaStore) -> None:
        """Compare all."""
        for journal in self.journals:
            assert await store.scan(journal) == self.remaining_records(journal), journal
            pruned_through = await store.pruned_through(journal)
            assert pruned_through == self.pruned[journal] or (
                self.forgets and pruned_through < self.pruned[journal]
            )


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize(("seed", "removals"), [(0, 1000), (1, 1000), (2, 1000), (3, 0), (4, 0), (5, 8)])
def test_nothing_that_is_needed_is_ever_removed(settings: KafkaSettings, seed: int, removals: int) -> None:
    """Owners come and go, append and prune at random, and the broker compacts."""
    settings = replace(settings, removals=removals)
    chosen = random.Random(seed)
    model = Model(chosen, forgets=removals < 1000)

    async def body() -> None:
        for attempt in range(4):
            store = await opened(settings)
            for journal in chosen.sample(model.journals, 6):
                await store.rebuild(journal, model.markers.get(journal))
                assert await store.scan(journal) == model.remaining_records(journal)
            if chosen.random() < 0.5:
                await store.rebuild()
            await model.work(store)
            await store.rebuild()
            await model.check(store)
            if chosen.random() < 0.5:
                await store.close()
            else:
                store.kill()
            if attempt % 2:
                await asyncio.to_thread(compact, settings, lambda records: _gap(records))
        looking = KafkaStore(settings)
        await looking.open(None)
        await looking.rebuild()
        await model.check(looking)
        await looking.close()

    run(body())


def _gap(found: list[Raw]) -> bool:
    """Whether something was compacted away."""
    offsets = defaultdict(list)
    for raw_record in found:
        offsets[raw_record.partition].append(raw_record.offset)
    return any(
        partition_offsets[-1] - partition_offsets[0] >= len(partition_offsets)
        for partition_offsets in offsets.values()
        if partition_offsets
    )
