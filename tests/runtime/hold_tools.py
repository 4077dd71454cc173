"""An agent whose calls return when the test decides, and the outputs of a harness that holds event time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from flink_agents import Agent, EventTime, InputEvent, OnError, OutputEvent, action
from flink_agents.runtime.operator.low_watermark import HELD_MS
from flink_agents.testing import OperatorHarness

HOLD = EventTime.hold_watermarks(max_hold=timedelta(days=100), idle_timeout="9 s")
ALIVE_MS = 3000
IMPATIENT = timedelta(milliseconds=1)

CLOSED: set[Any] = set()
"""Records whose call does not return."""


class Caller(Agent):
    """Echoes a pair of key and record after a call; ``"now"`` without one."""

    side_outputs = {"seen": None}

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    def read(self, event: InputEvent, ctx: Any) -> Any:
        ctx.emit_to("seen", event.input)
        ctx.short_term_memory.set("count", ctx.short_term_memory.get("count", 0) + 1)
        if event.input[1] == "bad":
            raise ValueError("bad luck")
        output = OutputEvent(output=event.input[1])
        return output if event.input[1] == "now" else self.call(event.input[1], output)

    async def call(self, record: Any, output: OutputEvent) -> OutputEvent:
        await asyncio.sleep(0.002)
        while record in CLOSED:
            await asyncio.sleep(0.02)
        return output


def timed_outputs(harness: OperatorHarness) -> list[tuple[Any, int | None]]:
    return list(zip(harness.outputs, harness.timestamps, strict=True))


def on_time(harness: OperatorHarness) -> bool:
    """Whether all outputs left before the watermark behind reached them."""
    return all(
        at is None or at > low for at, low in zip(harness.timestamps, harness.lows, strict=True)
    ) and all(at is None or at > low for tag in ("seen",) for at, low in harness.side_times(tag))


def watermark_behind(harness: OperatorHarness) -> int | None:
    """The watermark behind, as soon as the operator has had the time to tell.

    A restart begins the stream behind anew: where one is forced before each step, it knows no watermark
    until the operator's next sign, so that most tests that look execute once.
    """
    harness.advance_time(HELD_MS)
    return harness.output_watermark
