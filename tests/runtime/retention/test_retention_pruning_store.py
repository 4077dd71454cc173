"""What is pruned leaves the store, and what a restore may ask for stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from checkpoint_tools import Flink, FlinkServer
from durable_tools import EFFECTS, effect_async, one_action
from pruning_tools import JOB, KEY, Pruned, stored, wait_for

from flink_agents import OutputEvent
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.durable import Prune
from flink_agents.api.errors import FencedOwnerError, RecordsPrunedError, StoreUnavailableError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention import executor
from flink_agents.runtime.retention.checkpoints import CheckpointPoller
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.testing import OperatorHarness


class Store(MemoryStore):
    """Counts, and fails where a test says so."""

    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(place)
        self.error: Exception | None = None
        self.calls = self.together = self.most = 0

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        self.calls += 1
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0)
        self.together -= 1
        if self.error is not None:
            raise self.error
        await super().prune(journal, through_seq)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 30)


def with_store(act: Callable[[Pruner, Store, RunMetrics], Any], keys: int = 1) -> None:
    """Run ``act`` beside a store in which each of some keys has a run 0 with a record."""

    async def run() -> None:
        metrics = RunMetrics(())
        pruner = Pruner(Prune.RESTORE_ONLY, 0, metrics, None, True)
        store = Store(MemoryPlace())
        await store.open(Owner.create("job", "group"))
        for number in range(keys):
            await store.append(key(number), [Record(RecordKind.CALL, 0, "", 0, b"x")])
        pruner.open(store)
        await act(pruner, store, metrics)
        await pruner.close()
        await store.close()

    asyncio.run(run())


def key(number: int) -> JournalKey:
    return JournalKey("job/agent", f"s{number}")


def test_journals_are_pruned_together() -> None:
    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        assert pruner.schedule is not None
        pruner.schedule({key(number): (0, 1) for number in range(250)}, 0.0)
        counter = metrics.group.get_counter("runs_pruned")
        await until(lambda: counter.get_count() == 250)
        assert (await store.stats()).records == 0
        assert store.most == executor.BATCH_SIZE

    with_store(act, keys=250)


def test_an_error_of_the_store_is_counted_and_the_journal_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        errors, pruned = (metrics.group.get_counter(name) for name in ("prune_errors", "runs_pruned"))
        store.error = StoreUnavailableError("the disk is full")
        assert pruner.schedule is not None
        pruner.schedule({key(0): (0, 1), key(1): (0, 1)}, 0.0)
        await until(lambda: errors.get_count() == 2)
        store.error = None

        def more() -> bool:
            assert pruner.schedule is not None
            pruner.schedule({key(2): (0, 0)}, 0.0)
            return pruned.get_count() == 2

        await until(more)
        assert (await store.stats()).records == 0
        assert caplog.text.count("the disk is full") == 1

    with_store(act, keys=3)


def test_a_stale_attempt_prunes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "PAUSE_SECONDS", 0)

    async def act(pruner: Pruner, store: Store, metrics: RunMetrics) -> None:
        store.error = FencedOwnerError("another attempt")
        pruner.restored(key(0), 0)
        await until(lambda: store.calls == 1)
        store.error = None
        pruner.restored(key(1), 0)
        # What was handed over before this has been seen by the loop, and a journal would take it a few turns.
        passed = asyncio.Event()
        asyncio.get_running_loop().call_soon_threadsafe(
            asyncio.get_running_loop().call_later, 0.0, passed.set
        )
        await passed.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert store.calls == 1
        assert metrics.group.get_counter("prune_errors").get_count() == 0

    with_store(act, keys=2)


# -- with the runtime -----------------------------------------------------------------


GATE = threading.Event()


async def pay(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(effect_async, event.input))


def agent() -> Any:
    return one_action(pay)


def test_committed_runs_leave_the_store(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    for number in range(5):
        harness.push(number)
    world = pruners[-1]
    world.checkpoint()
    assert stored(place)["i0"] == ([0, 1, 2, 3, 4], -1)
    for _ in range(3):
        world.checkpoint()
    wait_for(lambda: stored(place)["i0"] == ([], 4))
    assert dict(world.metrics.group.values())["journals_unpruned"] == 0
    harness.push(5)
    assert stored(place)["i0"] == ([5], 4)


@pytest.mark.executes_once
def test_a_restore_from_what_is_retained_finds_its_records(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    harness.push_all([0, 1, 2])
    harness.snapshot()
    harness.push(3)
    world = pruners[-1]
    for _ in range(2):
        world.checkpoint()
    snapshot = harness.snapshot()
    harness.push(4)
    for _ in range(2):
        world.checkpoint()
    wait_for(lambda: stored(place)["i0"][1] == 3)
    harness.restore(snapshot)
    harness.push_all([4, 5])
    assert harness.outputs == [0, 1, 2, 3, 4, 5]
    assert EFFECTS == [0, 1, 2, 3, 4, 5]


def test_a_restore_from_before_is_refused_before_any_effect(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), store=lambda: MemoryStore(place))
    snapshot = harness.snapshot()
    harness.push_all([0, 1])
    for _ in range(4):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["i0"][1] == 1)
    harness.restore(snapshot)
    with pytest.raises(RecordsPrunedError):
        harness.push(0)
    assert EFFECTS == [0, 1]


def test_records_of_a_former_attempt_leave_with_its_key(pruners: list[Pruned]) -> None:
    place = MemoryPlace()
    harness = OperatorHarness(agent(), lambda word: word[0], store=lambda: MemoryStore(place))
    harness.push_all(["a0", "b0", "a1"])
    harness.restore(harness.snapshot())
    harness.push("a2")
    for _ in range(5):
        pruners[-1].checkpoint()
    wait_for(lambda: stored(place)["sa"] == ([], 2))
    wait_for(lambda: stored(place)["sb"] == ([], 0))


@pytest.mark.executes_once
def test_runs_that_record_nothing_are_not_noted(pruners: list[Pruned]) -> None:
    async def act(event: Any, ctx: Any) -> None:
        if event.input % 2:
            await ctx.durable_execute_async(effect_async, event.input)

    harness = OperatorHarness(one_action(act), store=MemoryStore)
    harness.push_all([0, 2, 4])
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 0
    harness.push_all([1, 2])
    pruners[-1].poll()
    assert (pruners[-1].gauge("journals_unpruned"), pruners[-1].gauge("runs_unpruned")) == (1, 1)


async def pay_or_wait(event: Any, ctx: Any) -> Any:
    while event.input == 3 and not GATE.is_set():
        await asyncio.sleep(0.001)
    return await pay(event, ctx)


@pytest.mark.executes_once
def test_a_run_whose_input_comes_late_can_still_record(pruners: list[Pruned]) -> None:
    """After a gap in the numbers nothing is noted before the key is idle."""
    GATE.clear()
    place = MemoryPlace()
    config = {"action-state.reorder-timeout": "0 s"}
    harness = OperatorHarness(
        one_action(pay_or_wait), store=lambda: MemoryStore(place), config=config, auto_run=False
    )
    snapshot = harness.snapshot()
    harness.push_all([0, 1, 2])
    harness.run_until_idle()
    journal = next(stored_journal for name, stored_journal in place.journals.items() if name.key == "i0")
    journal.runs[0] = [record for record in journal.runs[0] if record.kind is not RecordKind.ACTION]
    harness.restore(snapshot)
    # Runs 1 and 2 have their inputs, 3 keeps the key busy, and the input of run 0 is late.
    harness.push_all([1, 2, 3])
    wait_for(lambda: harness.advance_time(10) is not None and len(harness.outputs) == 2)
    harness.push(0)
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 0
    for _ in range(5):
        pruners[-1].checkpoint()
    assert harness.outputs == [1, 2]
    GATE.set()
    harness.run_until_idle()
    assert sorted(harness.outputs) == [0, 1, 2, 3]
    assert EFFECTS == [0, 1, 2, 3]
    pruners[-1].poll()
    assert pruners[-1].gauge("journals_unpruned") == 1
    harness.close()


def test_from_flinks_answers_to_the_store() -> None:
    """All parts together: a server, the thread that asks, the loop, a store."""
    flink = Flink()

    def reply(path: str) -> tuple[int, Any]:
        assert path == f"/jobs/{JOB}/checkpoints"
        if flink.in_progress:
            flink.complete(flink.in_progress[0])
        else:
            flink.trigger()
        return 200, flink.answer()

    with FlinkServer(reply) as server:

        async def run() -> None:
            metrics = RunMetrics(())
            poller = CheckpointPoller((server.address,), JOB, interval=0.001)
            pruner = Pruner(Prune.CHECKPOINTS, 0, metrics, poller, True)
            store = Store(MemoryPlace())
            await store.open(Owner.create("job", "group"))
            await store.append(KEY, [Record(RecordKind.CALL, 0, "", 0, b"x")])
            pruner.open(store)
            pruner.committed(KEY, 0, 1)
            counter = metrics.group.get_counter("runs_pruned")
            await until(lambda: counter.get_count() == 1)
            assert await store.pruned_through(KEY) == 0
            await pruner.close()
            await store.close()

        asyncio.run(run())
