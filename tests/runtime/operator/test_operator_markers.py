"""Markers in heads of keys: a store that reads only what lies behind them finds all that is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from durable_tools import EFFECTS, effect_async, forget, one_action
from typing_extensions import override

from flink_agents import InputEvent, OutputEvent
from flink_agents.api.action_state import JournalKey, Record
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.harness import Snapshot

pytestmark = pytest.mark.executes_once

Log = list[tuple[JournalKey, Record]]


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


class Positions(MemoryStore):
    """A store whose markers are positions in a log, as those of Kafka are.

    Args:
        place: Its records.
        log: The same records in the order of their appends, of all keys.
    """

    def __init__(self, place: MemoryPlace, log: Log) -> None:
        super().__init__(place)
        self._log = log
        self._starts: dict[JournalKey, int] = {}

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, records)
        self._log += [(journal, record) for record in records]

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        return b"%d" % len(self._log)

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        behind = self._log[int(marker or b"0") :]
        return super().may_have(journal) and any(stored_journal == journal for stored_journal, _ in behind)

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        assert journal is not None
        self._starts[journal] = int(marker or b"0")

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        behind = self._log[self._starts.get(journal, 0) :]
        records = await super().scan(journal, from_seq, to_seq)
        return [record for record in records if (journal, record) in behind]


async def act(event: InputEvent, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(effect_async, event.input)
    return OutputEvent(output=event.input)


def harness_of(log: Log) -> OperatorHarness:
    place = MemoryPlace()
    return OperatorHarness(
        one_action(act),
        lambda record: record[0],
        store=lambda: Positions(place, log),
        auto_run=False,
    )


def marker_of(snapshot: Snapshot) -> bytes | None:
    [state] = snapshot.keys.values()
    assert state.head is not None
    return Head.unpack(state.head).marker


def test_records_of_runs_whose_inputs_come_later_stay_behind_the_marker() -> None:
    log: Log = []
    with harness_of(log) as harness:
        snapshot = harness.snapshot()
        harness.push_all(["ka", "kb"])
        harness.run_until_idle()
        harness.restore(snapshot)
        for name in ("ka", "kb"):
            harness.push(name)
            harness.run_until_idle()
            harness.restore(harness.snapshot())
        harness.run_until_idle()
    assert sorted(EFFECTS) == ["ka", "kb"]


def test_the_marker_of_a_key_lies_behind_its_committed_runs() -> None:
    """A restore then reads nothing of them."""
    log: Log = []
    with harness_of(log) as harness:
        for name in ("ka", "kb"):
            harness.push(name)
            harness.run_until_idle()
            assert marker_of(harness.snapshot()) == b"%d" % len(log)
