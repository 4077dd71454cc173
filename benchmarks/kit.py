"""The speed of the test kit with many keys that sleep: ``python -m benchmarks.kit KEYS``.

``push_seconds`` are from the first input to the moment at which every key sleeps, ``wake_seconds`` until all
of them have woken by one ``advance``.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.testing import OperatorHarness


class Sleeper(Agent):
    """Sleeps for an hour."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Sleep, and say who did."""
        await ctx.sleep(timedelta(hours=1))
        return OutputEvent(output=event.input)


class Awake(Agent):
    """Does not sleep."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Answer at once."""
        return OutputEvent(output=event.input)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kit", description=__doc__)
    parser.add_argument("keys", type=int, nargs="?", default=100_000)
    parser.add_argument("--awake", action="store_true", help="keys that do not sleep")
    options = parser.parse_args()
    keys = options.keys
    with OperatorHarness(Awake if options.awake else Sleeper, lambda record: record) as harness:
        start_seconds = time.perf_counter()
        outputs = harness.push_all(range(keys))
        asleep = time.perf_counter()
        outputs += harness.advance_time(timedelta(hours=1))
        end = time.perf_counter()
        assert sorted(outputs) == list(range(keys))
    print(
        json.dumps(
            {
                "push_seconds": asleep - start_seconds,
                "wake_seconds": end - asleep,
                "seconds": end - start_seconds,
            }
        )
    )


if __name__ == "__main__":
    main()
