"""The script of a job that ``test_local_resume`` kills and starts again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action

HERE = Path(os.environ["RESUMING_JOB"])
KEYS = 10


def note(file: str, line: object) -> None:
    with (HERE / file).open("a") as out:
        out.write(f"{line}\n")


def charge(order: int) -> int:
    note("effects", order)
    time.sleep(0.005)
    return order


class Till(Agent):
    """Charges each order once, and counts them by key."""

    @action(InputEvent)
    def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        if os.environ.get("RESUMING_JOB_FAILS"):
            note("failures", event.input)
            raise LookupError("a typo")
        done = ctx.durable_execute(charge, event.input)
        note("records", f"{done} {count}")
        return OutputEvent(output=done)


def main() -> None:
    env = AgentsExecutionEnvironment.get_execution_environment(
        config={
            "local.checkpoint-interval": "300 ms",
            "local.state-dir": str(HERE / "state"),
            # No start waits for the lease of a process that has ended.
            "action-state.sqlite.lease": "1 h",
        }
    )
    flink = Configuration()
    flink.set_string("state.backend.type", os.environ.get("RESUMING_JOB_BACKEND", "hashmap"))
    env.stream_env.configure(flink)
    if "RESUMING_JOB_PARALLELISM" in os.environ:
        env.stream_env.set_parallelism(int(os.environ["RESUMING_JOB_PARALLELISM"]))
    numbers = env.stream_env.from_source(
        NumberSequenceSource(0, 10**9), WatermarkStrategy.no_watermarks(), "numbers"
    ).set_parallelism(1)
    env.from_datastream(numbers, key_selector=lambda order: order % KEYS).apply(Till())
    env.execute("till")


if __name__ == "__main__":
    main()
