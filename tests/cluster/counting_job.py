"""The job that the cluster tests submit: counts records of each key, and waits in between.

Each output is a line with all that the agent knew, so that :mod:`tests.cluster.counting_check`
can tell what was lost, repeated, reordered or forgotten. Times differ from record to record,
but are the same in each attempt.

Runs under ``flink run``; ``python tests/cluster/counting_job.py --help`` names the arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import zlib
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action


class Numbered(Event):
    number: int
    place: int


class CountingAgent(Agent):
    """Three counters: of begun runs, of waited ones, and a digest of all numbers in their order."""

    output_type = str

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @action(InputEvent)
    def count(self, event: InputEvent, ctx: Any) -> Numbered:
        place = ctx.short_term_memory.get("begun", 0) + 1
        ctx.short_term_memory.set("begun", place)
        return Numbered(number=event.input, place=place)

    @action(Numbered)
    async def wait(self, event: Numbered, ctx: Any) -> OutputEvent:
        await asyncio.sleep(duration(self.seed, event.number))
        memory = ctx.short_term_memory
        waited = memory.get("waited", 0) + 1
        digest = extended_digest(memory.get("digest", 0), event.number)
        memory.set("waited", waited)
        memory.set("digest", digest)
        return OutputEvent(output=f"{ctx.key} {event.number} {event.place} {waited} {digest}")


def duration(seed: int, number: int) -> float:
    """How long the call for a number takes: 1 to 50 ms, in seconds."""
    return (1 + zlib.crc32(f"{seed}:{number}".encode()) % 50) / 1000


def extended_digest(digest: int, number: int) -> int:
    """A digest of a sequence that depends on its order."""
    return zlib.crc32(f"{digest} {number}".encode())


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="directory of the sink")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--per-second", type=float, required=True, help="speed of the source")
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args(arguments)


def main() -> None:
    from pyflink.common import WatermarkStrategy
    from pyflink.common.serialization import Encoder
    from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    options = parse_arguments()
    keys = options.keys
    pause = 1 / options.per_second

    def slowly(number: int) -> int:
        time.sleep(pause)
        return number

    env = AgentsExecutionEnvironment.get_execution_environment()
    flink: Any = env.stream_env
    source = NumberSequenceSource(0, options.records - 1)
    numbers = flink.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    numbers = numbers.uid("numbers").set_parallelism(1).map(slowly).uid("slowly").set_parallelism(1)
    stream = env.from_datastream(numbers, lambda number: number % keys).apply(CountingAgent(options.seed))
    sink = (
        FileSink.for_row_format(options.output, Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    stream.to_datastream().sink_to(sink).uid("sink")
    env.execute("counting")


if __name__ == "__main__":
    main()
