"""The script that is killed and started again; its arguments are in ``LOCAL_CHAOS``.

``Desk`` books each order: two durable calls in parallel, a pause for some, a signal for others, an approval
for others, and a last durable call. ``Totals`` passes on windows of event time of what ``Desk`` has booked.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pyflink.common import Time, Types
from pyflink.datastream import OutputTag, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    EventTime,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)
from flink_agents.connectors.kafka import approvals_to_kafka, kafka_signals, kafka_sink, kafka_source
from tests.local_chaos.orders import WINDOW_MS, awaits_signal, needs_approval, pauses


class Order(BaseModel):
    """What is booked."""

    number: int
    customer: str


class Booked(BaseModel):
    """What came of an order.

    Attributes:
        number: The order.
        customer: Who ordered.
        place: Its place among the orders of the customer, from memory.
        tokens: What the calls returned.
    """

    number: int
    customer: str
    place: int
    tokens: list[str]


class Total(BaseModel):
    """How many orders a window has."""

    customer: str
    start: int
    orders: list[int]


def note(directory: str, *words: object) -> None:
    """Write a line to the file that stands for the world outside."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(Path(directory) / "world", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


async def effect(directory: str, number: int, step: str, idempotency_key: str) -> str:
    """Have an effect that is counted."""
    token = uuid.uuid4().hex[:8]
    await asyncio.sleep(0.05)
    note(directory, "effect", number, step, idempotency_key, token)
    return token


class Desk(Agent):
    """Books orders."""

    def __init__(self, directory: str, waits: bool) -> None:
        self.directory = directory
        self.waits = waits

    @action(InputEvent)
    async def book(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Book an order."""
        order: Order = event.input
        place = ctx.short_term_memory.get("place", 0) + 1
        ctx.short_term_memory.set("place", place)

        def call(step: str) -> Any:
            return ctx.durable_execute_async(effect, self.directory, order.number, step)

        tokens = [*await ctx.gather(call("left"), call("right"))]
        note(self.directory, "seen", order.number, *tokens)
        if pauses(order.number):
            await ctx.sleep(timedelta(milliseconds=300))
        if self.waits and awaits_signal(order.number):
            tokens.append(await ctx.wait_for_signal(f"paid-{order.number}"))
        if self.waits and needs_approval(order.number):
            outcome = await ctx.request_approval("book", {"number": order.number})
            tokens.append(str(outcome.approved))
        tokens.append(await call("end"))
        note(self.directory, "seen", order.number, tokens[-1])
        return OutputEvent(
            output=Booked(number=order.number, customer=order.customer, place=place, tokens=tokens)
        )


class Count(ProcessWindowFunction):
    """Counts a window."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        """Emit the total."""
        yield Total(
            customer=key, start=context.window().start, orders=[booking.number for booking in elements]
        )


class Totals(Agent):
    """Passes totals on, with a durable call for each."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @action(InputEvent)
    async def add(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Note a total."""
        total: Total = event.input
        # A window is known by its first order.
        await ctx.durable_execute_async(effect, self.directory, min(total.orders), "total")
        return OutputEvent(output=total)


def bounded(env: AgentsExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Read orders from a list, and write what was booked to a file at the end."""
    keys = settings["keys"]
    orders = [Order(number=number, customer=f"c{number % keys}") for number in range(settings["orders"])]
    inputs = env.from_list(orders, key_selector=lambda order: order.customer)
    booked = inputs.apply(Desk(settings["directory"], waits=False)).to_list()
    env.execute("orders")
    text = "\n".join(booking.model_dump_json() for booking in booked)
    file = Path(settings["directory"]) / "outputs"
    file.with_suffix(".partial").write_text(text)
    file.with_suffix(".partial").rename(file)


def streamed(env: AgentsExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Read orders from Kafka, and write what was booked, and the totals, to Kafka, until somebody ends it."""
    brokers = settings["brokers"]
    directory = settings["directory"]
    orders = kafka_source(
        env, "orders", value=Order, on_error="fail", out_of_orderness=timedelta(seconds=1), **brokers
    )
    signals = kafka_signals(env, "answers", on_error="fail", **brokers)
    inputs = env.from_datastream(orders, lambda order: order.customer).with_signals(signals)
    # A run may be killed again and again: however long it takes, no window ends without it.
    booked = inputs.apply(Desk(directory, waits=True), event_time=EventTime.hold_watermarks(max_hold="1 h"))
    approvals_to_kafka(booked.approvals(), "approvals", **brokers)
    stream = booked.to_datastream()
    timeout = timedelta(seconds=settings.get("transaction_timeout", 900))
    write: dict[str, Any] = {"delivery": "exactly-once", "transaction_timeout": timeout, **brokers}
    stream.sink_to(kafka_sink("booked", transactional_id="booked", **write))
    # A suspended run holds no window, so its output, and those behind it in its key, may come late.
    late = OutputTag("late", stream.get_type())
    windows = (
        stream.key_by(lambda booking: booking.customer, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
        .side_output_late_data(late)
        .process(Count())
    )
    totals = env.from_datastream(windows, lambda total: total.customer).apply(Totals(directory))
    totals.to_datastream().sink_to(kafka_sink("totals", transactional_id="totals", **write))
    windows.get_side_output(late).sink_to(kafka_sink("late", transactional_id="late", **write))
    env.execute("orders")


def main() -> None:
    """Run the job."""
    settings: dict[str, Any] = json.loads(os.environ["LOCAL_CHAOS"])
    config: dict[str, Any] = {
        "local.state-dir": f"{settings['directory']}/state",
        "local.checkpoint-interval": "500 ms",
        **settings["config"],
    }
    env = AgentsExecutionEnvironment.get_execution_environment(config=config)
    env.stream_env.set_parallelism(settings["parallelism"])
    if settings["backend"] == "rocksdb":
        from pyflink.common import Configuration

        flink = Configuration()
        flink.set_string("state.backend.type", "rocksdb")
        env.stream_env.configure(flink)
    (streamed if settings["brokers"] else bounded)(env, settings)


if __name__ == "__main__":
    main()
