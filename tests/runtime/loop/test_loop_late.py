"""Recorded runs whose inputs come later than they are waited for: in any order, after any restart."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from durable_tools import EFFECTS, counted, forget, one_action

from flink_agents import InputEvent, OutputEvent
from flink_agents.api.action_state import JournalKey
from flink_agents.runtime.loop import replays
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults
from flink_agents.testing.harness import Snapshot

pytestmark = pytest.mark.executes_once

AT_ONCE = {"action-state.reorder-timeout": timedelta(0)}
NEVER = {"action-state.reorder-timeout": timedelta(hours=1)}


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


def token(value: Any) -> int:
    """Take effect; the result is another one each time."""
    EFFECTS.append(value)
    return len(EFFECTS)


async def act(event: InputEvent, ctx: Any) -> OutputEvent:
    """Two calls with what follows from the run's number; inputs that begin with ``quiet`` make none."""
    key, name = event.input
    result = None
    if not name.startswith("quiet"):
        result = await ctx.durable_execute_async(token, (key, name, ctx.sequence_number))
        await ctx.durable_execute_async(token, (key, name, str(ctx.uuid4())))
    ctx.short_term_memory.set("last", name)
    return OutputEvent(output=(key, name, result))


def new_harness(faults: Faults, config: dict[str, Any], parallelism: int = 1) -> OperatorHarness:
    return OperatorHarness(
        one_action(act),
        lambda record: record[0],
        config=config,
        store=faults.store,
        parallelism=parallelism,
        auto_run=False,
    )


def heads(snapshot: Snapshot) -> dict[str, Head]:
    return {key: Head.unpack(state.head) for key, state in snapshot.keys.items() if state.head}


async def prune(faults: Faults, snapshot: Snapshot) -> None:
    """Remove what no restore from ``snapshot``, or a later one, can ask for."""
    store = faults.store()
    await store.open(None)
    for key, head in heads(snapshot).items():
        if head.committed_through >= 0:
            await store.prune(JournalKey(f"{head.journal_id}/durable", key), head.committed_through)
    await store.close()


@dataclass
class Source:
    """Inputs, of which each comes until a checkpoint has it, in an order of chance.

    Attributes:
        made: All inputs that there are.
        ahead: Those that come next, in any order.
        taken: Those that were handed over since the beginning, in order.
    """

    made: list[Any] = field(default_factory=list)
    ahead: list[Any] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)

    def make(self, record: Any) -> None:
        self.made.append(record)
        self.ahead.append(record)

    def next(self, chance: random.Random) -> Any:
        record = self.ahead.pop(chance.randrange(len(self.ahead)))
        self.taken.append(record)
        return record

    def go_back(self, position: int) -> None:
        self.ahead += self.taken[position:]
        del self.taken[position:]


def drive(seed: int, kinds: list[str], keys: int, steps: int = 40) -> None:
    """Inputs, checkpoints, restarts and prunes in an order of chance; then all that is left."""
    chance = random.Random(seed)
    faults = Faults()
    source = Source()
    with new_harness(faults, AT_ONCE) as harness:
        retained = [(harness.snapshot(), 0)]
        for step in range(steps):
            what = chance.choice(["push"] * 5 + ["restore", "checkpoint", "idle", "forget"])
            if what == "push":
                for _ in range(chance.randrange(4)):
                    source.make((chance.randrange(keys), chance.choice(kinds).format(step)))
                for _ in range(chance.randrange(1 + len(source.ahead))):
                    harness.push(source.next(chance))
            elif what == "restore":
                # What is in flight may have taken effect without a record: that is the documented window.
                harness.run_until_idle()
                del retained[chance.randrange(len(retained)) + 1 :]
                snapshot, position = retained[-1]
                harness.restore(snapshot, chance.choice([1, 2]))
                source.go_back(position)
            elif what == "checkpoint":
                retained.append((harness.snapshot(), len(source.taken)))
            elif what == "idle":
                harness.run_until_idle()
            else:
                retained = retained[-1:]
                asyncio.run(prune(faults, retained[0][0]))
        while source.ahead:
            harness.push(source.next(chance))
        harness.run_until_idle()
        expected = Counter(source.made)
        assert Counter(output[:2] for output in harness.outputs) == expected
        called = [record for record in source.made if not record[1].startswith("quiet")]
        assert len(EFFECTS) == 2 * len(called)
        assert set(counted().values()) <= {1}
        tokens = [output[2] for output in harness.outputs if output[2] is not None]
        assert len(set(tokens)) == len(tokens) == len(called)
        assert all(not head.skipped for head in heads(harness.snapshot()).values())


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_repeated_however_late_inputs_come(seed: int) -> None:
    drive(seed, ["input {}"], keys=1 + seed % 3)


@pytest.mark.parametrize("seed", range(30))
def test_equal_inputs_and_inputs_without_calls_among_them(seed: int) -> None:
    drive(seed, ["same", "other", "quiet {}", "input {}"], keys=1 + seed % 2)


# -- where its input comes ----------------------------------------------------------------------


def recorded_then_overtaken(harness: OperatorHarness, before: Snapshot) -> list[Any]:
    """Record three runs, restart, and let a new input overtake them."""
    for name in "abc":
        harness.push((0, name))
    outputs = harness.run_until_idle()
    harness.restore(before)
    harness.push((0, "new"))
    harness.run_until_idle()
    assert harness.sequence_number() == 4
    return outputs


@pytest.mark.parametrize("restarts", [0, 1, 3])
@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_its_input_takes_its_number_and_its_records_after_restarts(order: str, restarts: int) -> None:
    faults = Faults()
    with new_harness(faults, AT_ONCE) as harness:
        outputs = recorded_then_overtaken(harness, harness.snapshot())
        for number, name in enumerate(order):
            for _ in range(restarts):
                harness.restore(harness.snapshot(), 1 + number % 2)
            harness.push((0, f"between {number}"))
            harness.run_until_idle()
            harness.push((0, name))
            (output,) = harness.run_until_idle()
            assert output in outputs
        assert set(counted().values()) == {1} and len(EFFECTS) == 2 * 7
        assert harness.sequence_number() == 7


def test_what_was_overtaken_is_not_waited_for_again() -> None:
    faults = Faults()
    with new_harness(faults, AT_ONCE) as harness:
        recorded_then_overtaken(harness, harness.snapshot())
        later = harness.snapshot()
    with new_harness(faults, NEVER) as harness:
        harness.restore(later)
        harness.push((0, "another"))
        assert [output[1] for output in harness.run_until_idle(5)] == ["another"]
        assert harness.run_metrics.get("inputs_held_back", 0) == 0


def test_what_was_overtaken_is_counted() -> None:
    with new_harness(Faults(), AT_ONCE) as harness:
        recorded_then_overtaken(harness, harness.snapshot())
        measured = harness.run_metrics
        assert (measured["runs_reordered"], measured["runs_replayed_late"]) == (1, 3)


# -- where its input never comes -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["after an idle time", "behind a run", "after a restart"])
def test_an_input_that_never_comes_is_given_up_after_a_time(how: str) -> None:
    config = {**AT_ONCE, "action-state.late-input-timeout": timedelta(hours=1)}
    with new_harness(Faults(), config) as harness:
        recorded_then_overtaken(harness, harness.snapshot())
        harness.push((0, "a"))
        harness.run_until_idle()
        harness.advance_time(timedelta(minutes=61))
        if how == "after a restart":
            # While no job runs, no input can come.
            harness.restore(harness.snapshot())
            harness.push((0, "early"))
            harness.run_until_idle()
            assert list(heads(harness.snapshot())["i0"].skipped) == [1, 2]
            harness.advance_time(timedelta(minutes=61))
        if how == "behind a run":
            harness.push_all([(0, "b"), (0, "more")])
            harness.run_until_idle()
        else:
            harness.push((0, "more"))
            harness.run_until_idle()
        head = heads(harness.snapshot())["i0"]
        assert not head.skipped and head.committed_through == head.next_seq - 1
        assert harness.run_metrics["runs_abandoned"] >= 1
        harness.push((0, "c"))
        harness.run_until_idle()
        assert sum(count for (_, name, _), count in counted().items() if name == "c") == 4


def test_not_more_than_a_bounded_number_of_runs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MAX_SKIPPED", 3)
    with new_harness(Faults(), AT_ONCE) as harness:
        snapshot = harness.snapshot()
        harness.push_all([(0, str(number)) for number in range(8)])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push((0, "new"))
        harness.run_until_idle()
        assert list(heads(harness.snapshot())["i0"].skipped) == [5, 6, 7]
        assert harness.run_metrics["runs_abandoned"] == 5


def test_pruning_leaves_what_was_overtaken() -> None:
    faults = Faults()
    with new_harness(faults, AT_ONCE) as harness:
        outputs = recorded_then_overtaken(harness, harness.snapshot())
        harness.push((0, "a"))
        harness.run_until_idle()
        snapshot = harness.snapshot()
        assert heads(snapshot)["i0"].committed_through == 0
        asyncio.run(prune(faults, snapshot))
        harness.restore(snapshot)
        harness.push_all([(0, "c"), (0, "b")])
        assert sorted(harness.run_until_idle()) == outputs[1:]
    assert set(counted().values()) == {1}


def test_a_head_counts_inputs_that_were_committed_before_older_ones() -> None:
    head = Head.unpack(Head("job", 7, 2, 9, ahead=3, store="s").pack())
    assert (head.next_seq, head.first_pending, head.ahead, head.waiting) == (7, 2, 3, 4)
    assert head.store == "s"
    pending_numbers = {2, 5, 7, 8}
    for number, first, ahead in ((5, 2, 4), (2, 7, 0), (7, 8, 0), (8, 9, 0)):
        pending_numbers.remove(number)
        head.finish(number, lambda seq: seq not in pending_numbers)
        assert (head.first_pending, head.ahead) == (first, ahead)
        assert Head.unpack(head.pack()).pack() == head.pack()
