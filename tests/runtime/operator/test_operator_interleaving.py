"""Parts of interleaving whose defects no whole run shows."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import CallIdentity, CallRecord
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import Suspension

pytestmark = pytest.mark.own_conditions

CODEC = ValueCodec(False)


def journal_of(records: list[Record], suspension: Suspension) -> RunJournal:
    arguments: dict[str, Any] = {"store": None, "codec": CODEC, "journal": None, "seq": 0, "header": None}
    return RunJournal(records=records, suspension=suspension, **arguments)


def test_a_later_part_of_a_run_may_repeat_what_an_earlier_one_recorded() -> None:
    """Each part has its own records: two that are equal are two."""
    call = CallRecord(CallIdentity("effect", b""), CODEC.encode(1), None, 1, 0, 0)
    equal = Record(RecordKind.CALL, 0, "act", 0, call.pack(CODEC))
    frees_key = Suspension(0, 0, 1, records=[equal], input=b"input")
    keeps_its_key = Suspension(0, 0, 1, records=[equal])
    assert journal_of([equal], frees_key).records == [equal, equal]
    assert journal_of([equal], keeps_its_key).records == [equal]
