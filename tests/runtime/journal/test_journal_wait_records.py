"""The bytes of records of waits."""

from __future__ import annotations

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import WaitRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import StoredPause, Suspension

CODEC = ValueCodec()


def test_all_of_a_record_is_read_again() -> None:
    record = WaitRecord("signal 'a'", 5, 0, 7, "signal", "id 1", b"x", "a", "k|0|0/ask||0")
    assert WaitRecord.unpack(CODEC, record.pack(CODEC)) == record
    timer = WaitRecord("a timer", 5, 0, 7)
    assert WaitRecord.unpack(CODEC, timer.pack(CODEC)) == timer


def test_the_deadline_of_a_run_is_no_part_of_what_is_left_of_it() -> None:
    record = Record(RecordKind.WAIT, 3, "0/ask", 0, b"")
    waits = [StoredPause("0/ask", "", 0, 50)]
    suspension = Suspension(2, 3, 10, "plan", [record], [0], True, True, waits, {}, {}, last_deadline=40)
    assert suspension.due == 40
    again = Suspension.unpack(suspension.pack())
    assert (again.last_deadline, again.due) == (None, 50)
