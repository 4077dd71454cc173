"""The script under load; its arguments are in ``LOCAL_CHAOS``, as for ``tests.local_chaos.job``."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    InputEvent,
    OnError,
    OutputEvent,
    RunnerContext,
    action,
)
from flink_agents.connectors.kafka import kafka_signals, kafka_sink, kafka_source
from tests.soak.heap import sample_heap
from tests.soak.objects import Sampler
from tests.soak.plan import asks, awaits_signal, fails, key_of, sleeps


class Order(BaseModel):
    """An input."""

    number: int


async def effect(number: int, step: str) -> str:
    """Have an effect, whose result is recorded."""
    return f"{step} of {number}"


class Clerk(Agent):
    """Is asked by the other agent."""

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Answer with a durable step."""
        return OutputEvent(output=await ctx.durable_execute_async(effect, event.input, "asked"))


class Desk(Agent):
    """Handles orders."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def handle(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Make two steps, and wait, ask, or fail in between."""
        Sampler.begin(self.directory)
        number: int = event.input.number
        ctx.short_term_memory.set("last.number", number)
        await ctx.durable_execute_async(effect, number, "first")
        if sleeps(number):
            await ctx.sleep(timedelta(milliseconds=300))
        if awaits_signal(number):
            await ctx.wait_for_signal(f"paid-{number}")
        if asks(number):
            await ctx.call_agent(Clerk, number)
        if fails(number):
            raise ValueError(f"order {number} cannot be handled")
        await ctx.durable_execute_async(effect, number, "second")
        return OutputEvent(output={"number": number})


def main() -> None:
    """Run the job until somebody ends it."""
    settings: dict[str, Any] = json.loads(os.environ["LOCAL_CHAOS"])
    directory = settings["directory"]
    brokers = settings["brokers"]
    env = AgentsExecutionEnvironment.get_execution_environment(config=settings["config"])
    env.stream_env.set_parallelism(1)
    if settings["backend"] == "rocksdb":
        from pyflink.common import Configuration

        flink = Configuration()
        flink.set_string("state.backend.type", "rocksdb")
        env.stream_env.configure(flink)
    orders = kafka_source(env, "orders", value=Order, on_error="fail", out_of_orderness=None, **brokers)
    signals = kafka_signals(env, "answers", on_error="fail", **brokers)
    inputs = env.from_datastream(orders, lambda order: key_of(order.number)).with_signals(signals)
    handled = inputs.apply(Desk(directory))
    write: dict[str, Any] = {"delivery": "exactly-once", "transaction_timeout": timedelta(minutes=14)}
    handled.to_datastream().sink_to(kafka_sink("handled", transactional_id="handled", **write, **brokers))
    letters = kafka_sink("letters", transactional_id="letters", **write, **brokers)
    handled.dead_letters().sink_to(letters)
    sample_heap(directory)
    env.execute("soak")


if __name__ == "__main__":
    main()
