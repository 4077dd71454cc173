"""This package: an agent with two durable calls, SQLite journal, counter in short-term memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workload import FOLDER, INPUTS, MODE, PER_SECOND, Progress, charge, key_of, notify, print_line

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action


class Handler(Agent):
    """Makes the two steps of an input, and counts."""

    @action(InputEvent)
    async def handle(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number, sent = event.input
        await ctx.durable_execute_async(charge, number)
        await ctx.durable_execute_async(notify, number)
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        return OutputEvent(output=sent)


class Paced:
    """Gives each input the time at which it is sent, and waits for it."""

    def __init__(self) -> None:
        self._begin: float | None = None

    def __call__(self, number: int) -> tuple[int, float]:
        self._begin = self._begin or time.time()
        # An input has to be the same after a restart, or its records are not found.
        at = self._begin + number / PER_SECOND if MODE == "latency" else 0.0
        time.sleep(max(0.0, at - time.time()))
        return number, at


class Outputs:
    """Counts the outputs."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __call__(self, sent: float) -> float:
        self._progress = self._progress or Progress()
        self._progress.output(sent)
        return sent


def main(journal: Mapping[str, Any] | None = None) -> None:
    """Run the job; started again after a kill, it resumes by its name."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    config = {"local.state-dir": str(Path(FOLDER) / "jobs")} | dict(journal or {})
    env = AgentsExecutionEnvironment.get_execution_environment(config=config)
    env.stream_env.set_parallelism(1)
    numbers = env.stream_env.from_source(
        NumberSequenceSource(0, INPUTS - 1), WatermarkStrategy.no_watermarks(), "numbers"
    ).map(Paced())
    outputs = env.from_datastream(numbers, lambda record: key_of(record[0])).apply(Handler()).to_datastream()
    outputs.map(Outputs()).filter(lambda sent: False).print()
    print_line("ready")
    env.execute("peers")
    print_line("end")


if __name__ == "__main__":
    main()
