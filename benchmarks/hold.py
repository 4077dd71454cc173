"""The cost of holding watermarks: a window after an agent whose calls take a second.

``python -m benchmarks.hold``: offers 2,000 events a second with watermarks every 200 ms to an
agent with ``EventTime.hold_watermarks``, and prints one JSON object: calls per second, the longest time from
record to output (a backlog shows there), how many outputs were late, and how many had another
timestamp than their input. ``--event-time none`` is the same job without holding; its outputs
have no timestamps to look at.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from benchmarks.common import agents, discard, numbers, print_figures
from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action

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
    """Counts outputs, compares each with its timestamp and the watermark; prints figures at the last.

    Args:
        events: Number of outputs.
        timed: Whether outputs have timestamps.
    """

    def __init__(self, events: int, timed: bool) -> None:
        self.events = events
        self.timed = timed
        self.seen = self.late = self.wrong = self.counted = 0
        self.first = self.begin = self.end = self.longest = 0.0

    def see(self, stamp: int, timestamp: int | None, watermark: int) -> None:
        """Look at an output."""
        now = time.monotonic()
        self.first = self.first or now
        self.seen += 1
        self.wrong += timestamp != stamp
        self.late += watermark >= stamp
        self.longest = max(self.longest, time.time() * 1000 - stamp)
        if now >= self.first + WARM_UP_SECONDS:
            self.begin = self.begin or now
            self.counted = self.counted + 1
            self.end = now
        if self.seen == self.events:
            took = self.end - self.begin
            checked = {"late": self.late, "wrong": self.wrong} if self.timed else {}
            rate = self.counted / took if took else 0.0
            print_figures(calls_per_second=rate, longest_delay_ms=self.longest, **checked)


def main() -> None:
    """Run the job in a new process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hold", description=__doc__)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second")
    parser.add_argument("--in-flight", type=int, default=10_000)
    parser.add_argument("--event-time", choices=("hold", "none"), default="hold")
    run(parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    """Build and execute the job."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import KeyedProcessFunction

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return value[1]

    class Check(KeyedProcessFunction):
        def __init__(self, events: int, timed: bool) -> None:
            self.checks = Checks(events, timed)

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.checks.see(value[1], ctx.timestamp(), ctx.timer_service().current_watermark())
            return []

    environment = agents({"run.max-in-flight": arguments.in_flight, "queue.max-total": arguments.in_flight})
    env = environment.stream_env
    env.get_config().set_auto_watermark_interval(200)
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    records = numbers(env, arguments.events).map(Pace(arguments.rate), output_type=pair)
    timed = records.assign_timestamps_and_watermarks(strategy)
    event_time = EventTime.ignore()
    if arguments.event_time == "hold":
        event_time = EventTime.hold_watermarks(max_hold="60 s")
    applied = environment.from_datastream(timed, lambda record: record[0]).apply(
        Calling, event_time=event_time
    )
    checked = applied.to_datastream().key_by(lambda record: 0, key_type=Types.LONG())
    check = Check(arguments.events, event_time.holds)
    discard(checked.process(check, output_type=Types.LONG()))
    environment.execute("hold")


if __name__ == "__main__":
    main()
