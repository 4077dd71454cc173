"""The script of a job with lists that ``test_local_lists`` kills and starts again."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.connectors.kafka import kafka_sink

HERE = Path(os.environ["LISTING_JOB"])
COUNT = int(os.environ.get("LISTING_COUNT", "150"))


def note(file: str, line: object) -> None:
    with (HERE / file).open("a") as out:
        out.write(f"{line}\n")


def charge(order: int) -> int:
    note("effects", order)
    return order


class Shop(Agent):
    """Charges each order; the last one waits for a file, so that the end of the input is open."""

    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        order = event.input
        seen = ctx.short_term_memory.get("seen", 0) + 1
        ctx.short_term_memory.set("seen", seen)
        await asyncio.sleep(0.02)
        done = await ctx.durable_execute_async(charge, order)
        while order == COUNT - 1 and not (HERE / "finish").exists():
            await asyncio.sleep(0.05)
        return OutputEvent(output=[done, seen])


def main() -> None:
    env = AgentsExecutionEnvironment.get_execution_environment(
        config={"local.checkpoint-interval": "300 ms", "local.state-dir": str(HERE / "state")}
    )
    orders = list(range(COUNT))
    if os.environ.get("LISTING_SOURCE") == "collection":
        collection = env.stream_env.from_collection(orders)
        source = env.from_datastream(collection, key_selector=lambda order: order % 5)
    else:
        source = env.from_list(orders, key_selector=lambda order: order % 5)
    paid = source.apply(Shop())
    if "LISTING_BROKERS" in os.environ:
        brokers = json.loads(os.environ["LISTING_BROKERS"])
        sink = kafka_sink("paid", delivery="exactly-once", transactional_id="paid", **brokers)
        paid.to_datastream().sink_to(sink)
    outputs = paid.to_list()
    again = env.collect(paid.to_datastream())
    env.execute("shop")
    (HERE / "outputs").write_text(json.dumps([list(outputs), list(again)]))


if __name__ == "__main__":
    main()
