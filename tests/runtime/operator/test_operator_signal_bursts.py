"""Signals that come all at once, after a restart or not, end as they do one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}


async def pay(part: str, answer: str) -> str:
    return f"{part} {answer}"


class Unrecorded(Agent):
    """Asks two questions of one name side by side; milk, one."""

    @action(InputEvent)
    async def order(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        parts = ["milk"] if event.input == "milk" else [f"{event.input} {n}" for n in range(2)]
        return OutputEvent(output=await ctx.gather(*(self.one(part, ctx) for part in parts)))

    async def one(self, part: str, ctx: RunnerContext) -> str:
        return await pay(part, await ctx.wait_for_signal("ok"))


class Recorded(Unrecorded):
    async def one(self, part: str, ctx: RunnerContext) -> str:
        return await ctx.durable_execute_async(pay, part, await ctx.wait_for_signal("ok"))


class UnrecordedAside(Agent):
    """Asks one question for each input, and lets inputs overtake it."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def order(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await self.one(event.input, ctx))

    async def one(self, part: str, ctx: RunnerContext) -> str:
        return await pay(part, await ctx.wait_for_signal("ok"))


class RecordedAside(UnrecordedAside):
    async def one(self, part: str, ctx: RunnerContext) -> str:
        return await ctx.durable_execute_async(pay, part, await ctx.wait_for_signal("ok"))


AGENTS = [Unrecorded, Recorded, UnrecordedAside, RecordedAside]
SIGNALS = ["first", "second", "any", "other"]
"""The first two name their wait."""

ORDERS = [
    order
    for length in (1, 2, 3)
    for order in product(SIGNALS, repeat=length)
    # Of signals that say the same, without ids, nobody knows which one a run has taken.
    if order.count("any") < 2 and order.count("other") < 2
]

Outcome = tuple[list[Any], list[tuple[Any, str]], int, list[Any]]


def waiting_harness(agent: type[Agent], **options: Any) -> tuple[OperatorHarness, Callable[[str], None]]:
    """A harness with two open waits, and what sends a signal to the first, the second, or any of them."""
    harness = OperatorHarness(agent, **{**PLAIN, **options})
    for order in ("tea", "rice") if agent in (UnrecordedAside, RecordedAside) else ("tea",):
        harness.push(order)
        harness.run_until_idle()
    waits: dict[str, str] = dict(zip(SIGNALS, (wait.id for wait in harness.waits(0)), strict=False))

    def send(which: str) -> None:
        harness.signal(0, "ok", which, wait=waits.get(which))

    return harness, send


def outcome(harness: OperatorHarness) -> Outcome:
    """What has come of the signals, and what becomes of a later order and an answer to it."""
    harness.run_until_idle()
    strays = sorted(
        (unmatched_signal.signal.value, unmatched_signal.reason.value)
        for unmatched_signal in harness.unmatched_signals
    )
    results = sorted(map(str, harness.outputs)), strays, len(harness.waits(0))
    seen = len(harness.outputs)
    harness.push("milk")
    harness.run_until_idle()
    harness.signal(0, "ok", "any")
    harness.run_until_idle()
    return *results, harness.outputs[seen:]


def one_by_one(agent: type[Agent], order: tuple[str, ...]) -> Outcome:
    harness, send = waiting_harness(agent)
    with harness:
        for which in order:
            send(which)
        return outcome(harness)


@factors(strength=1, order=ORDERS, agent=AGENTS, ids={"order": "-".join})
def test_all_at_once_is_as_one_by_one(agent: type[Agent], order: tuple[str, ...]) -> None:
    expected = one_by_one(agent, order)
    harness, send = waiting_harness(agent, auto_run=False)
    with harness:
        for which in order:
            send(which)
        assert outcome(harness) == expected


@pytest.mark.nightly(beyond=15)
@factors(strength=1, agent=AGENTS[::-1], order=ORDERS, ids={"order": "-".join})
def test_a_restart_makes_no_difference(agent: type[Agent], order: tuple[str, ...]) -> None:
    expected = one_by_one(agent, order)
    for done in range(len(order)):
        harness, send = waiting_harness(agent)
        with harness:
            for which in order[:done]:
                send(which)
            snapshot = harness.snapshot()
            for which in order[done:]:
                send(which)
            harness.recover(snapshot)
            actual_outcome = outcome(harness)
        if agent in (Recorded, RecordedAside) and any(reason == "ambiguous" for _, reason in expected[1]):
            # By the records, a wait may have ended before a signal comes that was ambiguous then.
            assert len(actual_outcome[-1]) == 1 or actual_outcome[2], f"a restart behind {done}"
        else:
            assert actual_outcome == expected, f"a restart behind {done}"


@pytest.mark.parametrize("agent", [Recorded, RecordedAside])
@pytest.mark.parametrize("again", [("any", "second"), ("second", "any")])
def test_what_was_recorded_holds_in_another_order_of_signals(
    agent: type[Agent], again: tuple[str, ...]
) -> None:
    expected = one_by_one(agent, ("second", "any"))
    harness, send = waiting_harness(agent)
    with harness:
        snapshot = harness.snapshot()
        for which in ("second", "any"):
            send(which)
        harness.run_until_idle()
        harness.restore(snapshot)
        harness.outputs.clear()
        for which in again:
            send(which)
        assert outcome(harness) == expected


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("agent", [Recorded, RecordedAside])
def test_a_signal_that_nobody_has_decided_about_survives_another_restart(
    agent: type[Agent], parallelism: int
) -> None:
    expected = one_by_one(agent, ("second", "any"))
    harness, send = waiting_harness(agent, auto_run=False)
    with harness:
        harness.run_until_idle()
        snapshot = harness.snapshot()
        for which in ("second", "any"):
            send(which)
            harness.run_until_idle()
        harness.restore(snapshot)
        send("any")
        undecided = harness.snapshot()
        harness.run_until_idle()
        harness.restore(undecided, parallelism)
        harness.run_until_idle()
        send("second")
        assert outcome(harness) == expected
