"""What is kept of keys in memory is what state has, and has a bound."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.runtime.operator import heads
from flink_agents.runtime.operator.heads import KEY_BYTES, MOST_NODES, NODE_BYTES, KeyCache
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.state import FakeBackend
from tests.suite.conditions import UNFORCED
from tests.suite.factors import factors


class Changing(Agent):
    """Changes memory of its key as an input says; every third input waits."""

    @action(InputEvent)
    def change(self, event: InputEvent, ctx: Any) -> Any:
        _, number, do, path = event.input
        memory = ctx.short_term_memory
        if do == "set":
            memory.set(path, number)
        elif do == "delete":
            memory.delete(path)
        elif do == "list":
            memory.set("listed", memory.field_names())
        count = memory.get("count", 0) + 1
        memory.set("count", count)
        return self.wait(event, ctx) if number % 3 == 0 else OutputEvent(output=(event.input[0], count))

    async def wait(self, event: InputEvent, ctx: Any) -> Any:
        ctx.short_term_memory.append("waited", event.input[1])
        return OutputEvent(output=(event.input[0], sorted(ctx.short_term_memory.field_names())))


def by_first(record: Any) -> Any:
    return record[0]


def inputs(chance: random.Random, count: int) -> list[tuple[int, int, str, str]]:
    kinds = ["set", "delete", "list", "none"]
    return [
        (chance.randrange(6), number, chance.choice(kinds), chance.choice("abc")) for number in range(count)
    ]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often state was read, by state and way."""
    counts: Counter[str] = Counter()
    plain = FakeBackend.keyed_state

    def counted(slot: Any, name: str, way: str) -> None:
        read = getattr(slot, way)

        def reading(*arguments: Any) -> Any:
            counts[f"{name}.{way}"] += 1
            return read(*arguments)

        setattr(slot, way, reading)

    def keyed_state(self: FakeBackend, names_store: bool = True) -> Any:
        state = plain(self, names_store)
        counted(state._rested, "head", "value")
        counted(state.memory, "memory", "get")
        counted(state.memory, "memory", "items")
        return state

    monkeypatch.setattr(FakeBackend, "keyed_state", keyed_state)
    return counts


@pytest.mark.parametrize("first", [1, 0])
def test_state_of_a_key_is_read_once(reads: Counter[str], first: int) -> None:
    """Of one whose inputs do not wait, and of one whose inputs do."""
    with OperatorHarness(Changing, by_first, **UNFORCED) as harness:
        harness.push((0, first, "list", "a"))
        reads.clear()
        for number in range(1, 10):
            harness.push((0, 3 * number + first, "list", "a"))
        assert not reads


@factors(seed=range(3), inline=[True, False], most_bytes=[3 * KEY_BYTES, heads.MOST_BYTES])
def test_what_is_kept_is_what_state_has(
    seed: int, inline: bool, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing differs, whether all keys are kept, few of them, or none."""
    pushed = inputs(random.Random(seed), 80)

    def ran(most: int) -> tuple[Any, ...]:
        monkeypatch.setattr(KeyCache.__init__, "__defaults__", (most,))
        with OperatorHarness(Changing, by_first, config={"run.inline": inline}) as harness:
            for number, record in enumerate(pushed):
                harness.push(record)
                if number == 40:
                    harness.restore(harness.checkpoint())
            states = [harness.state(key) for key in range(6)]
            return harness.outputs, [(state.head, state.memory, state.pending) for state in states]

    assert ran(most_bytes) == ran(0)


def test_inputs_behind_a_failed_one_find_what_is_committed(reads: Counter[str]) -> None:
    class Failing(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
            memory = ctx.short_term_memory
            memory.set("seen", [*memory.get("seen", []), event.input])
            if event.input == "bad":
                raise ValueError("bad")
            return OutputEvent(output=memory.get("seen"))

    with OperatorHarness(Failing, config={"actions.on-error": "ignore"}, **UNFORCED) as harness:
        harness.push_all(["a", "bad", "b"])
        assert harness.outputs == [["a"], ["a", "b"]]
        assert harness.memory() == {"seen": ["a", "b"]}


def nodes(count: int, size: int = 0) -> dict[str, bytes | None]:
    return {f"n{number}": b"x" * size for number in range(count)}


def test_what_is_kept_has_a_bound() -> None:
    cache = KeyCache(False, 10 * (KEY_BYTES + 3 * (NODE_BYTES + 100)))
    for number in range(1000):
        cache.store_key(f"k{number}", Head("job", nodes=None), nodes(3, 100), True, False)
    there = [number for number in range(1000) if cache.get(f"k{number}") is not None]
    assert 10 <= len(there) <= 21
    assert there == list(range(1000 - len(there), 1000))


def test_a_key_that_is_used_stays() -> None:
    cache = KeyCache(False, 10 * KEY_BYTES)
    for number in range(100):
        for key in ("used", f"k{number}"):
            cached_state = cache.get(key)
            assert (cached_state is not None) == (key == "used" and number > 0)
            cache.store_key(key, Head("job"), {}, False, False)


def test_of_a_key_with_much_in_memory_the_head_is_kept() -> None:
    cache = KeyCache(False)
    head = Head("job", nodes=None)
    cache.store_key("few", head, nodes(MOST_NODES), True, False)
    cache.store_key("many", head, nodes(MOST_NODES + 1), True, False)
    assert cache.get("few") == (head, nodes(MOST_NODES), True, False)
    assert cache.get("many") == (head, {}, False, False)
    cache.remove_key("few")
    assert cache.get("few") is None


def test_a_key_that_was_not_used_for_a_while_can_be_dropped() -> None:
    cache = KeyCache(False, KEY_BYTES)
    for key in ("old", "new"):
        cache.store_key(key, Head("job"), {}, True, False)
    cache.remove_key("old")
    assert cache.get("old") is None and cache.get("new") is not None


def test_nothing_is_kept_where_memory_expires() -> None:
    cache = KeyCache(True)
    cache.store_key("k", Head("job"), {}, True, False)
    assert cache.get("k") is None
