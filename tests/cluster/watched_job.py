"""A job with something of everything to look at: waits, a stuck run, dead letters, requests about keys.

``python watched_job.py`` is submitted to a cluster. Its signals are part of it: requests about two keys.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from pyflink.common import WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OnError, OutputEvent, action
from flink_agents.api.key_requests import inspect_request

FOREVER = 2**60


class Watched(Agent):
    """Handles numbers, which are the keys."""

    on_error = OnError.DEAD_LETTER

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Any:
        number = event.input
        ctx.short_term_memory.set("seen", number)
        if number == 1:
            await ctx.wait_for_signal("never")
        if number == 2:
            await asyncio.Event().wait()
        if number == 3:
            raise ValueError("three is no good")
        return OutputEvent(output=number)


def slowly(number: int) -> int:
    """Let the first numbers pass at once."""
    if number > 10:
        time.sleep(0.05)
    return number


def ask(number: int) -> Any:
    """Ask about the keys 1 and 2 in turns."""
    time.sleep(0.5)
    return inspect_request(1 + number % 2)


def build(env: AgentsExecutionEnvironment) -> None:
    """Add the job to an environment."""
    flink: Any = env.stream_env
    never = WatermarkStrategy.no_watermarks()
    numbers = flink.from_source(NumberSequenceSource(0, FOREVER), never, "numbers").map(slowly)
    signals = flink.from_source(NumberSequenceSource(0, FOREVER), never, "requests").map(ask)
    inputs = env.from_datastream(numbers, lambda number: number).with_signals(signals)
    inputs.apply(Watched).to_datastream().print()


if __name__ == "__main__":
    os.environ["FLINK_AGENTS_RUN_STUCK_AFTER"] = "1 s"
    environment: Any = AgentsExecutionEnvironment.get_execution_environment()
    build(environment)
    environment.execute("watched")
