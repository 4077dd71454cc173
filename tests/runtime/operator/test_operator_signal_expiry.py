"""Signals that expire: once, unless a run has taken them; nothing is left of a key that only got signals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from waiting_agents import behind_a_door, opened

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

UNDISTURBED = {"auto_run": False, "crash": None, "forced_replay": False, "forced_restart": False}
"""The test says when time passes, and looks at a run that goes on."""


class Hears(Agent):
    """Listens while a call goes on, and once more behind it."""

    @action(InputEvent)
    async def hear(self, event: InputEvent, ctx: Any) -> OutputEvent:
        heard, _ = await asyncio.gather(ctx.wait_for_signal("said"), ctx.durable_execute_async(behind_a_door))
        return OutputEvent(output=[heard, await ctx.wait_for_signal("said")])


class Collects(Agent):
    """Listens as often as its input says while a call goes on."""

    @action(InputEvent)
    async def collect(self, event: InputEvent, ctx: Any) -> OutputEvent:
        async def listen() -> list[Any]:
            return [await ctx.wait_for_signal("said") for _ in range(event.input)]

        heard, _ = await asyncio.gather(listen(), ctx.durable_execute_async(behind_a_door))
        return OutputEvent(output=heard)


class Listens(Agent):
    """Puts out what a signal says."""

    @action(InputEvent)
    async def listen(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.wait_for_signal("said"))


@pytest.fixture(autouse=True)
def _closed() -> None:
    opened.clear()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


def moved(harness: OperatorHarness, wait: str) -> bool:
    return wait not in [open_wait.id for open_wait in harness.waits()]


def names(harness: OperatorHarness) -> list[str | None]:
    return [wait.name for wait in harness.waits()]


def test_a_signal_that_a_run_has_taken_does_not_expire(agent_harness: Make) -> None:
    harness = agent_harness(Hears, config={"signals.ttl": "5 s"}, **UNDISTURBED)
    harness.push("a")
    wait_until(lambda: names(harness) == ["said"])
    harness.signal(0, "said", "yes")
    wait_until(lambda: names(harness) == [])
    harness.advance_time(6_000)
    assert harness.unmatched_signals == []
    opened.set()
    harness.run_until_idle()
    assert names(harness) == ["said"]
    # It says the same as the one before, and is another one.
    harness.signal(0, "said", "yes")
    harness.run_until_idle()
    assert harness.outputs == [["yes", "yes"]]
    assert harness.unmatched_signals == []
    assert harness.state().pending == {}


def test_a_signal_that_no_run_has_taken_expires_while_one_goes_on(agent_harness: Make) -> None:
    harness = agent_harness(Hears, config={"signals.ttl": "5 s"}, **UNDISTURBED)
    harness.push("a")
    wait_until(lambda: names(harness) == ["said"])
    harness.signal(0, "other", 1)
    harness.signal(0, "other", 2)
    # What the run has not been offered yet stays, until somebody looks again.
    mail = harness._subtasks[0].processor.actors[encode_key(0)].mailbox
    wait_until(lambda: mail is not None and mail._offered == 2)
    harness.advance_time(6_000)
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.EXPIRED] * 2
    opened.set()


def test_what_expired_before_a_restart_came_to_its_end_leaves_once(agent_harness: Make) -> None:
    harness = agent_harness(Listens, config={"signals.ttl": "5 s"}, **UNDISTURBED)
    harness.push("a")
    harness.run_until_idle()
    harness.signal(0, "said", "yes")
    snapshot = harness.snapshot()
    harness.restore(snapshot)
    harness.advance_time(6_000)
    harness.run_until_idle()
    harness.advance_time(1_000)
    output_count = len(harness.outputs)
    assert output_count + len(harness.unmatched_signals) == 1
    if not output_count:
        harness.signal(0, "said", "yes")
        harness.run_until_idle()
    assert harness.outputs == ["yes"]


def test_signals_that_a_run_has_taken_take_no_place_of_others(agent_harness: Make) -> None:
    harness = agent_harness(Collects, config={"signals.max-per-key": 2}, **UNDISTURBED)
    harness.push(6)
    wait_until(lambda: names(harness) == ["said"])
    for number in range(6):
        wait_until(lambda: len(harness.waits()) == 1)
        [previous_wait] = harness.waits()
        harness.signal(0, "said", number)
        wait_until(partial(moved, harness, previous_wait.id))
    opened.set()
    harness.run_until_idle()
    assert harness.unmatched_signals == []
    assert harness.outputs == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("forgets", [False, True])
def test_nothing_is_left_of_a_key_that_got_signals_only(agent_harness: Make, forgets: bool) -> None:
    config = {"signals.ttl": "5 s", **({"state.idle-key-ttl": "10 s"} if forgets else {})}
    harness = agent_harness(Listens, lambda key: key, config=config)
    harness.signal("a", "said", 1)
    assert harness.state("a").head is not None
    harness.advance_time(6_000)
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.EXPIRED]
    key_state = harness.state("a")
    assert (key_state.head, key_state.pending, key_state.processing_timers) == (None, {}, set())


def test_the_head_of_a_key_that_began_anew_is_used_once_an_input_came() -> None:
    head = Head.fresh_one("job", 1 << 40)
    assert head.is_unused
    head.next_pending += 1
    assert not head.is_unused
    head.next_pending -= 1
    head.start(1 << 40)
    assert not head.is_unused
