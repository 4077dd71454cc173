"""Random inputs, watermarks, run times, crashes and restores: no output is late that need not be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action
from flink_agents.runtime.operator.low_watermark import HELD_MS, LATE_OUTPUTS, NO_TIMESTAMP
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

MakeHarness = Callable[..., OperatorHarness]

OPEN: set[int] = set()
"""Numbers of the inputs whose calls may return."""

ENOUGH = timedelta(days=100)


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    OPEN.clear()
    yield
    OPEN.clear()


class Waiter(Agent):
    """Gives the number of its input once it may; an even one at once, where ``inline`` says so."""

    side_outputs = {"seen": None}

    @action(InputEvent)
    def read(self, event: InputEvent, ctx: Any) -> Any:
        key, number, inline = event.input
        ctx.emit_to("seen", number)
        output = OutputEvent(output=number)
        return output if inline else self.wait(number, output)

    async def wait(self, number: int, output: OutputEvent) -> OutputEvent:
        while number not in OPEN:
            await asyncio.sleep(0.0005)
        return output


class World:
    """A harness, what it was given, and what may be late.

    Args:
        harness: The harness.
        chance: Makes all choices.
    """

    def __init__(self, harness: OperatorHarness, chance: random.Random) -> None:
        self.harness = harness
        self.chance = chance
        self.inputs: dict[int, int | None] = {}
        self.late: set[int] = set()
        self.watermark = 0
        self.saved: tuple[Any, dict[int, int | None], int] | None = None
        self.number = 0

    def push(self) -> None:
        """Hand over an input, now and then one without a time or a late one."""
        self.number += 1
        around = self.watermark + self.chance.randrange(-40, 300)
        at = None if self.chance.random() < 0.1 else around
        if at is not None and at <= self.watermark:
            self.late.add(self.number)
        self.inputs[self.number] = at
        inline = self.chance.random() < 0.3
        self.harness.push((self.chance.randrange(6), self.number, inline), timestamp=at)

    def advance(self) -> None:
        """Let time pass."""
        self.harness.advance_time(self.chance.choice((1, 20, 60, 500)))

    def progress(self) -> None:
        """Let the watermark move."""
        self.watermark += self.chance.randrange(1, 200)
        self.harness.watermark(self.watermark)

    def open(self) -> None:
        """Let some calls return."""
        waiting = sorted(set(self.inputs) - OPEN)
        OPEN.update(self.chance.sample(waiting, self.chance.randrange(len(waiting) + 1)))

    def save(self) -> None:
        """Take a checkpoint."""
        self.saved = self.harness.checkpoint(), dict(self.inputs), self.watermark

    def crash(self) -> None:
        """Restore the last checkpoint with another parallelism; watermarks begin anew."""
        if self.saved is None:
            return
        snapshot, self.inputs, watermark = self.saved
        self.inputs = dict(self.inputs)
        # The sources are read again from the checkpoint, whose watermark they need not reach at once.
        self.watermark = max(0, watermark - self.chance.randrange(100))
        self.harness.current_watermark = NO_TIMESTAMP
        self.harness.restore(snapshot, self.chance.choice((1, 2, 3)))

    def check(self) -> None:
        """No output is behind the watermark that its stream has seen before it."""
        harness = self.harness
        output_rows = zip(harness.outputs, harness.timestamps, harness.lows, strict=True)
        seen = zip(harness.side_output("seen"), harness.side_times("seen"), strict=True)
        rows = [*output_rows, *((number, at, low) for number, (at, low) in seen)]
        for number, at, low in rows:
            assert at == self.inputs[number]
            assert at is None or at > low or number in self.late, f"output {number} of {at} is behind {low}"
        low = harness.output_watermark
        missing = set(self.inputs) - set(harness.outputs) - self.late
        waiting = [at for number in missing if (at := self.inputs[number]) is not None]
        assert low is None or not waiting or low < min(waiting)


@pytest.mark.nightly(beyond=8)
@pytest.mark.executes_once
@factors(strength=1, seed=range(40))
def test_no_output_is_late(seed: int, agent_harness: MakeHarness) -> None:
    chance = random.Random(seed)
    harness = agent_harness(
        Waiter,
        lambda record: record[0],
        event_time=EventTime.hold_watermarks(max_hold=ENOUGH, idle_timeout="3 s"),
        auto_run=False,
        parallelism=chance.choice((1, 2)),
        max_parallelism=16,
        config={"queue.max-per-key": chance.choice((2, 100))},
    )
    world = World(harness, chance)
    steps: list[Callable[[], None]] = [world.push, world.push, world.progress, world.advance, world.open]
    for _ in range(120):
        step = chance.choice(steps) if chance.random() < 0.95 else chance.choice((world.save, world.crash))
        step()
        world.check()
    OPEN.update(range(world.number + 10))
    harness.run_until_idle()
    for key in range(6):
        world.number += 1
        world.inputs[world.number] = world.watermark + 1
        harness.push((key, world.number, True), timestamp=world.watermark + 1)
    harness.run_until_idle()
    harness.advance_time(HELD_MS)
    world.progress()
    harness.advance_time(HELD_MS)
    world.check()
    assert sorted(harness.outputs) == sorted(world.inputs)
    assert harness.output_watermark == world.watermark
    world.push()
    harness.end_input()
    world.check()
    assert harness.run_metrics[LATE_OUTPUTS] == 0
