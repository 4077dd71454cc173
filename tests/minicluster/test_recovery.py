"""Jobs that fail on the way: nothing is lost, nothing comes twice, each key keeps its order."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action
from tests.minicluster.sources import numbers, restarting
from tests.suite.factors import factors

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

RECORDS = 10_000
KEYS = 97
FAILURES = 3


class Numbered(Event):
    number: int
    count: int


class FragileAgent(Agent):
    """Counts records per key, and fails ``FAILURES`` times, a second apart.

    With ``waits`` the second action is awaited, for another time with each record.
    """

    def __init__(self, directory: str, waits: bool) -> None:
        self.directory = directory
        self.waits = waits
        self.started = time.monotonic()

    @action(InputEvent)
    def count(self, event: InputEvent, ctx: Any) -> Numbered:
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        return Numbered(number=event.input, count=count)

    @action(Numbered)
    def emit(self, event: Numbered, ctx: Any) -> Any:
        self._maybe_fail()
        output = OutputEvent(output=(ctx.key, event.number, event.count))
        return self.later(event.number, output) if self.waits else output

    async def later(self, number: int, output: OutputEvent) -> OutputEvent:
        await asyncio.sleep(number * 7919 % 23 / 1000)
        return output

    def _maybe_fail(self) -> None:
        if time.monotonic() < self.started + 1.0:
            return
        self.started = time.monotonic()
        for number in range(FAILURES):
            try:
                os.close(os.open(Path(self.directory) / str(number), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            raise RuntimeError(f"failure {number}")


def slowly(number: int) -> int:
    """A source of about 2,000 records a second, so that the job lasts over all failures."""
    time.sleep(0.0004)
    return number


@pytest.mark.nightly(beyond=1)
@factors(strength=1, waits=[False, True], backend=["hashmap", "rocksdb"])
def test_three_failures_a_second_apart(
    agents_environment: MakeEnvironment, backend: str, waits: bool, tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        flink={"state.backend.type": backend, **restarting(tmp_path, failures=FAILURES)},
    )
    markers = tmp_path / "failures"
    markers.mkdir()
    slow = numbers(env, RECORDS).map(slowly).set_parallelism(1)
    stream = env.from_datastream(slow, lambda number: number % KEYS)
    outputs = stream.apply(FragileAgent(directory=str(markers), waits=waits)).to_list()
    env.execute()

    assert len(list(markers.iterdir())) == FAILURES
    counts_by_key: dict[int, list[tuple[int, int]]] = {key: [] for key in range(KEYS)}
    for key, number, count in outputs:
        counts_by_key[key].append((number, count))
    assert counts_by_key == {
        key: [(number, place) for place, number in enumerate(range(key, RECORDS, KEYS), 1)]
        for key in range(KEYS)
    }
