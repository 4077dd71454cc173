"""The limit: a bare ``KeyedProcessFunction`` with one value of state, without this package."""

from __future__ import annotations

import sys
from typing import Any

from pyflink.common import Configuration, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.common import Clock, discard, source
from flink_agents.runtime.flink.launch import gateway


class Count(KeyedProcessFunction):
    """Counts the records of each key."""

    def __init__(self, events: int) -> None:
        self._clock = Clock(events)

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        self._clock.tick()
        yield (value[0], count)


def main(events: int, keys: int) -> None:
    """Run the job."""
    gateway.prepare_jvms()
    configuration = Configuration()
    configuration.set_string("python.execution-mode", "thread")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(1)
    keyed = source(env, events, keys).key_by(lambda record: record[0], key_type=Types.LONG())
    discard(keyed.process(Count(events), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])))
    env.execute("bare")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
