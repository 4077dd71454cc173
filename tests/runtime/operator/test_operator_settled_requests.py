"""Approval requests of runs that end, or continue, without the code that made them: each gets an outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunObserver
from flink_agents.api.events.approvals import ApprovalRequest, Decision
from flink_agents.api.events.key_requests import END_RUN, INSPECT
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

Make = Callable[..., OperatorHarness]
Work = Callable[[Any, Any], Any]

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {
    "crash": None,
    "forced_replay": False,
    "forced_restart": False,
    "config": {"job-identifier": "job", "action-state.on-mismatch": "dead-letter"},
}


ANSWERS: list[dict[str, Any]] = []


class KeepsAnswers(RunObserver):
    """Keeps the answers to requests about keys."""

    def request_answered(self, key_text: str, answer: Mapping[str, Any]) -> None:
        ANSWERS.append(dict(answer))


async def asks(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    ctx.emit_to("notes", "asked")
    outcome = await ctx.request_approval("pay", {"amount": 4, "to": ["a", None, 2.5]})
    return OutputEvent(output=[event.input, str(outcome.decision)])


async def makes_another_call(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(int, 1)
    return await asks(event, ctx)


async def asks_nothing(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    return OutputEvent(output=[event.input, "no question"])


async def waits_for_something_else(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    return OutputEvent(output=[event.input, await ctx.wait_for_signal("more")])


async def raises_before(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    raise ValueError("not any more")


async def asks_for_more(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    outcome = await ctx.request_approval("pay", {"amount": 5})
    return OutputEvent(output=[event.input, str(outcome.decision), outcome.arguments["amount"]])


async def asks_without_a_note(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    outcome = await ctx.request_approval("pay", {"amount": 4, "to": ["a", None, 2.5]})
    return OutputEvent(output=[event.input, str(outcome.decision)])


class Paying(Agent):
    side_outputs = {"notes": str}


def paying(on_suspend: str, work: Work = asks, name: str = "work", on_error: str = "dead-letter") -> Agent:
    agent = Paying(name="pays")
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    agent.on_error = on_error  # type: ignore[assignment]
    agent.add_action(name, [InputEvent], work)
    return agent


def continued(make: Make, on_suspend: str, **changes: Any) -> tuple[OperatorHarness, ApprovalRequest]:
    """Return a job with other code that continues a run which has asked, and what it has asked for."""
    place = MemoryPlace()
    options = PLAIN | {"store": lambda: MemoryStore(place)}
    old = make(paying(on_suspend), **options)
    old.push("a")
    [request] = old.approvals
    snapshot = old.snapshot()
    old.close()
    new = make(paying(on_suspend, **changes), **options)
    new.restore(snapshot)
    new.run_until_idle()
    return new, request


CHANGES: dict[str, dict[str, Any]] = {
    "mismatch": {"work": makes_another_call},
    "renamed": {"name": "pay"},
    "no request": {"work": asks_nothing},
    "raises": {"work": raises_before},
    "raises and is ignored": {"work": raises_before, "on_error": "ignore"},
    "waits for something else": {"work": waits_for_something_else},
}


@factors(change=list(CHANGES), on_suspend=["block", "interleave"])
def test_a_request_of_former_code_ends(agent_harness: Make, change: str, on_suspend: str) -> None:
    harness, request = continued(agent_harness, on_suspend, **CHANGES[change])
    [outcome] = harness.approval_outcomes
    assert outcome.request == request
    assert (outcome.decision, outcome.arguments) == (Decision.ENDED, request.arguments)
    reason = outcome.reason or ""
    assert "run has ended" in reason or "waits for it no more" in reason
    for letter in harness.dead_letters:
        assert letter.error_message.splitlines()[0] in reason
    # What comes late finds nobody, and says why.
    assert harness.approve(request) == []
    [late] = harness.unmatched_signals
    if change == "waits for something else":
        assert (late.reason, late.detail) == (UnmatchedReason.INVALID, "the wait is for 'more'")
    else:
        assert (late.reason, late.detail) == (UnmatchedReason.DUPLICATE, "the run that waited has ended")
    assert len(harness.approval_outcomes) == 1 and harness.approvals == []
    if change == "waits for something else":
        assert harness.signal(0, "more", "now") == [["a", "now"]]
    assert len(harness.approval_outcomes) == 1


@pytest.mark.parametrize("on_suspend", ["block", "interleave"])
def test_a_request_of_a_run_that_a_user_ends_ends(agent_harness: Make, on_suspend: str) -> None:
    harness = agent_harness(paying(on_suspend), observers=[KeepsAnswers], **PLAIN)
    harness.push("a")
    [request] = harness.approvals
    harness.signal(0, INSPECT, {}, id="i")
    answer = ANSWERS[-1]
    run = answer["suspended"][0]["run"]
    harness.signal(0, END_RUN, {"run": run, "reason": "lost order", "by": "ada"}, id="e")
    [outcome] = harness.approval_outcomes
    assert (outcome.request.id, outcome.decision) == (request.id, Decision.ENDED)
    assert "lost order" in (outcome.reason or "") and "ada" in (outcome.reason or "")
    assert harness.approvals == []
    assert harness.approve(request) == []
    assert [late.detail for late in harness.unmatched_signals] == ["the run that waited has ended"]


@pytest.mark.parametrize("on_suspend", ["block", "interleave"])
def test_other_arguments_make_another_request(agent_harness: Make, on_suspend: str) -> None:
    harness, request = continued(agent_harness, on_suspend, work=asks_for_more)
    [outcome] = harness.approval_outcomes
    assert (outcome.request.id, outcome.decision) == (request.id, Decision.ENDED)
    [other_request] = harness.approvals
    assert other_request.arguments == {"amount": 5} and other_request.id != request.id
    # An answer to the former one approves nothing.
    assert harness.approve(request) == []
    assert harness.approve(other_request) == [["a", "approved", 5]]
    assert [str(approval_outcome.decision) for approval_outcome in harness.approval_outcomes] == [
        "ended",
        "approved",
    ]


@pytest.mark.parametrize("on_suspend", ["block", "interleave"])
def test_an_outcome_leaves_although_the_code_emits_less_before_it(
    agent_harness: Make, on_suspend: str
) -> None:
    harness, request = continued(agent_harness, on_suspend, work=asks_without_a_note)
    assert harness.approval_outcomes == []
    assert harness.approve(request) == [["a", "approved"]]
    assert [str(outcome.decision) for outcome in harness.approval_outcomes] == ["approved"]


@pytest.mark.parametrize("on_suspend", ["block", "interleave"])
def test_a_crash_repeats_no_outcome(agent_harness: Make, on_suspend: str) -> None:
    place = MemoryPlace()
    options = PLAIN | {"store": lambda: MemoryStore(place)}
    old = agent_harness(paying(on_suspend), **options)
    old.push("a")
    new = agent_harness(paying(on_suspend, work=waits_for_something_else), **options)
    new.restore(old.snapshot())
    old.close()
    snapshot = new.snapshot()
    new.run_until_idle()
    assert [str(outcome.decision) for outcome in new.approval_outcomes] == ["ended"]
    new.recover(snapshot)
    new.run_until_idle()
    new.restore(new.snapshot())
    assert new.signal(0, "more", 1) == [["a", 1]]
    assert [str(outcome.decision) for outcome in new.approval_outcomes] == ["ended"]


async def notes_after_the_wait(event: Any, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(str, 1)
    ctx.emit_to("notes", "asked")
    # In the place of the request: side outputs that have left are counted.
    ctx.emit_to("notes", "asked nobody")
    value = await ctx.wait_for_signal("more")
    ctx.emit_to("notes", "got it")
    return OutputEvent(output=[event.input, value])


def test_ids_of_side_outputs_stay_unique(agent_harness: Make) -> None:
    place = MemoryPlace()
    options = PLAIN | {"store": lambda: MemoryStore(place), "lineage": True}
    old = agent_harness(paying("block"), **options)
    old.push("a")
    new = agent_harness(paying("block", work=notes_after_the_wait), **options)
    new.restore(old.snapshot())
    new.run_until_idle()
    new.signal(0, "more", 1)
    tags = "notes", "approval-requests"
    ids = [traced.lineage.id for job in (old, new) for tag in tags for traced in job.side_output(tag)]
    old.close()
    assert len(ids) == 4 and len(set(ids)) == 4
