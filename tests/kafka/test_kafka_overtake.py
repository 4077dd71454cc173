"""Runs that inputs overtake, with their parts in Kafka: behind an older checkpoint nothing is done again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once

CALLED: list[str] = []


async def call(what: str) -> str:
    CALLED.append(what)
    return what


class Waits(Agent):
    """``a2`` waits twice, for ``a1`` and ``a2``, and counts up the same path in each part."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input[0]
        seen = list[int]()
        for part in range(int(event.input[1:]) + 1):
            if part:
                await ctx.wait_for_signal(f"{name}{part}")
            seen.append(ctx.short_term_memory.get("n", 0))
            ctx.short_term_memory.set("n", seen[-1] + 1)
            yield OutputEvent(output=(await ctx.durable_execute_async(call, f"{name} {part}"), *seen))


def test_parts_in_kafka_are_found_again(settings: KafkaSettings) -> None:
    CALLED.clear()
    expected = [("a 0", 0), ("b 0", 1), ("c 0", 2), ("a 1", 0, 3), ("b 1", 1, 4), ("a 2", 0, 3, 5)]
    with OperatorHarness(Waits, store=partial(KafkaStore, settings), crash=None, auto_run=False) as harness:
        snapshots = [harness.snapshot()]
        steps = ["push a2", "push b1", "push c0", "signal a1", "signal b1", "signal a2"]
        for step in steps:
            _do_step(harness, step)
            harness.run_until_idle()
            snapshots.append(harness.snapshot())
        assert harness.outputs == expected
        for done, snapshot in enumerate(snapshots):
            harness.restore(snapshot)
            for step in steps[done:]:
                _do_step(harness, step)
            harness.run_until_idle()
            assert harness.outputs == expected
            assert harness.memory()["n"] == 6 and harness.state().pending.keys() <= {-(2**62)}
    assert CALLED == ["a 0", "b 0", "c 0", "a 1", "b 1", "a 2"]


def _do_step(harness: OperatorHarness, step: str) -> None:
    word, name = step.split()
    if word == "push":
        harness.push(name)
    else:
        harness.signal(0, name, 1, id=name)
