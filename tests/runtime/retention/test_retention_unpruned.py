"""Records of keys that never come again after a restart leave the store; what a restore asks for stays."""

from __future__ import annotations

from typing import Any

import pytest
from durable_tools import EFFECTS, effect_async, one_action
from pruning_tools import Pruned, stored, wait_for

from flink_agents import OutputEvent
from flink_agents.api.action_state import JournalKey
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal import unpruned
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness


async def pay(event: Any, ctx: Any) -> Any:
    if event.input[1] == "-":
        return OutputEvent(output=event.input)
    return OutputEvent(output=await ctx.durable_execute_async(effect_async, event.input))


class Rebuilt(MemoryStore):
    """Writes down from where on it is to read a journal."""

    rebuilt: list[tuple[str, bytes | None, int]] = []

    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        if journal is not None:
            self.rebuilt.append((journal.key, marker, len(EFFECTS)))
        await super().rebuild(journal, marker, pending)


def made(place: MemoryPlace, **options: Any) -> OperatorHarness:
    options = {"heartbeat": True, "forced_replay": False, "forced_restart": False, "crash": None, **options}
    return OperatorHarness(one_action(pay), lambda word: word[0], store=lambda: MemoryStore(place), **options)


def marked(harness: OperatorHarness) -> list[str]:
    """The keys that have a mark in state."""
    keys = {key for key in "abcdefgh" if harness.state(key).unpruned is not None}
    return sorted(keys)


def restarted(harness: OperatorHarness, **how: Any) -> None:
    """Restore a checkpoint of now, and let the operator do what it does without an input."""
    harness.restore(harness.checkpoint(), **how)
    harness.settle()


def test_a_key_that_never_comes_again_is_pruned(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = made(place)
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
    harness = made(place, parallelism=2)
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


def test_only_the_checkpoint_that_was_restored_counts_without_rest(pruners: list[Pruned]) -> None:
    """What was committed since the restore is in no checkpoint yet, recorded or not."""
    place = MemoryPlace()
    harness = made(place)
    harness.push_all(["a0", "b0", "c0"])
    kept = harness.checkpoint()
    harness.restore(kept)
    # None of these comes in a beat before the restored keys were looked at.
    harness._settles = False
    harness.push("a-")
    harness.push("b1")
    harness.settle()
    pruners[-1].fail()
    wait_for(lambda: stored(place)["sc"] == ([], 0))
    assert stored(place)["sa"] in (([0], -1), ([], 0))
    assert stored(place)["sb"][1] in (-1, 0)
    harness.restore(kept)
    harness._settles = True
    harness.push_all(["a-", "a1", "b1"])
    assert harness.outputs == ["a0", "b0", "c0", "a-", "a1", "b1"]


def test_a_mark_is_written_once_and_goes_with_the_last_commit(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = made(place)
    harness.push("a0")
    first = harness.state("a").unpruned
    harness.push("a1")
    assert harness.state("a").unpruned == first
    pruners[-1].checkpoint()
    harness.push("a2")
    for _ in range(3):
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
    harness = made(MemoryPlace())
    harness.push_all(["a-", "b-", "c0"])
    assert marked(harness) == ["c"]


def test_restored_keys_are_looked_at_a_few_at_a_time(
    pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpruned.UnprunedKeys.look, "__defaults__", (3,))
    place = MemoryPlace()
    harness = made(place)
    harness.push_all([f"{key}0" for key in "abcdefgh"])
    harness._settles = False
    harness.restore(harness.checkpoint())
    harness.advance(0)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 3
    harness.advance(10)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 8


def test_there_are_not_more_marks_than_so_many(
    pruners: list[Pruned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpruned, "MOST_MARKED", 2)
    harness = made(MemoryPlace())
    harness.push_all(["a0", "b0", "c0", "a1"])
    assert marked(harness) == ["a", "b"]


def test_records_are_read_from_where_they_begin(pruners: list[Pruned]) -> None:
    """A store that reads from a position on need not read all that it has."""
    place = MemoryPlace()
    Rebuilt.rebuilt.clear()
    harness = OperatorHarness(
        one_action(pay),
        lambda word: word[0],
        store=lambda: Rebuilt(place),
        heartbeat=True,
        forced_replay=False,
        forced_restart=False,
    )
    harness.push("a0")
    marker = harness.state("a").unpruned
    assert marker is not None
    harness.push("a1")
    restarted(harness)
    Rebuilt.rebuilt.clear()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 1))
    assert Rebuilt.rebuilt == [("sa", marker[1:], 2)]


def test_keys_of_another_job_wait_until_they_come(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = made(place)
    harness.push_all(["a0", "b0"])
    kept = harness.checkpoint()
    state = kept.keys["sa"]
    assert state.head is not None
    head = Head.unpack(state.head)
    head.journal_id = "0123456789abcdef0123456789abcdee"
    state.head = head.pack()
    harness.restore(kept)
    harness.settle()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sb"] == ([], 0))
    assert stored(place)["sa"] == ([0], -1)


def test_a_mark_of_a_key_that_was_forgotten_goes(pruners: list[Pruned]) -> None:
    harness = made(MemoryPlace())
    harness.push("a0")
    kept = harness.checkpoint()
    kept.keys["sa"].head = None
    harness.restore(kept)
    harness.settle()
    assert marked(harness) == []


def test_a_timer_for_each_key_leaves_marks_as_they_are(pruners: list[Pruned]) -> None:
    """PyFlink's public way knows no key that does not come."""
    place = MemoryPlace()
    harness = made(place)
    harness.push("a0")
    kept = harness.checkpoint()
    by_timers = made(place, heartbeat=False)
    by_timers.restore(kept)
    by_timers.push("b0")
    assert marked(by_timers) == ["a"]
    harness.restore(by_timers.checkpoint())
    harness.settle()
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 0))
