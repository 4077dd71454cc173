"""Windows behind an agent with signals, whose source is silent for longer than its idle timeout."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyflink.common import Types

from flink_agents import Agent, AgentsExecutionEnvironment, EventTime, InputEvent, OutputEvent, Signal, action
from tests.minicluster.sources import numbers
from tests.minicluster.test_event_time import expected, stamp, timed, windows

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

RECORDS = 90
QUIET = 30
"""The record before which the source is silent; it is in the middle of a window."""


class After:
    """Forwards a number; before some of them, waits until a file exists.

    Args:
        files: The files by number.
    """

    def __init__(self, files: dict[int, Path]) -> None:
        self.files = files

    def __call__(self, number: int) -> int:
        file = self.files.get(number)
        give_up = time.monotonic() + 60
        while file is not None and not file.exists():
            assert time.monotonic() < give_up, f"no {file}"
            time.sleep(0.02)
        return number


class Answers(Agent):
    """Its last run waits for a signal.

    Args:
        last: The file that tells of it.
    """

    def __init__(self, last: Path) -> None:
        self.last = last

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
        if event.input < RECORDS:
            return OutputEvent(output=event.input)
        self.last.write_text("is waiting")
        await ctx.wait_for_signal("go", int)
        return None


class Echoes(Agent):
    @action(InputEvent)
    def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


def go(number: int) -> Signal:
    return Signal("go", number, key=0)


def tell_when_idle(env: AgentsExecutionEnvironment, stream: Any, file: Path) -> None:
    """Write a file when ``stream`` is idle: then the watermark of a union is that of its other part."""
    from pyflink.datastream import KeyedProcessFunction

    class Tell(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(2**60)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            file.write_text("is idle")
            return ()

    ended = numbers(env, 1).map(int, output_type=Types.PICKLED_BYTE_ARRAY())
    union = stream.map(int, output_type=Types.PICKLED_BYTE_ARRAY()).union(ended)
    env.collect(union.key_by(lambda value: 0).process(Tell()))


def watermarks(stream: Any, seen: Path) -> Any:
    """Each record, and whether the watermark is still that of a record; write a file when all are there."""
    from pyflink.datastream import KeyedProcessFunction

    class Watermark(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            if value == RECORDS - 1:
                seen.write_text("all are there")
            yield value, ctx.timer_service().current_watermark() <= stamp(RECORDS)

    return stream.key_by(lambda value: 0).process(Watermark())


HOLD = EventTime.hold_watermarks(max_hold="60 s")


@pytest.mark.parametrize(
    "holds", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["hold", "ignore"]
)
def test_signals_do_not_advance_event_time(
    agents_environment: MakeEnvironment, tmp_path: Path, holds: bool
) -> None:
    """A window is open while the source is idle, and gets the records that come later."""
    idle = tmp_path / "idle"
    last = tmp_path / "last"
    seen = tmp_path / "seen"
    event_time = HOLD if holds else EventTime.ignore()
    env = agents_environment()
    # Without hold, the end of the inputs may pass records.
    pace = After({QUIET: idle} if holds else {QUIET: idle, RECORDS: seen})
    inputs = timed(env, RECORDS + 1, idle_partition=True, pace=pace)
    tell_when_idle(env, inputs, idle)
    signals = numbers(env, 1).map(After({0: last})).map(go)
    first = env.from_datastream(inputs, lambda number: 0).with_signals(signals)
    answered = first.apply(Answers(last), event_time=event_time)
    second = env.from_datastream(answered.to_datastream(), lambda number: 0)
    stream = second.apply(Echoes, event_time=event_time).to_datastream()
    outputs = env.collect(windows(stream) if holds else watermarks(stream, seen))
    env.collect(answered.unmatched_signals())
    env.execute()
    in_windows = sorted(expected(range(RECORDS)).items())
    assert sorted(outputs) == (in_windows if holds else [(number, True) for number in range(RECORDS)])
