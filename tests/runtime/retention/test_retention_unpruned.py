"""Records of keys that never come again after a restart leave the store; what a restore asks for stays."""

from __future__ import annotations

from typing import Any

import pytest
from durable_tools import EFFECTS, effect_async, forget, one_action
from pruning_tools import Pruned, stored, wait_for

from flink_agents import OutputEvent
from flink_agents.api.action_state import JournalKey
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.operator.services import cleanup
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness


def pay(event: Any, ctx: Any) -> Any:
    """Ends on Flink's thread where the input says so; else it makes a durable call."""
    return OutputEvent(output=event.input) if event.input[1] == "-" else paid(event, ctx)


async def paid(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(effect_async, event.input))


class Positions(MemoryStore):
    """Its markers are positions, as those of a store in Kafka; writes down from where on it is to read.

    Args:
        place: Its records.
        may: Whether a key may have records behind its marker.
    """

    rebuilt: list[tuple[str, bytes | None]] = []

    def __init__(self, place: MemoryPlace, may: bool = True) -> None:
        super().__init__(place)
        self._may = may

    def recovery_marker(self, journal: JournalKey) -> bytes:
        return b"behind %d" % len(EFFECTS)

    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return self._may and super().may_have(journal, None, pending)

    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        if journal is not None:
            self.rebuilt.append((journal.key, marker))
        await super().rebuild(journal, None, pending)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()
    Positions.rebuilt.clear()


def harness_of(place: MemoryPlace, **options: Any) -> OperatorHarness:
    options = {"forced_replay": False, "forced_restart": False, "crash": None, **options}
    options.setdefault("store", lambda: MemoryStore(place))
    return OperatorHarness(one_action(pay), lambda word: word[0], **options)


def marked(harness: OperatorHarness) -> list[str]:
    """The keys that have a mark in state."""
    keys = {key for key in "abcdefgh" if harness.state(key).unpruned is not None}
    return sorted(keys)


def restarted(harness: OperatorHarness, **how: Any) -> None:
    """Restore a checkpoint of now, and let the operator do what it does without an input."""
    harness.restore(harness.checkpoint(), **how)
    harness.run_until_idle()


def test_a_key_that_never_comes_again_is_pruned(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = harness_of(place)
    harness.push_all(["a0", "b0", "b1"])
    assert marked(harness) == ["a", "b"]
    restarted(harness)
    for _ in range(2):
        pruners[-1].checkpoint()
    assert stored(place) == {"sa": ([0], -1), "sb": ([0, 1], -1)}, "an older checkpoint may be restored"
    for _ in range(3):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place) == {"sa": ([], 0), "sb": ([], 1)})
    harness.push("c0")
    assert marked(harness) == ["c"], "marks go when their records have gone"


def test_the_same_after_several_restarts_and_another_parallelism(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = harness_of(place, parallelism=2)
    harness.push_all([f"{key}0" for key in "abcdefgh"])
    for parallelism in (1, 3, 2):
        restarted(harness, parallelism=parallelism)
    for _ in range(5):
        for attempt in pruners[-2:]:
            attempt.poll()
        pruners[-1].checkpoint()
    for attempt in pruners[-2:]:
        attempt.poll()
    wait_for(lambda: {runs for runs, _ in map(_first, stored(place).values())} == {0})


def _first(kept: tuple[list[int], int]) -> tuple[int, int]:
    return len(kept[0]), kept[1]


def looks_at(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let a beat look at so many restored keys."""
    monkeypatch.setattr(cleanup.UnprunedKeys.report_restored, "__defaults__", (most,))


def commit(harness: OperatorHarness, word: str, number: int) -> None:
    """Push a word, and wait until so many runs of its key are committed."""
    harness.push(word)

    def committed() -> bool:
        harness.advance_time(100)
        return harness.sequence_number(word[0]) == number

    wait_for(committed)


@pytest.mark.parametrize("word", ["a-", "a1"])
def test_what_was_committed_since_the_restore_is_in_no_checkpoint(
    pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Where Flink is not asked, only what the restored checkpoint has is pruned, recorded or not."""
    place = MemoryPlace()
    harness = harness_of(place, store=lambda: Positions(place, may=False), auto_run=False)
    harness.push_all(["a0", "b0"])
    harness.run_until_idle()
    checkpoint = harness.checkpoint()
    looks_at(monkeypatch, 0)
    harness.restore(checkpoint)
    commit(harness, word, 2)
    looks_at(monkeypatch, 100)
    harness.advance_time(1000)
    pruners[-1].fail()
    wait_for(lambda: stored(place)["sb"] == ([], 0))
    assert stored(place)["sa"][1] == -1
    harness.restore(checkpoint)
    harness.push("a2")
    harness.run_until_idle()
    assert harness.outputs == ["a0", "b0", "a2"]


def test_the_mark_of_an_earlier_attempt_stays(pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    harness = harness_of(place, store=lambda: Positions(place))
    harness.push("a0")
    first = harness.state("a").unpruned
    checkpoint = harness.checkpoint()
    looks_at(monkeypatch, 0)
    harness._runs_at_once = False
    harness.restore(checkpoint)
    commit(harness, "a1", 2)
    assert harness.state("a").unpruned == first
    looks_at(monkeypatch, 100)
    harness.advance_time(1000)
    Positions.rebuilt.clear()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 1))
    assert ("sa", (first or b"")[1:]) in Positions.rebuilt, "the first records lie before what was read"


def test_a_mark_is_written_once_and_goes_with_the_last_commit(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = harness_of(place)
    harness.push("a0")
    first = harness.state("a").unpruned
    harness.push("a1")
    assert harness.state("a").unpruned == first
    pruners[-1].checkpoint()
    harness.push("a2")
    for _ in range(2):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"][1] == 1)
    harness.push("b0")
    assert marked(harness) == ["a", "b"], "run 2 has records"
    for _ in range(4):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"][1] == 2)
    harness.push("b1")
    assert marked(harness) == ["b"]
    harness.push("a3")
    assert marked(harness) == ["a", "b"]


def test_keys_without_records_have_no_mark(pruners: list[Pruned]) -> None:
    harness = harness_of(MemoryPlace())
    harness.push_all(["a-", "b-", "c0"])
    assert marked(harness) == ["c"]


def test_restored_keys_are_looked_at_a_few_at_a_time(
    pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_at(monkeypatch, 3)
    place = MemoryPlace()
    harness = harness_of(place)
    harness.push_all([f"{key}0" for key in "abcdefgh"])
    harness._runs_at_once = False
    harness.restore(harness.checkpoint())
    harness.advance_time(0)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 3
    harness.advance_time(10)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 8


def test_there_are_not_more_marks_than_so_many(
    pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "MOST_MARKED", 2)
    harness = harness_of(MemoryPlace())
    harness.push_all(["a0", "b0", "c0", "a1"])
    assert marked(harness) == ["a", "b"]


def test_records_are_read_from_where_they_begin(pruners: list[Pruned]) -> None:
    """A store that reads from a position on need not read all that it has."""
    place = MemoryPlace()
    harness = harness_of(place, store=lambda: Positions(place))
    harness.push("a0")
    marker = harness.state("a").unpruned
    # It lies before the first record of the key, whatever the head says by now.
    assert marker is not None and marker[1:] == b"behind 0"
    harness.push("a1")
    restarted(harness)
    Positions.rebuilt.clear()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 1))
    assert Positions.rebuilt == [("sa", marker[1:])]


def test_keys_of_another_job_wait_until_they_come(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = harness_of(place)
    harness.push_all(["a0", "b0"])
    checkpoint = harness.checkpoint()
    state = checkpoint.keys["sa"]
    assert state.head is not None
    head = Head.unpack(state.head)
    head.journal_id = "0123456789abcdef0123456789abcdee"
    state.rested = head.pack()
    harness.restore(checkpoint)
    harness.run_until_idle()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sb"] == ([], 0))
    assert stored(place)["sa"] == ([0], -1)


@pytest.mark.parametrize("what", ["fresh head", "version"])
def test_a_key_of_which_nobody_can_tell_waits_until_it_comes(pruners: list[Pruned], what: str) -> None:
    """A fresh head may be of an incarnation with other numbers; a later version may mark in another way."""
    place = MemoryPlace()
    harness = harness_of(place)
    harness.push_all(["a0", "b0"])
    checkpoint = harness.checkpoint()
    state = checkpoint.keys["sa"]
    assert state.head is not None
    if what == "version":
        state.unpruned = b"\x09anything"
    else:
        state.rested = Head.fresh_one(Head.unpack(state.head).journal_id, 100).pack()
    harness.restore(checkpoint)
    harness.run_until_idle()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sb"] == ([], 0))
    assert stored(place)["sa"] == ([0], -1)
    assert harness.state("a").unpruned == state.unpruned


def test_a_mark_of_a_key_that_was_forgotten_goes(pruners: list[Pruned]) -> None:
    harness = harness_of(MemoryPlace())
    harness.push("a0")
    checkpoint = harness.checkpoint()
    checkpoint.keys["sa"].rested = None
    harness.restore(checkpoint)
    harness.run_until_idle()
    assert marked(harness) == []
