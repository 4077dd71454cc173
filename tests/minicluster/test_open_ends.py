"""Bounded jobs whose last runs take longer than checkpoints may: they have restart points to their end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from tests.minicluster.sources import restarting

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

RECORDS = 24
TIMEOUT = "1 s"
"""How long a checkpoint may take."""

CHECKPOINTS = 6
"""How many checkpoints the last run waits for."""


class LastOneWaits(Agent):
    """Its last run waits until so many checkpoints are there since it began; fails once, if it is to.

    Args:
        directory: Has the checkpoints, and gets a file for the failure.
        fails: Whether it fails once, behind these checkpoints.
    """

    def __init__(self, directory: str, fails: bool) -> None:
        self.directory = Path(directory)
        self.fails = fails

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input
        if number == RECORDS - 1:
            await self._wait_for_checkpoint()
        return OutputEvent(output=number)

    async def _wait_for_checkpoint(self) -> None:
        first_checkpoint = self._newest()
        until = time.monotonic() + 120
        while self._newest() < first_checkpoint + CHECKPOINTS:
            if time.monotonic() > until:
                raise AssertionError(
                    f"checkpoint {self._newest()} was the last one, the first {first_checkpoint}"
                )
            await asyncio.sleep(0.05)
        failure = self.directory / "failed"
        if self.fails and not failure.exists():
            failure.write_text("once")
            raise OSError("down for a moment")

    def _newest(self) -> int:
        checkpoint_names = [path.parent.name for path in self.directory.glob("checkpoints/*/chk-*/_metadata")]
        return max((int(re.sub("chk-", "", name)) for name in checkpoint_names), default=0)


@pytest.mark.nightly
@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_last_run_takes_longer_than_checkpoints_may(
    agents_environment: MakeEnvironment, tmp_path: Path, fails: bool
) -> None:
    """Two agents in a row, each of which waits at the end of its input."""
    flink = {"execution.checkpointing.timeout": TIMEOUT, **restarting(tmp_path, failures=2 if fails else 0)}
    env = agents_environment(flink)
    first = env.from_list(list(range(RECORDS)), lambda number: number % 5)
    second = env.from_datastream(
        first.apply(LastOneWaits(str(tmp_path), fails)).to_datastream(), lambda number: number % 3
    )
    outputs = second.apply(LastOneWaits(str(tmp_path), False), name="second").to_list()
    env.execute("open ends")
    assert sorted(outputs) == list(range(RECORDS))
