"""Four agents in one job: a chain with a time window between two of them, and one that calls two others.

::

    ratings -> RatingAgent (per product, a slow call for each rating)
            -> windows of ten seconds (per product)
            -> BuyerAgent (per product), which calls StockAgent and TrendAgent concurrently

``RatingAgent`` holds event time, so that a window gets all results of its time, however long their calls
take. ``BuyerAgent`` waits for the answers of both agents for half a second, and decides without the one that
is late. Run it with ``python examples/workflow_multiple_agent.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    EventTime,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)

RATINGS = [
    (1_000, "kettle", "good"),
    (2_000, "lamp", "bad"),
    (4_000, "kettle", "good"),
    (9_000, "kettle", "bad"),
    (12_000, "kettle", "good"),
    (13_000, "lamp", "bad"),
    (25_000, "lamp", "good"),
]
"""Time in milliseconds, product, and what a customer says."""

STOCK = {"kettle": 3, "lamp": 40}


class Rating(BaseModel):
    """What a customer says of a product."""

    at: int
    product: str
    text: str


class Score(BaseModel):
    """A rating as a number."""

    product: str
    points: int


class Window(BaseModel):
    """What a window says of a product."""

    product: str
    points: list[int]


async def score(text: str) -> int:
    """Stands for the call of a model: it takes its time."""
    await asyncio.sleep(0.2)
    return {"good": 1, "bad": -1}[text]


async def stock_of(product: str) -> int:
    """Stands for the call of a warehouse, which does not answer for lamps."""
    await asyncio.sleep(30 if product == "lamp" else 0.01)
    return STOCK[product]


class RatingAgent(Agent):
    """Makes a number of each rating."""

    @action(InputEvent)
    async def rate(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        rating: Rating = event.input
        points = await ctx.durable_execute_async(score, rating.text)
        return OutputEvent(output=Score(product=rating.product, points=points))


class StockAgent(Agent):
    """Says whether a product is running out."""

    @action(InputEvent)
    async def look(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        units = await ctx.durable_execute_async(stock_of, event.input)
        return OutputEvent(output=f"{units} left")


class TrendAgent(Agent):
    """Says how ratings develop; it remembers those of the windows before."""

    @action(InputEvent)
    def compare(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        window: Window = event.input
        previous_sum = ctx.short_term_memory.get("before", 0)
        now = sum(window.points)
        ctx.short_term_memory.set("before", now)
        return OutputEvent(
            output="better" if now > previous_sum else "worse" if now < previous_sum else "the same"
        )


class BuyerAgent(Agent):
    """Decides about a product, by what two agents say."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        window: Window = event.input
        stock, trend = await ctx.join(
            ctx.call_agent(StockAgent, window.product), ctx.call_agent(TrendAgent, window), timeout=0.5
        )
        stock_text = "stock unknown" if isinstance(stock, TimeoutError) else stock
        return OutputEvent(output=f"{window.product}: {window.points}, {trend}, {stock_text}")


class RatedAt(TimestampAssigner):
    """The event time of a rating."""

    def extract_timestamp(self, value: Rating, record_timestamp: int) -> int:
        return value.at


class Collect(ProcessWindowFunction[Score, Window, str, TimeWindow]):
    """Hands a full window on as one record."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[Score]
    ) -> Iterable[Window]:
        yield Window(product=key, points=sorted(point.points for point in elements))


def run_job() -> list[Any]:
    """Run the job; returns what the last agent puts out."""
    agents = AgentsExecutionEnvironment.get_execution_environment()
    agents.stream_env.set_parallelism(1)
    ratings = agents.stream_env.from_collection(
        [Rating(at=at, product=product, text=text) for at, product, text in RATINGS]
    ).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(RatedAt())
    )
    scores = agents.from_datastream(ratings, key_selector=lambda rating: rating.product).apply(
        RatingAgent(), event_time=EventTime.hold_watermarks()
    )
    windows = (
        scores.to_datastream()
        .key_by(lambda product_event: product_event.product, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .process(Collect())
    )
    decisions = agents.from_datastream(windows, key_selector=lambda window: window.product).apply(
        BuyerAgent()
    )
    decided = decisions.to_list()
    agents.execute("buyers")
    return decided


if __name__ == "__main__":
    for line in sorted(run_job()):
        print(line)
