"""Parts of the journal whose defects no whole run shows."""

from __future__ import annotations

from collections import Counter

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.calls import Mismatch, StepCalls, StepRecords
from flink_agents.runtime.journal.kept import KeptJournal
from flink_agents.runtime.journal.other_jobs import Origin, identity_of, inherited
from flink_agents.runtime.journal.reads import ReadLog, overlaid
from flink_agents.runtime.journal.records import CallIdentity, CallRecord, RunHeader
from flink_agents.runtime.serde.codec import ValueCodec

CODEC = ValueCodec(False)


def header(seq: int, digest: bytes, job: str = "") -> Record:
    return Record(RecordKind.RUN, seq, job, 0, RunHeader(digest, 1, "plan").pack(CODEC))


def test_a_fork_takes_over_as_many_equal_runs_as_it_has_inputs() -> None:
    records = [header(seq, b"equal") for seq in range(3)] + [header(3, b"other")]
    taken = inherited(CODEC, records, Origin("first", None, Counter({b"equal": 2})))
    assert [record.seq for record in taken] == [0, 1]


def test_a_run_keeps_the_identity_of_the_job_that_it_began_in() -> None:
    once = inherited(CODEC, [header(0, b"input")], Origin("first", None, Counter([b"input"])))
    twice = inherited(CODEC, once, Origin("second", None, Counter([b"input"])))
    assert (identity_of(once), identity_of(twice)) == ("first", "first")


def test_an_object_that_was_read_has_no_other_fields_than_it_had() -> None:
    known: dict[str, bytes | None] = {"object.new": b"1", "object.kept": b"2", "objects": b"3"}
    read = [("object", {"object.kept": b"old"})]
    assert overlaid(known, read) == {"object.kept": b"old", "objects": b"3"}


def test_the_first_mismatch_of_an_execution_stays() -> None:
    calls = StepCalls(StepRecords())
    first, second = (Mismatch.__new__(Mismatch) for _ in range(2))
    assert calls.refuse(first) is first
    assert calls.refuse(second) is first and calls.mismatch is first


def test_outcomes_of_a_cancelled_append_are_taken_once() -> None:
    """The next attempt of the action stores them before it begins: the calls are not made again."""
    calls = StepCalls(StepRecords())
    number = calls.number(RecordKind.CALL, "")
    call = CallRecord(CallIdentity("effect", b""), CODEC.encode(1), None, 1, 0)
    calls.unsure[number] = call
    assert calls.take_unsure() == {number: call}
    assert calls.take_unsure() == {}


def test_what_a_run_has_read_is_kept_once() -> None:
    log = ReadLog()
    journal = KeptJournal(None, CODEC, None, 0, lambda: RunHeader(b"input", 1, "plan"), log=log)
    log.node("count", CODEC.encode(1))
    journal.keep_reads()
    journal.keep_reads()
    assert len(journal.kept) == 1
    log.node("total", CODEC.encode(2))
    journal.keep_reads()
    assert len(journal.kept) == 2
