"""A job with one of each thing to inspect: waits, a stuck run, dead letters, requests about keys.

``python watched_job.py`` is submitted to a cluster. Its signals are part of it: requests about two keys.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from pyflink.common import WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.events.key_requests import end_request, inspect_request
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.trace.records import run_id_of

FOREVER = 2**60
JOB = "watched-job"


class Watched(Agent):
    """Handles numbers, which are the keys. An error would fail the job: no policy makes dead letters."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Any:
        number = event.input
        ctx.short_term_memory.set("seen", number)
        if number in (1, 3):
            await ctx.wait_for_signal("never")
        if number == 2:
            await asyncio.Event().wait()
        return OutputEvent(output=number)


def slowly(number: int) -> int:
    """Let the first numbers pass at once."""
    if number > 10:
        time.sleep(0.05)
    return number


def ask(number: int) -> Any:
    """Ask about the keys 1 and 2 in turns, and end the run of key 3."""
    time.sleep(0.5)
    if number % 3 == 2:
        return end_request(3, run_id_of(JOB, encode_key(3), 0), "enough")
    return inspect_request(1 + number % 3)


def build(env: AgentsExecutionEnvironment) -> None:
    """Add the job to an environment."""
    flink: Any = env.stream_env
    never = WatermarkStrategy.no_watermarks()
    numbers = flink.from_source(NumberSequenceSource(0, FOREVER), never, "numbers").map(slowly)
    signals = flink.from_source(NumberSequenceSource(0, FOREVER), never, "requests").map(ask)
    inputs = env.from_datastream(numbers, lambda number: number).with_signals(signals)
    inputs.apply(Watched).to_datastream().print()


if __name__ == "__main__":
    os.environ |= {"FLINK_AGENTS_RUN_STUCK_AFTER": "1 s", "FLINK_AGENTS_JOB_IDENTIFIER": JOB}
    environment: Any = AgentsExecutionEnvironment.get_execution_environment()
    build(environment)
    environment.execute("watched")
