"""Shared by the timed jobs: their records, their clock, and a sink that discards everything.

A job prints its figures as one line of JSON.
"""

from __future__ import annotations

import json
import time
from typing import Any

WARM_UP = 0.2


class Clock:
    """Notes when the first output left, and the steady rate between two marks inside the operator."""

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
            print_figures(first_output=self.first, events_per_second=rate)


def print_figures(**figures: float) -> None:
    """Print what was measured."""
    print(json.dumps(figures), flush=True)


def source(env: Any, events: int, keys: int) -> Any:
    """``events`` records of ``keys`` keys."""
    from pyflink.common import Types

    kind = Types.TUPLE([Types.LONG(), Types.STRING()])
    records = [(number % keys, "x" * 20) for number in range(events)]
    return env.from_collection(records, type_info=kind)


def numbers(env: Any, events: int) -> Any:
    """The numbers from 0, without timestamps."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    source = NumberSequenceSource(0, events - 1)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").set_parallelism(1)


def agents(config: dict[str, Any] | None = None) -> Any:
    """The agents' environment, with parallelism 1."""
    from flink_agents import AgentsExecutionEnvironment

    environment = AgentsExecutionEnvironment.get_execution_environment(config=config)
    environment.stream_env.set_parallelism(1)
    return environment


def discard(stream: Any) -> None:
    """End ``stream`` in a sink that throws everything away."""
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    sink = jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    stream._j_data_stream.sinkTo(sink)
