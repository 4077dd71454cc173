"""Timed job of runs that wait for signals: ``python -m benchmarks.signals EVENTS WAITING RATE``.

``WAITING`` runs wait, each of another key. When all of them wait, ``EVENTS`` of them are answered, ``RATE`` a
second. A delay is the time from the creation of the answer, before it is keyed, to the line of the action
after its wait.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import WARM_UP, agents, discard, numbers, print_figures


class Asked:
    """Tells the stream of signals that all runs have asked.

    Args:
        waiting: How many runs there are.
        marker: The file that it makes then.
    """

    def __init__(self, waiting: int, marker: Path) -> None:
        self._left = waiting
        self._marker = marker

    def __call__(self, number: int) -> int:
        """Count one."""
        self._left -= 1
        if not self._left:
            self._marker.touch()
        return number


class Paced:
    """Makes signals at a rate, when all runs have asked.

    Args:
        rate: How many a second.
        marker: The file that tells.
    """

    def __init__(self, rate: float, marker: Path) -> None:
        self._pause = 1 / rate
        self._marker = marker
        self._next = 0.0

    def __call__(self, number: int) -> Any:
        """Make a signal when it is due."""
        from flink_agents import Signal

        while not self._marker.exists():
            time.sleep(0.05)
        self._next = max(self._next + self._pause, time.time() - self._pause)
        time.sleep(max(0.0, self._next - time.time()))
        return Signal("go", time.time(), key=number)


class Delays:
    """Takes delays, and prints at the end how long they were.

    Args:
        events: Number of answers.
    """

    def __init__(self, events: int) -> None:
        self._events = events
        self._delays: list[float] = []

    def __call__(self, delay: float) -> float:
        """Take the delay of one run; less than nothing of one that was not answered."""
        if delay >= 0:
            self._delays.append(delay)
            if len(self._delays) == self._events:
                delays = sorted(self._delays[int(self._events * WARM_UP) :])
                print_figures(
                    p50_ms=1000 * delays[len(delays) // 2], p99_ms=1000 * delays[int(len(delays) * 0.99)]
                )
        return delay


def run(events: int, waiting: int, rate: float, marker: Path) -> None:
    """Ask, and answer."""
    from flink_agents import Agent, InputEvent, OutputEvent, action
    from flink_agents.api.errors import NoMoreSignalsError

    class Asks(Agent):
        side_outputs = {"asked": int}

        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
            ctx.emit_to("asked", event.input)
            try:
                made_at = await ctx.wait_for_signal("go", float)
            except NoMoreSignalsError:
                return OutputEvent(output=-1.0)
            return OutputEvent(output=time.time() - made_at)

    environment = agents()
    inputs = numbers(environment.stream_env, waiting)
    signals = numbers(environment.stream_env, events).map(Paced(rate, marker))
    questions = environment.from_datastream(inputs, lambda number: number).with_signals(signals).apply(Asks)
    discard(questions.to_datastream().map(Delays(events)))
    discard(questions.side_output("asked").map(Asked(waiting, marker)))
    environment.execute("signals")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(directory) / "asked")
