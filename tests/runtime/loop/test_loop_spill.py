"""Inputs that wait for others stay in state: what is in memory is bounded, and the work is in proportion."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from durable_tools import EFFECTS, effect, forget, one_action

from flink_agents import InputEvent, OutputEvent
from flink_agents.runtime.loop import replays
from flink_agents.runtime.operator import input_dispatch
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.state import _Entries
from tests.suite.factors import factors

pytestmark = pytest.mark.executes_once

PER_KEY = 10
TOTAL = 40
LIMITS = {
    "action-state.reorder-timeout": timedelta(hours=1),
    "queue.max-per-key": PER_KEY,
    "queue.max-total": TOTAL - 10,
    "run.max-in-flight": 10,
}

COUNTED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count what is done with inputs."""
    forget()
    COUNTED.clear()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            COUNTED[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(_Entries, "get")
    count(input_dispatch, "input_digest")
    count(replays, "QueuedInput")
    yield


async def pay(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=await ctx.durable_execute_async(effect, tuple(event.input)))


def push_held(harness: OperatorHarness, records: list[Any]) -> None:
    """Push records of which most have to wait; see that what is in memory stays below the limits."""
    for number, record in enumerate(records):
        harness.push(record)
        actors = [actor for task in harness._subtasks for actor in task.processor.actors.values()]
        cached = [0 if actor.recovery is None else len(actor.recovery.cached) for actor in actors]
        waiting = [held + len(actor.inbox) for held, actor in zip(cached, actors, strict=True)]
        assert max(waiting) <= PER_KEY
        # As in any other case, a key that has room for none may have one that runs next.
        assert sum(waiting) <= TOTAL + len(actors)
        assert 2 * sum(cached) <= TOTAL
        if number % 100 == 99:
            assert len(harness.state(record[0]).head or b"") < 300


def reverse(records: list[Any], chance: random.Random) -> list[Any]:
    return records[::-1]


def shuffled(records: list[Any], chance: random.Random) -> list[Any]:
    return chance.sample(records, len(records))


def with_new_ones(records: list[Any], chance: random.Random) -> list[Any]:
    """What was recorded, one by one behind inputs that nothing was recorded of, and the first one last."""
    new = [(key, f"new {name}") for key, name in records]
    mixed = [record for pair in zip(new[1:], records[1:], strict=True) for record in pair]
    return [new[0], *mixed, records[0]]


@pytest.mark.nightly(beyond=1)
@factors(strength=1, order=[reverse, shuffled, with_new_ones], keys=[7, 1])
def test_work_is_in_proportion_and_memory_bounded(order: Callable[..., list[Any]], keys: int) -> None:
    count = 1400
    records = [(number % keys, f"input {number}") for number in range(count)]
    with OperatorHarness(one_action(pay), lambda record: record[0], config=LIMITS, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(records)
        expected = Counter(harness.run_until_idle())
        harness.restore(snapshot)
        COUNTED.clear()
        again = order(records, random.Random(5))
        # Up to the first one of a key, all are held; later ones let others go.
        push_held(harness, again)
        assert harness.pending(0) > PER_KEY or order is shuffled
        harness.run_until_idle()
        new = Counter(record for record in again if record not in set(records))
        assert Counter(harness.outputs) == expected + new
        assert set(Counter(EFFECTS).values()) == {1}
        for name in COUNTED:
            # Read to be looked at, to be chosen, and to learn which are gone.
            assert COUNTED[name] <= (3 if name == "get" else 1) * len(again) + keys, COUNTED
        assert harness.pending(0) == 0 and harness.state(0).pending == {}


def test_many_keys_that_hold_one_input_each_stay_in_state() -> None:
    keys = range(200)
    with OperatorHarness(one_action(pay), lambda record: record[0], config=LIMITS, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all([(key, name) for name in "ab" for key in keys])
        expected = Counter(harness.run_until_idle())
        harness.restore(snapshot)
        push_held(harness, [(key, "b") for key in keys])
        harness.push_all([(key, "a") for key in keys])
        harness.run_until_idle()
        assert Counter(harness.outputs) == expected
    assert set(Counter(EFFECTS).values()) == {1}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_is_held_in_state_is_found_after_a_restart(parallelism: int) -> None:
    records = [(0, number) for number in range(300)]
    with OperatorHarness(one_action(pay), lambda record: record[0], config=LIMITS, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all(records)
        expected = Counter(harness.run_until_idle())
        harness.restore(snapshot)
        push_held(harness, records[:150:-1])
        harness.push((0, 0))
        while harness.sequence_number(0) < 1:
            harness.advance_time(1)
        harness.restore(harness.snapshot(), parallelism)
        harness.push_all(records[1:151])
        harness.run_until_idle()
        assert Counter(harness.outputs) == expected
    assert set(Counter(EFFECTS).values()) == {1}


def test_what_waits_too_long_goes_on_from_state() -> None:
    config = {**LIMITS, "action-state.reorder-timeout": timedelta(milliseconds=50)}
    with OperatorHarness(one_action(pay), lambda record: record[0], config=config, auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all([(0, number) for number in range(100)])
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.push_all([(0, number) for number in range(1, 100)])
        harness.run_until_idle()
        assert len(harness.outputs) == 99
        harness.push((0, 0))
        harness.run_until_idle()
        assert len(harness.outputs) == 100
    assert set(Counter(EFFECTS).values()) == {1}
