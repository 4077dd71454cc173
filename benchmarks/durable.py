"""Timed jobs with durable calls: ``python -m benchmarks.durable JOB STORE EVENTS KEYS``.

``rate``      an agent that makes one durable call for each event, of a function that does nothing
``latency``   the same at twenty records a second, from record to output; of ``EVENTS`` one in 150
``static``    the agent of the case ``static``, which makes no durable call, with a store; three times
              ``EVENTS``, of 100 keys

``STORE`` is the name of a store, or ``none``: the same job without a store, which makes its calls
directly. A file lies in a new directory below that of the system for temporary files.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.brokers import kafka_options
from benchmarks.common import WARM_UP, agents, discard, numbers, print_figures, source
from benchmarks.waiting import Arrivals, paced
from flink_agents import Agent, InputEvent, OutputEvent, action

DIRECT = "none"


async def respond(number: int) -> int:
    """The function that is called."""
    return number


class Steady:
    """Prints calls per second, and processor time per call. Only for the thread of one loop.

    Args:
        events: Number of calls.
    """

    def __init__(self, events: int) -> None:
        self._events = events
        self._first = int(events * WARM_UP)
        self._seen = 0
        self._begun = self._all = self._loop = 0.0

    def tick(self) -> None:
        """Count a call that is recorded."""
        self._seen += 1
        if self._seen == self._first:
            self._begun, self._all, self._loop = time.time(), time.process_time(), time.thread_time()
        if self._seen == self._events:
            calls = self._events - self._first
            print_figures(
                calls_per_second=calls / (time.time() - self._begun),
                cpu_ms_per_call=1000 * (time.process_time() - self._all) / calls,
                loop_ms_per_call=1000 * (time.thread_time() - self._loop) / calls,
            )


class Calling(Agent):
    """Makes a durable call for each number, and returns it as ``recorded``."""

    def __init__(self, events: int) -> None:
        self.steady = Steady(events)

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(respond, event.input)
        self.steady.tick()
        return OutputEvent(output=event.input)


class CallingDirectly(Agent):
    """The same without a record."""

    def __init__(self, events: int) -> None:
        self.steady = Steady(events)

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await respond(event.input)
        self.steady.tick()
        return OutputEvent(output=event.input)


class Answering(Agent):
    """Makes a durable call, and returns when the record was made."""

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(respond, event.input[0])
        return OutputEvent(output=event.input[1])


class AnsweringDirectly(Agent):
    """The same without a record."""

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await respond(event.input[0])
        return OutputEvent(output=event.input[1])


def run_rate(config: dict[str, Any], store: str, events: int, keys: int) -> None:
    """Records come as fast as the agent takes them."""
    environment = agents(config)
    agent = CallingDirectly(events) if store == DIRECT else Calling(events)
    records = numbers(environment.stream_env, events)
    applied = environment.from_datastream(records, lambda number: number % keys).apply(agent)
    discard(applied.to_datastream())
    environment.execute("rate")


def run_latency(config: dict[str, Any], store: str, events: int, keys: int) -> None:
    """Twenty records a second."""
    environment = agents(config)
    events = max(1, events // 150)
    agent = AnsweringDirectly() if store == DIRECT else Answering()
    records = numbers(environment.stream_env, events).map(paced)
    applied = environment.from_datastream(records, lambda record: record[0] % keys).apply(agent)
    discard(applied.to_datastream().map(Arrivals(events, 0.0)))
    environment.execute("latency")


def run_static(config: dict[str, Any], store: str, events: int, keys: int) -> None:
    """Two chained actions with a counter in memory."""
    from benchmarks.ours import CounterAgent

    environment = agents(config)
    events = 3 * events
    stream = source(environment.stream_env, events, 100)
    applied = environment.from_datastream(stream, lambda record: record[0]).apply(CounterAgent(events))
    discard(applied.to_datastream())
    environment.execute("static")


JOBS = {"rate": run_rate, "latency": run_latency, "static": run_static}


def options(store: str, directory: str) -> dict[str, Any]:
    """The options of a job that records in ``store``."""
    if store == DIRECT:
        return {}
    named: dict[str, Any] = {"action-state.store": store}
    if store == "kafka":
        named |= kafka_options("action-state.kafka.")
    if store == "sqlite":
        named["action-state.sqlite.path"] = str(Path(directory) / "store.db")
    return named


def main(job: str, store: str, events: int, keys: int) -> None:
    """Run one job."""
    with tempfile.TemporaryDirectory() as directory:
        JOBS[job](options(store, directory), store, events, keys)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
