"""Timed jobs whose actions wait: ``python -m benchmarks.waiting JOB EVENTS KEYS SECONDS``.

``sync``, ``async``   agents that report when each record was created and when its output arrived
``bare``              a bare ``KeyedProcessFunction`` doing the same
``flood``             an agent with as many calls in flight as its slots allow
``calls``             the same calls from a plain asyncio program, without streams: the limit

A key has one call in flight, so ``flood`` needs as many keys as slots to fill them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from benchmarks.common import WARM_UP, agents, discard, numbers, print_figures

SLOTS = 10_000
PACE_SECONDS = 0.05


class Arrivals:
    """Takes outputs, behind the operator, and prints at the end by how much they came later.

    Args:
        events: Number of outputs.
        seconds: What is taken off each delay: the time of the call.
    """

    def __init__(self, events: int, seconds: float) -> None:
        self._events = events
        self._seconds = seconds
        self._delays: list[float] = []

    def __call__(self, made_at: float) -> float:
        """Take the time at which a record was made."""
        self._delays.append(time.time() - made_at - self._seconds)
        if len(self._delays) == self._events:
            # What comes first waits for classes and code to be loaded.
            delays = sorted(self._delays[int(self._events * WARM_UP) :])
            prefix = "above_call_" if self._seconds else ""
            figures = {"p50_ms": delays[len(delays) // 2], "p99_ms": delays[int(len(delays) * 0.99)]}
            print_figures(**{prefix + name: 1000 * value for name, value in figures.items()})
        return made_at


def paced(number: int) -> tuple[int, float]:
    """A record, made one pace after the one before."""
    time.sleep(PACE_SECONDS)
    return number, time.time()


def run_agent(agent: Any, events: int, keys: int, seconds: float) -> None:
    """Twenty records a second through an agent."""
    environment = agents()
    records = numbers(environment.stream_env, events).map(paced)
    applied = environment.from_datastream(records, lambda record: record[0] % keys).apply(agent)
    discard(applied.to_datastream().map(Arrivals(events, seconds)))
    environment.execute("latency")


def run_sync(events: int, keys: int, seconds: float) -> None:
    """An agent whose action ends at once."""
    from flink_agents import Agent, InputEvent, OutputEvent, action

    class Direct(Agent):
        @action(InputEvent)
        def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.input[1])

    run_agent(Direct, events, keys, 0.0)


def run_async(events: int, keys: int, seconds: float) -> None:
    """An agent whose action makes a call."""
    from flink_agents import Agent, InputEvent, OutputEvent, action

    class Waiting(Agent):
        @action(InputEvent)
        async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await asyncio.sleep(seconds)
            return OutputEvent(output=event.input[1])

    run_agent(Waiting, events, keys, seconds)


def run_bare(events: int, keys: int, seconds: float) -> None:
    """The limit for actions that end at once, with the same buffer timeout."""
    from pyflink.datastream import KeyedProcessFunction

    class Bare(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value[1]

    environment = agents().stream_env
    keyed = numbers(environment, events).map(paced).key_by(lambda record: record[0] % keys)
    discard(keyed.process(Bare()).disable_chaining().map(Arrivals(events, 0.0)))
    environment.execute("bare")


class InFlight:
    """Counts calls; prints rate, peak and processor time at the end. Only for the thread of one loop."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._begun = self._cpu = 0.0
        self._now = self._peak = self._done = 0

    async def call(self, seconds: float) -> None:
        """Make one call."""
        if not self._begun:
            self._begun, self._cpu = time.time(), time.process_time()
        self._now += 1
        self._peak = max(self._peak, self._now)
        await asyncio.sleep(seconds)
        self._now -= 1
        self._done += 1
        if self._done == self._events:
            print_figures(
                in_flight=self._peak,
                calls_per_second=self._events / (time.time() - self._begun),
                cpu_ms_per_call=1000 * (time.process_time() - self._cpu) / self._events,
            )


def run_flood(events: int, keys: int, seconds: float) -> None:
    """An agent that gets records as fast as it takes them."""
    from flink_agents import Agent, InputEvent, OutputEvent, action

    class Flooded(Agent):
        def __init__(self) -> None:
            self.calls = InFlight(events)

        @action(InputEvent)
        async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await self.calls.call(seconds)
            return OutputEvent(output=event.input)

    environment = agents({"run.max-in-flight": SLOTS})
    records = numbers(environment.stream_env, events)
    applied = environment.from_datastream(records, lambda number: number % keys).apply(Flooded)
    discard(applied.to_datastream())
    environment.execute("flood")


def run_calls(events: int, keys: int, seconds: float) -> None:
    """A task per call, and a semaphore."""

    async def main() -> None:
        slots, calls = asyncio.Semaphore(SLOTS), InFlight(events)

        async def call_durably() -> None:
            async with slots:
                await calls.call(seconds)

        await asyncio.gather(*(call_durably() for _ in range(events)))

    asyncio.run(main())


JOBS = {"sync": run_sync, "async": run_async, "bare": run_bare, "flood": run_flood, "calls": run_calls}

if __name__ == "__main__":
    JOBS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
