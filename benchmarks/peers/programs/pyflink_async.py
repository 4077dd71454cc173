"""PyFlink's own AsyncFunction and a keyed counter: no step is recorded."""

from __future__ import annotations

import sys
import time
from typing import Any

from ours import Outputs, Paced
from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from workload import INPUTS, MODE, charge, key_of, notify, print_line

CAPACITY = 1000


class Steps(AsyncFunction):
    """Makes the two steps of an input."""

    async def async_invoke(self, value: tuple[int, float]) -> list[tuple[int, float]]:
        number, sent = value
        await charge(number)
        await notify(number)
        return [(number, sent)]

    def timeout(self, value: tuple[int, float]) -> list[tuple[int, float]]:
        raise TimeoutError(value)


class Count(KeyedProcessFunction):
    """Counts the inputs of each key."""

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[int, float], ctx: Any) -> Any:
        self._count.update((self._count.value() or 0) + 1)
        yield value[1]


def main() -> None:
    """Run the job."""
    from flink_agents.runtime.flink.launch import gateway

    gateway.prepare_jvms()  # finds the Java runtime
    configuration = Configuration()
    configuration.set_string("python.execution-mode", "process")
    configuration.set_string("python.executable", sys.executable)
    if MODE == "latency":
        # A bundle ends when its last input was sent. The default of 1,000 inputs would show that alone.
        configuration.set_string("python.fn-execution.bundle.size", "1")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(1)
    source = NumberSequenceSource(0, INPUTS - 1)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").map(Paced())
    stepped = AsyncDataStream.unordered_wait(numbers, Steps(), Time.seconds(60), CAPACITY)
    counted = stepped.key_by(lambda value: key_of(value[0])).process(Count())
    counted.map(Outputs()).filter(lambda sent: False).print()
    print_line("ready")
    env.execute("peers")
    print_line("end")
    time.sleep(0.1)


if __name__ == "__main__":
    main()
