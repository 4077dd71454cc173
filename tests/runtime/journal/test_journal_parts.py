"""Parts of the journal whose defects no whole run shows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import StateFormatError
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.runtime.journal.calls import (
    ExecutionOutcomes,
    Mismatch,
    Number,
    Outcome,
    StepRecords,
)
from flink_agents.runtime.journal.memory_reads import ReadLog, TracedTree, overlaid, recorded_reads
from flink_agents.runtime.journal.order import InputOrder, RecordedRuns
from flink_agents.runtime.journal.other_jobs import Origin, identity_of, inherited
from flink_agents.runtime.journal.records import LAYOUT, CallIdentity, CallRecord, RunHeader
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.codec import ValueCodec

CODEC = ValueCodec(False)
KEY = JournalKey("job", "key")


class Appended:
    """Stands for a store: it keeps the records of each append."""

    def __init__(self, limit: int = 1000) -> None:
        self.max_record_bytes = limit
        self.appends: list[list[Record]] = []

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        self.appends.append(list(records))

    @property
    def kinds(self) -> list[list[RecordKind]]:
        return [[record.kind for record in records] for records in self.appends]


def done(appending: Awaitable[None]) -> None:
    """Run what awaits nothing but the store."""

    async def run() -> None:
        await appending

    asyncio.run(run())


def header(seq: int, digest: bytes, job: str = "", **fields: Any) -> Record:
    return Record(RecordKind.RUN, seq, job, 0, RunHeader(digest, 1, "plan", **fields).pack(CODEC))


def first_header() -> RunHeader:
    return RunHeader(b"input", 1, "plan")


def nth(place: int) -> Number:
    return Number(RecordKind.CALL, "", place)


def call(function: str = "effect", order: int = 0, error: dict[str, Any] | None = None) -> CallRecord:
    value = CODEC.encode(1) if error is None else None
    return CallRecord(CallIdentity(function, b""), value, error, 1, 0, order)


def test_a_fork_takes_over_as_many_equal_runs_as_it_has_inputs() -> None:
    records = [header(seq, b"equal") for seq in range(3)] + [header(3, b"other")]
    inherited_records = inherited(CODEC, records, Origin("first", None, Counter({b"equal": 2})))
    assert [record.seq for record in inherited_records] == [0, 1]


def test_a_run_keeps_the_identity_of_the_job_that_it_began_in() -> None:
    once = inherited(CODEC, [header(0, b"input")], Origin("first", None, Counter([b"input"])))
    twice = inherited(CODEC, once, Origin("second", None, Counter([b"input"])))
    assert (identity_of(once), identity_of(twice)) == ("first", "first")


def test_an_object_that_was_read_has_no_other_fields_than_it_had() -> None:
    current_fields: dict[str, bytes | None] = {"object.new": b"1", "object.kept": b"2", "objects": b"3"}
    read = [("object", {"object.kept": b"old"})]
    assert overlaid(current_fields, read) == {"object.kept": b"old", "objects": b"3"}


def test_the_first_mismatch_of_an_execution_stays() -> None:
    calls = ExecutionOutcomes(StepRecords())
    first, second = (Mismatch.__new__(Mismatch) for _ in range(2))
    assert calls.note_mismatch(first) is first
    assert calls.note_mismatch(second) is first and calls.mismatch is first


def test_outcomes_of_a_cancelled_append_are_taken_once() -> None:
    """The next attempt of the action stores them before it begins: the calls are not made again."""
    calls = ExecutionOutcomes(StepRecords())
    number = calls.number(RecordKind.CALL, "")
    calls.note_unsure({number: call()})
    assert calls.take_unsure() == {number: call()}
    assert calls.take_unsure() == {}


def test_what_a_run_has_read_is_kept_once() -> None:
    log = ReadLog()
    journal = RunJournal(None, CODEC, None, 0, first_header, log=log)
    log.node("count", CODEC.encode(1))
    journal.keep_reads()
    journal.keep_reads()
    assert len(journal.records) == 1
    log.node("total", CODEC.encode(2))
    journal.keep_reads()
    assert len(journal.records) == 2


def test_the_order_of_outcomes() -> None:
    """A replay delivers what the action had seen; what ends now ends behind all of that."""
    outcomes: dict[Number, Outcome] = {
        nth(0): call(order=0),
        nth(1): call(order=2),
        nth(2): call(order=1),
    }
    records = StepRecords(outcomes=outcomes)
    assert [number.nth for number, _ in records.in_order()] == [0, 2, 1]
    calls = ExecutionOutcomes(records)
    assert (calls.next_place(), calls.next_place()) == (3, 4)


def is_no_former(recorded: CallIdentity) -> bool:
    return False


def test_a_call_whose_begin_was_recorded_as_another_one_is_not_made() -> None:
    calls = ExecutionOutcomes(StepRecords(intents={nth(0): CallIdentity("other", b"")}))
    with pytest.raises(Mismatch, match="other"):
        calls.match_call("", CallIdentity("effect", b""), is_no_former)


def test_a_reconciler_is_asked_if_the_begin_of_a_call_was_recorded() -> None:
    identity = CallIdentity("effect", b"")
    calls = ExecutionOutcomes(StepRecords(intents={nth(0): identity}))
    assert [calls.match_call("", identity, is_no_former)[2] for _ in range(2)] == [True, False]


def test_what_a_run_has_kept_is_stored_once() -> None:
    """How waits ended goes to the store with the next record, and only with that one."""
    store = Appended()
    journal = RunJournal(store, CODEC, KEY, 0, first_header)  # pyright: ignore[reportArgumentType]
    journal.has_waits = True
    journal.keep_outcomes("act", {nth(0): call(order=0)})
    assert journal.unstored == [0]
    done(journal.add_outcomes("act", {nth(1): call(order=1)}))
    done(journal.add_outcomes("act", {nth(2): call(order=2)}))
    assert journal.unstored == []
    assert store.kinds == [[RecordKind.RUN, RecordKind.CALL, RecordKind.CALL], [RecordKind.CALL]]


def test_what_a_run_reads_is_recorded_once_and_in_records_of_its_own() -> None:
    """What it reads later does not take the place of what it read first, not even in parts."""
    store = Appended(limit=80)
    log = ReadLog()
    journal = RunJournal(store, CODEC, KEY, 0, first_header, log=log)  # pyright: ignore[reportArgumentType]
    log.node("first", b"1" * 50)
    log.node("second", b"2")
    done(journal.add_outcomes("act", {nth(0): call()}))
    done(journal.add_outcomes("act", {nth(1): call()}))
    log.node("third", b"3" * 50)
    done(journal.add_outcomes("act", {nth(2): call()}))
    stored = [record for records in store.appends for record in records]
    assert recorded_reads(CODEC, stored) == [
        ("first", b"1" * 50),
        ("second", b"2"),
        ("third", b"3" * 50),
    ]
    assert len({(record.kind, record.step, record.index) for record in stored}) == len(stored)


def test_a_run_with_a_header_gets_no_other_one() -> None:
    store: Any = Appended()
    journal = RunJournal(store, CODEC, KEY, 0, first_header, [header(0, b"input")])
    done(journal.add_outcomes("act", {nth(0): call()}))
    assert store.kinds == [[RecordKind.CALL]]


@pytest.mark.parametrize(
    "fields", [[LAYOUT + 1, b"digest", 1, "plan", None, None, 0], [LAYOUT, b"digest"], 5]
)
def test_a_record_of_another_layout_is_a_named_error(fields: Any) -> None:
    with pytest.raises(StateFormatError, match="a record of a journal cannot be read") as caught:
        RunHeader.unpack(CODEC, CODEC.encode(fields))
    assert caught.value.expected == f"the layout {LAYOUT}, and 6 fields"


def test_memory_that_a_run_wrote_itself_is_none_that_it_read() -> None:
    cached_values: dict[str, bytes | None] = {"before": CODEC.encode(1)}
    tree = TracedTree(MemoryScope.SHORT_TERM, CODEC, None, [], cached=cached_values)
    tree.write_node("own", CODEC.encode(2))
    read = tree.log.reads.copy()
    assert (tree.raw("own"), tree.raw("before")) == (CODEC.encode(2), CODEC.encode(1))
    assert tree.log.reads == [*read, ("before", CODEC.encode(1))]


def test_a_replay_writes_what_memory_has_already() -> None:
    """State may be that of behind the write, or its entry may expire before the commit."""
    for replays in (False, True):
        cached_values: dict[str, bytes | None] = {"total": CODEC.encode(1)}
        tree = TracedTree(MemoryScope.SHORT_TERM, CODEC, None, [], cached=cached_values)
        if replays:
            tree.replay([("total", CODEC.encode(1))])
        tree.write_node("total", CODEC.encode(1))
        assert bool(tree.changes()) is replays


def test_equal_inputs_get_records_in_the_order_of_their_runs() -> None:
    runs = RecordedRuns(CODEC, [header(seq, b"equal") for seq in range(3)])
    assert [runs.claim(b"equal") for _ in range(4)] == [0, 1, 2, None]


def test_an_input_does_not_get_the_records_of_a_run_that_was_resumed() -> None:
    runs = RecordedRuns(CODEC, [header(seq, b"equal") for seq in range(2)])
    assert [record.seq for record in runs.resume(0)] == [0]
    assert [runs.claim(b"equal") for _ in range(2)] == [1, None]


def test_runs_that_were_overtaken_are_not_waited_for() -> None:
    """Neither those of which state says so, nor those that the input at hand overtakes."""
    runs = RecordedRuns(CODEC, [header(seq, b"%d" % seq) for seq in range(3)], skipped=[0])
    assert (runs.first, list(runs.awaited)) == (1, [1, 2])
    order = InputOrder(runs, 0)
    order.examine_input(b"2")
    assert order.next(3, waiting=True) is None
    choice = order.next(3, waiting=False)
    assert choice is not None and (choice.seq, choice.skips) == (2, (1,))
    assert [record.seq for record in order.start_run(choice)] == [2]
    assert (runs.first, runs.skipped) == (None, {0, 1})
