"""The timed agent."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import Clock, agents, discard, source
from flink_agents import Agent, Event, InputEvent, OutputEvent, action


class Read(Event):
    """A record, read by the first action."""

    key: int
    text: str


class CounterAgent(Agent):
    """Two chained actions; the second counts in short-term memory."""

    def __init__(self, events: int) -> None:
        self.clock = Clock(events)

    @action(InputEvent)
    def read(self, event: InputEvent, ctx: Any) -> Read:
        key, text = event.input
        return Read(key=key, text=text)

    @action(Read)
    def count(self, event: Read, ctx: Any) -> OutputEvent:
        memory = ctx.short_term_memory
        count = memory.get("count", 0) + 1
        memory.set("count", count)
        self.clock.tick()
        return OutputEvent(output=(event.key, count))


def main(events: int, keys: int) -> None:
    """Run the job."""
    environment = agents()
    stream = source(environment.stream_env, events, keys)
    applied = environment.from_datastream(stream, lambda record: record[0]).apply(CounterAgent(events=events))
    discard(applied.to_datastream())
    environment.execute("ours")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
