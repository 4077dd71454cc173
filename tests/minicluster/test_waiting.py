"""Calls that wait, in Flink: all restored ones at once, a single place, clients that end badly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    Event,
    InputEvent,
    OutputEvent,
    RetryPolicy,
    action,
    client,
    tool,
)
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, start_agent

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

WAITING = 2000
TOGETHER_SECONDS = 60


class MeetingAgent(Agent):
    """Its calls wait for ever, or until all of them are in flight together.

    Args:
        path: Gets a line for each call that begins.
        expected: How many there have to be; 0 for calls without an end.
    """

    def __init__(self, path: str, expected: int) -> None:
        self.expected = expected
        self.beats = Heartbeats(path)
        self.inside = 0
        self.most = 0
        self.together = asyncio.Event()

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.beats.write("begin", ctx.key)
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == self.expected:
            self.together.set()
        try:
            await asyncio.wait_for(self.together.wait(), TOGETHER_SECONDS if self.expected else None)
        except TimeoutError:
            raise AssertionError(f"{self.most} of {self.expected} calls in flight at once") from None
        finally:
            self.inside -= 1
        return OutputEvent(output=(ctx.key, event.input, ctx.sequence_number))

    @action(InputEvent, when=lambda event: event.input == LAST)
    def ignore(self, event: InputEvent, ctx: Any) -> None:
        pass


@pytest.mark.nightly
def test_restored_calls_are_all_in_flight_at_the_end_of_the_input(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """They take about the time of one: each waits until it has seen all others."""
    beats = tmp_path / "beats"
    options = {"run.max-in-flight": WAITING}
    env = agents_environment(config=options)
    with start_agent(env, MeetingAgent(str(beats), 0), beats, WAITING) as job:
        job.wait_for(f"{WAITING} waiting calls", lambda: len(read_beats(beats)) >= WAITING)
        savepoint = job.stop_with_savepoint(tmp_path / "savepoints")

    # Another source, which ends at once: only what the state holds is left to do.
    flink = {
        "execution.state-recovery.path": savepoint,
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }
    env = agents_environment(config=options, flink=flink)
    stream = env.from_list([], lambda number: number).apply(MeetingAgent(str(beats), WAITING))
    outputs = stream.to_list()
    env.execute()
    assert sorted(outputs) == [(number, number, 0) for number in range(WAITING)]


class Asked(Event):
    number: int


class Answered(Event):
    number: int


class CrowdedAgent(Agent):
    """Awaited calls, tools in each other's way, threads, retries: with one place for all of them."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.lock = asyncio.Lock()

    @tool(max_concurrency=1)
    @staticmethod
    async def look_up(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @action(InputEvent, retry=RetryPolicy(initial_interval=0.002))
    async def ask(self, event: InputEvent, ctx: Any) -> Asked:
        await asyncio.sleep(0.001)
        if event.input % 5 == 0 and event.input not in self.failed:
            self.failed.add(event.input)
            raise OSError("once")
        async with self.lock:
            look_up = ctx.get_resource("look_up", "tool")
            first, _ = await asyncio.gather(look_up(event.input), look_up(event.input))
        return Asked(number=first)

    @action(Asked, blocking=True)
    def think(self, event: Asked, ctx: Any) -> Answered:
        return Answered(number=event.number)

    @action(Answered, max_concurrency=1)
    async def answer(self, event: Answered, ctx: Any) -> OutputEvent:
        place = ctx.short_term_memory.get("place", 0) + 1
        ctx.short_term_memory.set("place", place)
        await asyncio.sleep(0)
        return OutputEvent(output=(ctx.key, event.number, place))


def test_one_place_is_enough_for_all(agents_environment: MakeEnvironment) -> None:
    keys = 50
    records = 500
    options = {"run.max-in-flight": 1, "run.pool-size": 1, "queue.max-total": 1, "queue.max-per-key": 1}
    env = agents_environment(parallelism=2, config=options)
    outputs = env.from_list(range(records), lambda number: number % keys).apply(CrowdedAgent).to_list()
    env.execute()
    places_by_key: dict[int, list[tuple[int, int]]] = {key: [] for key in range(keys)}
    for key, number, place in outputs:
        places_by_key[key].append((number, place))
    assert places_by_key == {
        key: [(number, place) for place, number in enumerate(range(key, records, keys), 1)]
        for key in range(keys)
    }


class RudeAgent(Agent):
    """One client raises when it is closed, another does not end.

    Args:
        path: Gets a line for each client that is asked to close.
    """

    def __init__(self, path: str) -> None:
        self.beats = Heartbeats(path)

    @client
    async def raises(self) -> AsyncIterator[str]:
        yield "raises"
        self.beats.write("close", "raises")
        raise OSError("cannot close")

    @client
    async def hangs(self) -> AsyncIterator[str]:
        yield "hangs"
        self.beats.write("close", "hangs")
        await asyncio.Event().wait()

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.input, await ctx.client("raises"), await ctx.client("hangs")))


@pytest.mark.nightly
def test_clients_that_end_badly_hide_no_result(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    env = agents_environment()
    outputs = env.from_list(range(20), str).apply(RudeAgent(str(beats))).to_list()
    env.execute()
    assert sorted(outputs) == [(number, "raises", "hangs") for number in range(20)]
    assert sorted(beat.key for beat in read_beats(beats)) == ["hangs", "raises"]
