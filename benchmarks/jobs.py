"""The jobs that benchmarks time: ours, and the bare PyFlink function that is the limit.

Both read the same records from the same kind of source, key them by the same selector and end
in a sink that throws everything away. Each prints one line of JSON: when its first output
left, and the steady rate between two marks inside the operator.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action

WARM_UP = 0.2


class Clock:
    """Notes when a share of the records has passed."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.seen = 0
        self.first = 0.0
        self.begin = 0.0

    def tick(self) -> None:
        """Count a record; print the figures at the last one."""
        self.seen += 1
        if self.seen == 1:
            self.first = time.time()
        if self.seen == int(self.events * WARM_UP):
            self.begin = time.time()
        if self.seen == self.events:
            took = time.time() - self.begin
            rate = self.events * (1 - WARM_UP) / took if took > 0 else 0.0
            print(json.dumps({"first_output": self.first, "events_per_second": rate}), flush=True)


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


def source(env: Any, events: int, keys: int) -> Any:
    """``events`` records of ``keys`` keys."""
    from pyflink.common import Types

    kind = Types.TUPLE([Types.LONG(), Types.STRING()])
    records = [(number % keys, "x" * 20) for number in range(events)]
    return env.from_collection(records, type_info=kind)


def discard(stream: Any) -> None:
    """End ``stream`` in a sink that throws everything away."""
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    sink = jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    stream._j_data_stream.sinkTo(sink)


def run_ours(events: int, keys: int) -> None:
    """The agent."""
    agents = AgentsExecutionEnvironment.get_execution_environment()
    env = agents.stream_env
    env.set_parallelism(1)
    stream = source(env, events, keys)
    applied = agents.from_datastream(stream, lambda record: record[0]).apply(CounterAgent(events=events))
    discard(applied.to_datastream())
    agents.execute("ours")


def run_bare(events: int, keys: int) -> None:
    """A ``KeyedProcessFunction`` with one value of state."""
    agents = AgentsExecutionEnvironment.get_execution_environment()  # sets thread mode
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    class Bare(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self.clock = Clock(events)

        def process_element(self, value: Any, ctx: Any) -> Any:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
            self.clock.tick()
            yield (value[0], count)

    env = agents.stream_env
    env.set_parallelism(1)
    keyed = source(env, events, keys).key_by(lambda record: record[0], key_type=Types.LONG())
    discard(keyed.process(Bare(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])))
    env.execute("bare")


if __name__ == "__main__":
    {"ours": run_ours, "bare": run_bare}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
