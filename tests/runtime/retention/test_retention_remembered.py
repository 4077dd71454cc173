"""What a subtask knows of keys beside their state does not grow with the keys that it ever saw."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import pytest
from durable_tools import EFFECTS, effect_async, forget, one_action
from pruning_tools import NO_POLLER

from flink_agents import OutputEvent
from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.durable import Prune
from flink_agents.api.errors import StoreUnavailableError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal import journals as journals_module
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention import executor, pruning
from flink_agents.runtime.retention.checkpoints import RestError
from flink_agents.runtime.retention.pruning import FAILURES, BloomFilter, Pruner
from flink_agents.testing import OperatorHarness


@pytest.fixture(autouse=True)
def _effects() -> Iterator[None]:
    forget()
    yield


def test_the_last_things_are_remembered() -> None:
    keys = [JournalKey("job", str(number)) for number in range(100)]
    recent = journals_module.RecentKeys(10)
    for number, key in enumerate(keys):
        recent.add(key)
        recent.add(key)
        assert list(recent.journals) == keys[max(0, number - 9) : number + 1]


@pytest.mark.parametrize("seed", range(5))
def test_what_was_seen_stays_seen(seed: int) -> None:
    chance = random.Random(seed)
    things = [JournalKey("job", str(chance.getrandbits(64))) for _ in range(2000)]
    seen = BloomFilter(2**16)
    assert not any(thing in seen for thing in things)
    for thing in things[:1000]:
        seen.add(thing)
    assert all(thing in seen for thing in things[:1000])
    assert sum(thing in seen for thing in things[1000:]) < 50


class Once(MemoryStore):
    """Says of each journal that something may be recorded of it."""

    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        super().may_have(journal, marker, pending)
        return True


async def pay(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(effect_async, event.input))


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("store", [MemoryStore, Once])
def test_a_key_that_was_forgotten_to_be_settled_is_looked_at_again(
    bound: int, store: type[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals_module, "MAX_REPLAYED", bound)
    place = MemoryPlace()
    harness = OperatorHarness(one_action(pay), lambda number: number % 7, store=lambda: store(place))
    harness.push_all(list(range(20)))
    harness.restore(harness.snapshot())
    snapshot = harness.snapshot()
    harness.push_all(list(range(20, 50)))
    harness.restore(snapshot)
    harness.push_all(list(range(20, 60)))
    assert sorted(harness.outputs) == list(range(60))
    assert sorted(EFFECTS) == list(range(60))


def _structures(pruner: Pruner) -> dict[str, int]:
    """How much each part of a pruner holds."""
    return {name: len(value) for name, value in vars(pruner).items() if isinstance(value, Sized)}


@pytest.mark.parametrize("policy", [Prune.CHECKPOINTS, Prune.RESTORE_ONLY])
@pytest.mark.parametrize("poller", [NO_POLLER, None])
@pytest.mark.parametrize("one_retained", [True, False])
def test_a_pruner_that_nobody_answers_does_not_grow(
    policy: Prune, poller: Any, one_retained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MAX_WAITING", 100)
    pruner = Pruner(policy, 0, RunMetrics(()), poller, one_retained)
    pruner.schedule = lambda journals, delay: None

    def keys(first: int) -> None:
        for number in range(first, first + 3000):
            journal = JournalKey("job/agent", f"s{number}")
            pruner.restored(journal, 0)
            pruner.committed(journal, 1, 1)
            if number % 300 == 0:
                pruner.asking()
                pruner.failed(RestError("refused"))
        pruner.asking()

    for turn in range(FAILURES):
        keys(turn * 3000)
    sizes = _structures(pruner)
    tracemalloc.start()
    keys(100_000)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert _structures(pruner) == sizes
    assert grown < 3000 * 100, "bytes that stay for each key"


def test_a_store_that_never_prunes_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_FAILED", 50)

    class Refuses(MemoryStore):
        async def prune(self, journal: JournalKey, through_seq: int) -> None:
            raise StoreUnavailableError("no")

    async def run() -> None:
        metrics = RunMetrics(())
        pruner = Pruner(Prune.RESTORE_ONLY, 0, metrics, None, True)
        store = Refuses()
        await store.open(Owner.create("job", "group"))
        pruner.open(store)
        errors = metrics.group.get_counter("prune_errors")
        pruner_take: Callable[[Mapping[JournalKey, tuple[int, int]], float], None] | None = pruner.schedule
        assert pruner_take is not None
        for turn in range(4):
            pruner_take({JournalKey("job", f"i{turn}_{index}"): (0, 1) for index in range(100)}, 0.0)
            while errors.get_count() < 100 * (turn + 1):
                await asyncio.sleep(0.001)
        assert pruner._executor is not None
        assert len(pruner._executor._failed) <= 50
        await pruner.close()
        await store.close()

    asyncio.run(run())
