"""The jobs of the chaos runs: chained durable calls and a tumbling window after them, or branching ones.

Writes the agent's outputs and the windows' sums, each by a sink that commits with checkpoints.
Runs under ``flink run``; ``python -m tests.cluster.durable_job --help`` names the arguments.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from flink_agents import AgentsExecutionEnvironment, EventTime
from tests.cluster.branching_agent import BranchingAgent
from tests.cluster.branching_check import SOURCES, BranchingWorkload, workload_of
from tests.cluster.durable_agent import ChainAgent
from tests.cluster.durable_check import WINDOW_MS, stamp
from tests.cluster.settings import DURABLE_JOBS

# A store that is away for longer than the hold lets outputs be late, and windows lack them.
HOLD = EventTime.hold_watermarks(max_hold="100 s")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="directory of the agent's outputs")
    parser.add_argument("--windows", required=True, help="directory of the windows' outputs")
    parser.add_argument("--effects", required=True, help="file for the effects of calls")
    parser.add_argument("--job", choices=DURABLE_JOBS, default="chain", help="the agent to run")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--per-second", type=float, required=True, help="speed of the source")
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args(arguments)


def source(flink: Any, options: argparse.Namespace) -> Any:
    """The numbers, at a steady speed, with timestamps; goes on where a checkpoint left it.

    They come in their order, or from two subtasks, each of which keeps the order of its own.
    """
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return stamp(value)

    # Each subtask of the source has a part of the range, and makes of it the numbers of one remainder.
    subtasks = SOURCES if options.job == BranchingWorkload.job else 1
    part = -(-options.events // subtasks)
    pause, parallelism = subtasks / options.per_second, flink.get_parallelism()
    # Of what PyFlink makes for timestamps, only the last operator has the parallelism that one sets.
    flink.set_parallelism(subtasks)

    def slowly(number: int) -> int:
        time.sleep(pause)
        return number % part * subtasks + number // part

    numbers = flink.from_source(
        NumberSequenceSource(0, options.events - 1), WatermarkStrategy.no_watermarks(), "numbers"
    )
    numbers = numbers.uid("numbers").map(slowly, output_type=Types.LONG()).uid("slowly")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    numbers = numbers.assign_timestamps_and_watermarks(strategy).uid("timestamps")
    flink.set_parallelism(parallelism)
    return numbers


def sums(outputs: Any) -> Any:
    """For each key and window: how many outputs it has, and the sum of their numbers and counters."""
    from pyflink.common import Time, Types
    from pyflink.datastream import ProcessWindowFunction
    from pyflink.datastream.window import TumblingEventTimeWindows

    class Sum(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            words = [line.split() for line in elements]
            numbers, run_counts = (sum(int(fields[place]) for fields in words) for place in (1, 2))
            yield f"{key} {context.window().start} {len(words)} {numbers} {run_counts}"

    keyed = outputs.key_by(lambda line: int(line.split()[0]), key_type=Types.LONG())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    return windows.process(Sum(), Types.STRING()).uid("windows")


def sink(directory: str) -> Any:
    """A sink whose files are whole when a checkpoint completes."""
    from pyflink.common.serialization import Encoder
    from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy

    return (
        FileSink.for_row_format(directory, Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )


def build(env: AgentsExecutionEnvironment, options: argparse.Namespace) -> None:
    """Add the job to an environment."""
    work = workload_of(options.job, options.events, options.keys)
    branching = options.job == BranchingWorkload.job
    numbers = source(env.stream_env, options)
    agent = (BranchingAgent if branching else ChainAgent)(options.seed, options.effects)
    # Watermarks cannot be held for an input that waits for another one.
    event_time = EventTime.ignore() if branching else HOLD
    stream = env.from_datastream(numbers, work.key_of).apply(agent, event_time=event_time)
    outputs = stream.to_datastream()
    outputs.sink_to(sink(options.output)).uid("outputs")
    if not branching:
        sums(outputs).sink_to(sink(options.windows)).uid("sums")


def main() -> None:
    env = AgentsExecutionEnvironment.get_execution_environment()
    build(env, parse_arguments())
    env.execute("durable")


if __name__ == "__main__":
    main()
