"""A window behind an agent whose calls take a second: what holding watermarks costs.

``python -m benchmarks.hold``: offers 2,000 events a second with watermarks every 200 ms to an
agent with ``EventTime.hold``, and prints one JSON object: calls per second, how long watermarks
were held, how many outputs were late and how many had another timestamp than their input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from benchmarks.common import discard
from flink_agents import Agent, AgentsExecutionEnvironment, EventTime, InputEvent, OutputEvent, action

WARM_UP_SECONDS = 3.0


class Calling(Agent):
    """A call of a second; returns the record, which carries its own timestamp."""

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(1.0)
        return OutputEvent(output=event.input)


class Pace:
    """Lets records pass at a steady rate, and gives each the present time as its timestamp."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.first: float | None = None

    def __call__(self, number: int) -> tuple[int, int]:
        now = time.time()
        if self.first is None:
            self.first = now - number / self.rate
        due = self.first + number / self.rate
        if due > now:
            time.sleep(due - now)
        return number, int(time.time() * 1000)


class Checks:
    """Compares each output with its timestamp and with the watermark; prints figures at the last."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.seen = self.late = self.wrong = self.counted = 0
        self.first = self.begin = self.end = 0.0

    def see(self, stamp: int, timestamp: int | None, watermark: int) -> None:
        """Look at an output."""
        now = time.monotonic()
        self.first = self.first or now
        self.seen += 1
        self.wrong += timestamp != stamp
        self.late += watermark >= stamp
        if now >= self.first + WARM_UP_SECONDS:
            self.begin = self.begin or now
            self.counted, self.end = self.counted + 1, now
        if self.seen == self.events:
            took = self.end - self.begin
            rate = self.counted / took if took else 0.0
            print(json.dumps({"calls_per_second": rate, "late": self.late, "wrong": self.wrong}), flush=True)


def main() -> None:
    """Run the job in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hold", description=__doc__)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second")
    parser.add_argument("--latency", default="2 s", help="expected latency; 0 s shows why it is needed")
    parser.add_argument("--in-flight", type=int, default=10_000)
    run(parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    """Build and execute the job."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return value[1]

    class Check(KeyedProcessFunction):
        def __init__(self, events: int) -> None:
            self.checks = Checks(events)

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.checks.see(value[1], ctx.timestamp(), ctx.timer_service().current_watermark())
            return []

    agents = AgentsExecutionEnvironment.get_execution_environment(
        config={"run.max-in-flight": arguments.in_flight, "queue.max-total": arguments.in_flight}
    )
    env = agents.stream_env
    env.set_parallelism(1)
    env.get_config().set_auto_watermark_interval(200)
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    source = env.from_source(
        NumberSequenceSource(0, arguments.events - 1), WatermarkStrategy.no_watermarks(), "numbers"
    )
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    timed = source.map(Pace(arguments.rate), output_type=pair).assign_timestamps_and_watermarks(strategy)
    hold = EventTime.hold(expected_latency=arguments.latency, hold_timeout="60 s")
    applied = agents.from_datastream(timed, lambda record: record[0]).apply(Calling, event_time=hold)
    checked = applied.to_datastream().key_by(lambda record: 0, key_type=Types.LONG())
    discard(checked.process(Check(arguments.events), output_type=Types.LONG()))
    agents.execute("hold")


if __name__ == "__main__":
    main()
