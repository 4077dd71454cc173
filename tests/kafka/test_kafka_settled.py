"""What is settled is let go of, and nothing of what is needed: without a broker, at chosen moments."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey, Owner
from flink_agents.connectors.action_state.kafka import scan
from flink_agents.connectors.action_state.kafka.garbage import Batch, Garbage
from flink_agents.connectors.action_state.kafka.layout import BatchKey, Entry, pack_key, partition_of
from flink_agents.connectors.action_state.kafka.remembered import Dated, Remembered
from tests.kafka import kafka_logs
from tests.kafka.kafka_logs import Log, packed, scanner_of
from tests.kafka.kafka_stores import record

GROUP = "orders/agent"


class Attempt:
    """What an owner keeps in memory, and does with a log: as the writer and the store do.

    Args:
        patch: Gives the scanner its consumer.
        log: The topic.
        remembered: Which removals are kept.
    """

    def __init__(self, patch: pytest.MonkeyPatch, log: Log, remembered: Remembered) -> None:
        self.log = log
        self.owner = Owner.create("job", GROUP)
        self.garbage = Garbage(remembered, self.owner.token)
        self.scanner = scanner_of(patch, log, self.garbage, self.owner.token)
        self.settled: list[tuple[JournalKey, int]] = []
        self._numbers = itertools.count()

    def write(self, *entries: Entry) -> None:
        """Write entries of one partition."""
        partition = partition_of(entries[0].journal, len(self.log.partitions))
        key = BatchKey(self.owner.token, next(self._numbers))
        offset = self.log.append(partition, pack_key(key), packed(entries))
        self.garbage.add_batch(Batch(partition, key), offset, entries)
        self.settled += [(entry.journal, entry.through) for entry in entries if entry.through is not None]

    def prune(self, *entries: Entry) -> None:
        """Remove runs, of journals of which it is known that there are some."""
        for entry in entries:
            if not self.garbage.knows(entry.journal):
                self.scanner.read_from({partition_of(entry.journal, len(self.log.partitions)): 0})
        if known_entries := [entry for entry in entries if self.garbage.knows(entry.journal)]:
            self.write(*known_entries)

    def remove_dead(self) -> None:
        for batch in self.garbage.take_dead():
            self.log.append(batch.partition, pack_key(batch.key), None)

    def write_sparse(self) -> None:
        entries_by_partition: dict[int, list[Entry]] = defaultdict(list)
        for journal, through in self.garbage.take_sparse(100, self.owner):
            partition = partition_of(journal, len(self.log.partitions))
            entries_by_partition[partition].append(
                Entry(journal, (), through, self.garbage.removal_start(journal))
            )
        for entries in entries_by_partition.values():
            self.write(*entries)

    def tidy(self) -> None:
        settled = self.settled
        self.settled = []
        self.scanner.drop_pruned(settled)

    def let_go(self) -> None:
        """All that an owner does by and by."""
        self.tidy()
        self.remove_dead()
        self.write_sparse()
        self.remove_dead()


class World:
    """A log, what was done, and what must be found."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch, partitions: int, latest: int) -> None:
        self.chosen = random.Random(seed)
        self.patch = patch
        self.log = Log(partitions)
        self.log.between = self.clean
        self.latest = latest
        self.left: dict[JournalKey, list[tuple[int, int]]] = defaultdict(list)
        self.pruned: dict[JournalKey, int] = {}
        # When each journal was last pruned.
        self.order: dict[JournalKey, int] = {}
        self.numbers = itertools.count()
        self.attempt = self.begin()

    def clean(self) -> None:
        """Compact while somebody reads, who has time to see what was removed."""
        if self.chosen.random() < 0.3:
            partition = self.chosen.randrange(len(self.log.partitions))
            self.log.compact(partition, self.log.ends[partition], and_removals=False)

    def begin(self) -> Attempt:
        self.attempt = Attempt(self.patch, self.log, Remembered(self.latest, self.latest))
        return self.attempt

    def choose_journals(self, partition: int) -> list[JournalKey]:
        """Some journals: a few that come often, and one that never came before."""
        names = (f"s{next(self.numbers)}" for _ in itertools.count())
        new = next(
            JournalKey(GROUP, name)
            for name in names
            if partition_of(JournalKey(GROUP, name), len(self.log.partitions)) == partition
        )
        partition_journals = [
            journal for journal in self.left if partition_of(journal, len(self.log.partitions)) == partition
        ]
        return [
            new,
            *self.chosen.sample(
                partition_journals[-30:] + partition_journals[:3], min(4, len(partition_journals))
            ),
        ]

    def step(self) -> None:
        partition = self.chosen.randrange(len(self.log.partitions))
        journals = self.choose_journals(partition)
        done = self.chosen.random()
        if done < 0.4:
            self.append(journals)
        elif done < 0.75:
            self.prune(journals)
        elif done < 0.8:
            self.attempt.let_go()
        elif done < 0.86:
            self.chosen.choice([self.attempt.tidy, self.attempt.remove_dead, self.attempt.write_sparse])()
        elif done < 0.92:
            self.attempt.scanner.read_from(
                {partition: self.chosen.choice([0, self.log.ends[partition] // 2])}
            )
        elif done < 0.97:
            through = self.chosen.randrange(self.log.ends[partition] + 1)
            self.log.compact(partition, through, self.chosen.random() < 0.7)
        else:
            if self.chosen.random() < 0.5:
                self.check_memory()
            self.begin()

    def append(self, journals: list[JournalKey]) -> None:
        entries: list[Entry] = []
        for journal in journals:
            last = max((seq for seq, _ in self.left[journal]), default=self.pruned.get(journal, -1))
            seq = max(self.pruned.get(journal, -1) + 1, last + self.chosen.randrange(2))
            index = next(self.numbers)
            self.left[journal].append((seq, index))
            entries.append(Entry(journal, [record(seq, index)]))
        self.attempt.write(*entries)

    def prune(self, journals: list[JournalKey]) -> None:
        entries: list[Entry] = []
        for journal in journals:
            if self.left.get(journal):
                through = self.chosen.choice(self.left[journal])[0]
                self.pruned[journal] = through
                self.order[journal] = next(self.numbers)
                self.left[journal] = [pair for pair in self.left[journal] if pair[0] > through]
                entries.append(Entry(journal, (), through))
        if entries:
            self.attempt.prune(*entries)

    def check_memory(self) -> None:
        """Compare with what the attempt has read and kept."""
        self.attempt.tidy()
        self.attempt.scanner.read_from(dict.fromkeys(range(len(self.log.partitions)), 0))
        self.compare(self.attempt.scanner)

    def compare(self, scanner: scan.Scanner) -> None:
        for journal, remaining_pairs in self.left.items():
            scanned_pairs = [
                (stored_record.seq, stored_record.index)
                for stored_record in scanner.index.scan(journal, None, None)
            ]
            assert scanned_pairs == sorted(remaining_pairs, key=lambda pair: pair[0]), journal

    def check(self) -> None:
        """Have somebody read all who knows nothing."""
        scanner = scanner_of(self.patch, self.log, garbage := Garbage(), None)
        scanner.read_from(dict.fromkeys(range(len(self.log.partitions)), 0))
        self.compare(scanner)
        for journal in self.left:
            assert garbage.pruned_through(journal) in {-1, *range(self.pruned.get(journal, -1) + 1)}
        for partition in range(len(self.log.partitions)):
            partition_journals = [
                candidate
                for candidate in self.order
                if partition_of(candidate, len(self.log.partitions)) == partition
            ]
            for journal in sorted(partition_journals, key=lambda candidate: self.order[candidate])[
                -self.latest :
            ]:
                # All in one batch are as old as each other.
                same = 5
                if (
                    self.order[journal]
                    in sorted(self.order[candidate] for candidate in partition_journals)[
                        -self.latest + same :
                    ]
                ):
                    assert garbage.pruned_through(journal) == self.pruned[journal]


@pytest.mark.nightly(beyond=10)
@pytest.mark.parametrize("seed", range(40))
def test_what_is_needed_is_found_whatever_is_let_go_of(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts write, remove, read from anywhere, tidy up, die after any step; the log is compacted."""
    monkeypatch.setattr(scan, "HELD_BYTES", random.Random(seed).choice([0, 300, 10**9]))
    monkeypatch.setattr(scan, "FREE_EACH", random.Random(seed).choice([1, 10, 10**9]))
    world = World(seed, monkeypatch, partitions=2, latest=12)
    for step in range(400):
        world.step()
        if step % 40 == 39:
            world.check()


def settle(attempt: Attempt, number: int, before: list[JournalKey]) -> list[JournalKey]:
    """A hundred keys that come once each: a run, and its removal beside the runs of those that come next.

    Args:
        attempt: Who writes.
        number: The first of them.
        before: Those that are removed first; returns those that are left.
    """
    for start in range(number, number + 100, 10):
        journals = [JournalKey(GROUP, f"s{index}") for index in range(start, start + 10)]
        runs = [Entry(journal, [record()]) for journal in journals]
        attempt.write(*runs, *(Entry(journal, (), 0) for journal in before))
        before = journals
        attempt.let_go()
    return before


def sizes(attempt: Attempt) -> dict[str, int]:
    """How much each collection of an owner has."""
    parts = {"garbage": attempt.garbage, "scanner": attempt.scanner, "index": attempt.scanner.index}
    return {
        f"{name}.{field}": len(value)
        for name, part in parts.items()
        for field, value in vars(part).items()
        if isinstance(value, (dict, set, list))
    }


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("stuck", [0, 1, 30])
@pytest.mark.parametrize("restarts", [False, True])
def test_memory_and_log_do_not_grow_with_keys_that_come_once(
    monkeypatch: pytest.MonkeyPatch, stuck: int, restarts: bool
) -> None:
    """Also while runs wait for ever whose batches have records of many others."""
    log = Log(1)
    attempt = Attempt(monkeypatch, log, Remembered(100, 100))
    waiting = [JournalKey(GROUP, f"waiting-{number}") for number in range(stuck)]
    previous_journals: list[JournalKey] = []
    for number, journal in enumerate(waiting):
        other_journals = [JournalKey(GROUP, f"beside-{number}-{index}") for index in range(20)]
        attempt.write(*(Entry(written_journal, [record()]) for written_journal in [journal, *other_journals]))
        previous_journals += other_journals
    samples: list[dict[str, int]] = []
    for number in range(0, 6000, 100):
        previous_journals = settle(attempt, number, previous_journals)
        if restarts:
            attempt = Attempt(monkeypatch, log, Remembered(100, 100))
            attempt.scanner.read_from({0: 0})
        log.compact(0, log.ends[0], and_removals=True)
        samples.append({**sizes(attempt), "log": log.bytes()})
    early = {name: max(sample[name] for sample in samples[10:20]) for name in samples[0]}
    late = {name: max(sample[name] for sample in samples[-10:]) for name in samples[0]}
    assert {name: (early[name], late[name]) for name in late if late[name] > 1.5 * early[name] + 60} == {}
    scanner = scanner_of(monkeypatch, log, Garbage(), None)
    scanner.read_from({0: 0})
    assert all(len(scanner.index.scan(journal, None, None)) == 1 for journal in waiting)


def test_a_restart_reads_what_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted is what is looked into, also where nothing was compacted."""
    looked = 0
    unpack = scan.unpack_batch

    def counted(data: bytes) -> list[Entry]:
        nonlocal looked
        entries = unpack(data)
        looked += len(entries)
        return entries

    monkeypatch.setattr(scan, "unpack_batch", counted)
    counts: list[int] = []
    log = Log(1)
    attempt = Attempt(monkeypatch, log, Remembered(100, 100))
    previous_journals: list[JournalKey] = []
    for number in range(0, 4000, 100):
        previous_journals = settle(attempt, number, previous_journals)
        if number + 100 in (1000, 2000, 4000):
            looked = 0
            again = Attempt(monkeypatch, log, Remembered(100, 100))
            again.scanner.read_from({0: 0})
            counts.append(looked)
            assert len(again.scanner.known_journals) <= 300
    assert max(counts) < 400, counts


def test_a_topic_with_a_long_history_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As former versions left it: nothing was ever forgotten. It is let go of while it is read."""
    monkeypatch.setattr(scan, "FREE_EACH", 100)
    monkeypatch.setattr(scan, "HELD_BYTES", 1000)
    log = Log(1)
    for number in range(500):
        removals = [Entry(JournalKey(GROUP, f"s{number}-{index}"), (), 0) for index in range(10)]
        log.append(0, pack_key(BatchKey("old", number)), packed(removals))
    most = 0
    attempt = Attempt(monkeypatch, log, Remembered(100, 100))
    add = attempt.garbage.add_batch

    def counted(batch: Batch, offset: int, entries: list[Entry]) -> None:
        nonlocal most
        add(batch, offset, entries)
        most = max(most, attempt.garbage.counts()["tombstones_kept"], len(attempt.scanner.known_journals))

    monkeypatch.setattr(attempt.garbage, "add_batch", counted)
    attempt.scanner.read_from({0: 0})
    attempt.let_go()
    assert most < 500
    log.compact(0, log.ends[0], and_removals=True)
    assert len(log.partitions[0]) < 50
    last = JournalKey(GROUP, "s499-3")
    assert attempt.garbage.pruned_through(last) == 0


@pytest.mark.parametrize("together", [True, False])
def test_of_a_journal_with_runs_it_stays_known_what_was_before_them(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    log = Log(1)
    journal = JournalKey(GROUP, "has runs")
    attempt = Attempt(monkeypatch, log, Remembered(20, 20))
    attempt.write(Entry(journal, [record(0)]))
    if together:
        attempt.write(Entry(journal, (), 0), Entry(journal, [record(1)]))
    else:
        attempt.write(Entry(journal, (), 0))
        attempt.write(Entry(journal, [record(1)]))
    previous_journals: list[JournalKey] = []
    for number in range(0, 1000, 100):
        previous_journals = settle(attempt, number, previous_journals)
        log.compact(0, log.ends[0], and_removals=True)
    again = Attempt(monkeypatch, log, Remembered(20, 20))
    again.scanner.read_from({0: 0})
    assert attempt.garbage.pruned_through(journal) == again.garbage.pruned_through(journal) == 0
    again.prune(Entry(journal, (), 1))
    for number in range(1000, 4000, 100):
        previous_journals = settle(again, number, previous_journals)
    assert again.garbage.pruned_through(journal) == NOTHING_PRUNED


@pytest.mark.parametrize("start", [0, 2, 4])
def test_what_is_removed_while_somebody_reads(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """The log cleaner may take a removal away behind the reader, who has seen what it removed."""
    monkeypatch.setattr(scan, "HELD_BYTES", -1)
    monkeypatch.setattr(kafka_logs, "POLLED", 1)
    log, journal = Log(1), JournalKey(GROUP, "s1")
    for key, value in [
        ("runs", packed([Entry(journal, [record()])])),
        ("removal", packed([Entry(journal, (), 0)])),
        ("runs", None),
        ("removal", None),
    ]:
        log.append(0, pack_key(BatchKey(key, 0)), value)
    log.append(0, pack_key(BatchKey("other", 0)), packed([Entry(JournalKey(GROUP, "s2"), [record()])]))
    garbage = Garbage()
    scanner = scanner_of(monkeypatch, log, garbage, "own")
    if start:
        scanner.read_from({0: start})
    log.between = lambda: log.compact(0, 5, and_removals=False)
    scanner.read_from({0: 0})
    assert scanner.index.scan(journal, None, None) == []
    assert len(scanner.index.scan(JournalKey(GROUP, "s2"), None, None)) == 1
    assert garbage.counts()["runs_kept"] == 1


def test_a_removal_that_is_written_anew_is_as_old_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(1)
    first = Attempt(monkeypatch, log, Remembered(1000, 1000))
    old = [JournalKey(GROUP, f"s{number}") for number in range(10)]
    first.write(*(Entry(journal, (), 3) for journal in old))
    first.write(*(Entry(journal, (), 4) for journal in old[:8]))
    (latest,) = {first.garbage.removal_start(journal) for journal in old[:8]}
    first.write_sparse()
    assert log.ends[0] == 3
    again = Attempt(monkeypatch, log, Remembered(1000, 1000))
    again.scanner.read_from({0: 0})
    for garbage in (first.garbage, again.garbage):
        assert [garbage.removal_start(journal) for journal in old] == [latest] * 8 + [0] * 2
        assert [garbage.pruned_through(journal) for journal in old] == [4] * 8 + [3] * 2


# -- which removals are remembered --------------------------------------------------------


def dated(number: int, own: bool = False) -> Dated:
    return Dated(number, own, JournalKey(GROUP, f"s{number}"))


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("look_each", [1, 7, 100])
def test_the_latest_are_remembered_and_of_older_ones_fewer_and_fewer(look_each: int) -> None:
    remembered = Remembered(1000, 1000)
    dated_by_journal: dict[JournalKey, Dated] = {}
    for number in range(200_000):
        next_journal = dated(number)
        dated_by_journal[next_journal.journal] = next_journal
        if remembered.is_over(0, len(dated_by_journal)) and number % look_each == 0:
            for journal in remembered.surplus_journals(dated_by_journal.values()):
                del dated_by_journal[journal]
            remembered.record_tombstones(0, len(dated_by_journal))
    for journal in remembered.surplus_journals(dated_by_journal.values()):
        del dated_by_journal[journal]
    numbers = sorted(dated_journal.since for dated_journal in dated_by_journal.values())
    assert numbers[-1000:] == list(range(199_000, 200_000))
    assert 1000 < len(dated_by_journal) < 1600
    # Some of each age: a state from then is found out.
    for oldest, newest in ((100_000, 150_000), (150_000, 180_000), (180_000, 190_000), (190_000, 199_000)):
        assert any(oldest <= number < newest for number in numbers)


def test_owners_share_what_is_remembered() -> None:
    remembered = Remembered(1000, 10)
    dated_journals = [dated(number) for number in range(100)] + [
        dated(number, own=True) for number in range(100, 200)
    ]
    surplus = {journal.key for journal in remembered.surplus_journals(dated_journals)}
    own_journals = [
        dated_journal
        for dated_journal in dated_journals
        if dated_journal.is_own and dated_journal.journal.key not in surplus
    ]
    assert {dated_journal.since for dated_journal in own_journals} >= set(range(190, 200))
    assert len(own_journals) < 40
    assert all(
        dated_journal.journal.key not in surplus
        for dated_journal in dated_journals
        if not dated_journal.is_own
    )


def test_two_who_look_agree() -> None:
    """A removal that is written anew stays as old as it was."""
    dated_journals = [dated(number) for number in range(5000)]
    mixed = random.Random(1).sample(dated_journals, len(dated_journals))
    assert set(Remembered(100, 100).surplus_journals(dated_journals)) == set(
        Remembered(100, 50).surplus_journals(mixed)
    )
