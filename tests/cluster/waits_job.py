"""The job that the cluster tests of waits submit: runs that sleep, or wait for an answer.

Each run puts out one line: its number, what it was answered, and for how long it slept; where inputs overtake
the runs of their key, also how many of these have gone on. Answers are lines of files in a directory, which
the job reads as they come.

Runs under ``flink run``; ``python tests/cluster/waits_job.py --help`` names the arguments.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, Signal, action

ANSWER = "answer"
"""Name of the signal."""


class Sleeps(Agent):
    """Puts out how long it has slept."""

    output_type = str

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @action(InputEvent)
    async def nap(self, event: InputEvent, ctx: Any) -> OutputEvent:
        start_seconds = ctx.now().timestamp()
        await ctx.sleep(self.seconds)
        return OutputEvent(output=f"{event.input} slept {time.time() - start_seconds:.3f}")


class Asks(Agent):
    """Puts out what it was answered."""

    output_type = str
    side_outputs = {"asked": str}

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        answer = ctx.wait_for_signal(ANSWER, str)
        ctx.emit_to("asked", f"{event.input} {answer.id}")
        return OutputEvent(output=f"{event.input} {await answer}")


class Overtakes(Asks):
    """Lets all inputs of a key ask, and puts out how many of its runs have gone on: all count by one path."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        answer = ctx.wait_for_signal(ANSWER, str)
        ctx.emit_to("asked", f"{event.input} {answer.id} {_count(ctx, 'asked')}")
        return OutputEvent(output=f"{event.input} {await answer} {_count(ctx, 'went on')}")


def _count(ctx: Any, path: str) -> int:
    count = ctx.short_term_memory.get(path, 0) + 1
    ctx.short_term_memory.set(path, count)
    return count


def answer_of(line: str) -> Signal:
    """The signal that a line tells of: a key, what to say, an id, and what waits for it, if that is named."""
    key, answer, name, *wait = line.split(" ")
    return Signal(ANSWER, answer, key=int(key), id=name, wait=wait[0] if wait else None)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="directory of the sinks")
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--answers", required=True, help="directory of the answers; it never ends")
    parser.add_argument(
        "--seconds", type=float, help="let each run sleep for that time, instead of requesting an approval"
    )
    parser.add_argument("--keys", type=int, help="number of keys, whose runs inputs overtake")
    return parser.parse_args(arguments)


def main() -> None:
    from pyflink.common import Duration, Types, WatermarkStrategy
    from pyflink.common.serialization import Encoder
    from pyflink.datastream.connectors.file_system import (
        BucketAssigner,
        FileSink,
        FileSource,
        RollingPolicy,
        StreamFormat,
    )
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    options = parse_arguments()
    env = AgentsExecutionEnvironment.get_execution_environment()
    flink: Any = env.stream_env
    source = NumberSequenceSource(0, options.inputs - 1)
    numbers = flink.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    keys = options.keys or options.inputs
    inputs = env.from_datastream(numbers.uid("numbers").set_parallelism(1), lambda number: number % keys)
    files = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), options.answers)
        .monitor_continuously(Duration.of_millis(100))
        .build()
    )
    lines = flink.from_source(files, WatermarkStrategy.no_watermarks(), "answers").uid("answers")
    signals = lines.set_parallelism(1).map(answer_of, Types.PICKLED_BYTE_ARRAY()).set_parallelism(1)
    answered = inputs.with_signals(signals)
    if options.seconds is not None:
        outputs = {"out": answered.apply(Sleeps(options.seconds)).to_datastream()}
    else:
        applied_agent = answered.apply(Asks if options.keys is None else Overtakes)
        unmatched = applied_agent.unmatched_signals().map(
            lambda unmatched_signal: f"{unmatched_signal.signal.value} {unmatched_signal.reason}",
            Types.STRING(),
        )
        outputs = {
            "out": applied_agent.to_datastream(),
            "asked": applied_agent.side_output("asked"),
            "unmatched": unmatched,
        }
    for name, stream in outputs.items():
        sink = (
            FileSink.for_row_format(f"{options.output}/{name}", Encoder.simple_string_encoder())
            .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
            .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
            .build()
        )
        stream.sink_to(sink).uid(f"sink of {name}")
    env.execute("waits")


if __name__ == "__main__":
    main()
