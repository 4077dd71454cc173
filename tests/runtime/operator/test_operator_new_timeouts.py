"""Upgrades that change the timeout of a pending wait: the new code's decides, from the start of the wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.errors import SignalTimeoutError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

Make = Callable[..., OperatorHarness]

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {
    "crash": None,
    "forced_replay": False,
    "forced_restart": False,
    "config": {"job-identifier": "job"},
}

SECONDS = 10
"""The timeout of the former code, and the duration of its pause."""


def waiting_agent(kind: str, seconds: float | None, on_suspend: str = "block", journal: bool = True) -> Agent:
    async def wait(event: Any, ctx: Any) -> OutputEvent:
        if kind == "sleep":
            await ctx.sleep(seconds)
            return OutputEvent(output=[event.input, "slept"])
        if kind == "approval":
            outcome = await ctx.request_approval("pay", {"amount": 4}, timeout=seconds)
            return OutputEvent(output=[event.input, str(outcome.decision)])
        try:
            return OutputEvent(output=[event.input, await ctx.wait_for_signal("go", timeout=seconds)])
        except SignalTimeoutError:
            return OutputEvent(output=[event.input, "timeout"])

    async def record_and_wait(event: Any, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(str, 1)
        return await wait(event, ctx)

    agent = Agent(name="waits")
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    agent.add_action("work", [InputEvent], record_and_wait if journal else wait)
    return agent


ENDS = {"sleep": "slept", "approval": "expired", "signal": "timeout"}
ANSWERS = {"approval": "approved", "signal": "yes"}

CHANGES: dict[str, tuple[float | None, float | None]] = {
    "removed": (SECONDS, None),
    "added": (None, SECONDS),
    "shortened": (SECONDS, 4),
    "lengthened": (SECONDS, 20),
    "same": (SECONDS, SECONDS),
}


def upgraded(make: Make, old: OperatorHarness, agent: Agent, **options: Any) -> OperatorHarness:
    """Return a harness of another code that continues with the state of the former one, at the same time."""
    snapshot = old.snapshot()
    now = old.current_time
    new = make(agent, **{**PLAIN, **options})
    old.close()
    new.advance_time(now - new.current_time)
    new.restore(snapshot)
    return new


@factors(
    kind=list(ENDS),
    change=list(CHANGES),
    on_suspend=["block", "interleave"],
    passed=[False, True],
    without=lambda kind, change, **_: kind == "sleep" and None in CHANGES[change],
)
def test_the_new_timeout_decides(
    agent_harness: Make, kind: str, change: str, on_suspend: str, passed: bool
) -> None:
    old_timeout, after = CHANGES[change]
    place = MemoryPlace()
    options = PLAIN | {"store": lambda: MemoryStore(place)}
    old = agent_harness(waiting_agent(kind, old_timeout, on_suspend), **options)
    began = old.current_time
    old.push("a")
    old.push("b")
    old.advance_time(3_000)
    if passed:
        # The deadline of the former code passes while the job is down.
        old._clock.time = began + 12_000
    new = upgraded(agent_harness, old, waiting_agent(kind, after, on_suspend), **options)
    new.advance_time(0)
    first = ["a", ENDS[kind]]
    due = None if after is None else began + int(1000 * after)
    if due is None:
        assert new.advance_time(100_000) == []
        assert new.waits()[0].deadline is None
    elif due > new.current_time:
        assert new.advance_time(due - new.current_time - 1) == []
        assert [wait.deadline for wait in new.waits()][:1] == [due]
        assert new.advance_time(1)[:1] == [first]
    else:
        assert new.outputs[:1] == [first]


@factors(kind=list(ANSWERS), change=list(CHANGES), on_suspend=["block", "interleave"], journal=[True, False])
def test_an_answer_comes_to_the_wait_as_before(
    agent_harness: Make, kind: str, change: str, on_suspend: str, journal: bool
) -> None:
    old_timeout, after = CHANGES[change]
    place = MemoryPlace()
    options = PLAIN | ({"store": lambda: MemoryStore(place)} if journal else {})
    old = agent_harness(waiting_agent(kind, old_timeout, on_suspend, journal), **options)
    old.push("a")
    requests = list(old.approvals)
    new = upgraded(agent_harness, old, waiting_agent(kind, after, on_suspend, journal), **options)
    new.advance_time(1_000)
    if kind == "signal":
        assert new.signal(0, "go", "yes") == [["a", "yes"]]
        return
    # The request leaves once more if it expires at another time, with the same id.
    [request] = requests
    assert [shown.id for shown in new.approvals] == [request.id] * (change != "same")
    expires = None if after is None else request.began_at + int(1000 * after)
    assert [shown.expires_at for shown in new.approvals] == [expires] * (change != "same")
    assert new.approve(request) == [["a", "approved"]]
    assert [str(outcome.decision) for outcome in new.approval_outcomes] == ["approved"]
    assert new.approvals == []


def test_the_same_code_replays_no_suspended_run(agent_harness: Make) -> None:
    """A restart with the same code leaves its suspended runs where they are."""
    seen: list[str] = []

    async def work(event: Any, ctx: Any) -> None:
        seen.append(event.input)
        await ctx.sleep(SECONDS)

    agent = Agent(name="waits")
    agent.add_action("work", [InputEvent], work)
    harness = agent_harness(agent, **PLAIN, forced_serialization=False)
    harness.push("a")
    harness.restore(harness.snapshot())
    harness.run_until_idle()
    assert seen == ["a"]


@pytest.mark.parametrize("kind", ["approval", "signal"])
def test_a_timeout_that_was_recorded_stays_when_it_is_removed(agent_harness: Make, kind: str) -> None:
    """A wait has ended by its timeout, and the run waits for something else: the end replays as recorded."""

    def agent(seconds: float | None) -> Agent:
        async def work(event: Any, ctx: Any) -> OutputEvent:
            end = ""
            if kind == "approval":
                end = str((await ctx.request_approval("pay", timeout=seconds)).decision)
            else:
                try:
                    await ctx.wait_for_signal("go", timeout=seconds)
                except SignalTimeoutError as error:
                    end = type(error).__name__
            return OutputEvent(output=[end, await ctx.wait_for_signal("more")])

        waits_agent = Agent(name="waits")
        waits_agent.add_action("work", [InputEvent], work)
        return waits_agent

    old = agent_harness(agent(SECONDS), **PLAIN)
    old.push("a")
    old.advance_time(20_000)
    new = upgraded(agent_harness, old, agent(None))
    new.advance_time(1)
    [output] = new.signal(0, "more", "now")
    assert output == [{"approval": "expired", "signal": "SignalTimeoutError"}[kind], "now"]


def test_a_crash_after_the_upgrade_finds_the_same_deadline(agent_harness: Make) -> None:
    place = MemoryPlace()
    options = PLAIN | {"store": lambda: MemoryStore(place)}
    old = agent_harness(waiting_agent("signal", None), **options)
    began = old.current_time
    old.push("a")
    old.advance_time(3_000)
    new = upgraded(agent_harness, old, waiting_agent("signal", SECONDS), **options)
    snapshot = new.snapshot()
    new.advance_time(2_000)
    new.recover(snapshot)
    new.advance_time(2_000)
    new.restore(new.snapshot())
    assert new.advance_time(began + 9_999 - new.current_time) == []
    assert new.advance_time(1) == [["a", "timeout"]]
