"""Signals that nobody has asked for hold up no answer, and one that no run can read harms no other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.testing import OperatorHarness

PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
MOST = 5
LIMIT = {"signals.max-per-key": MOST}


class Asks(Agent):
    """Asks as many questions side by side as its input says, or for an approval."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if event.input == "approval":
            return OutputEvent(output=str((await ctx.request_approval("pay", {})).decision))
        answers = await ctx.gather(*(ctx.wait_for_signal("x", int) for _ in range(event.input)))
        return OutputEvent(output=answers)


class AsksAside(Asks):
    on_suspend = "interleave"


@pytest.fixture(params=[Asks, AsksAside])
def agent(request: pytest.FixtureRequest) -> type[Agent]:
    return request.param


def fill(harness: OperatorHarness) -> None:
    """Send as many signals as may wait that no run has asked for."""
    for number in range(MOST):
        harness.signal(0, "other", number)
    assert harness.unmatched_signals == []


def test_an_answer_comes_through_where_others_fill_the_mailbox(agent: type[Agent]) -> None:
    with OperatorHarness(agent, config=LIMIT) as harness:
        harness.push(1)
        fill(harness)
        assert harness.signal(0, "x", 7) == [[7]]
        harness.push(1)
        assert harness.signal(0, "x", 8, wait=harness.waits(0)[0].id) == [[8]]
        harness.push("approval")
        assert harness.approve(harness.approvals[0]) == ["approved"]
        harness.signal(0, "x", 9)
        assert [unmatched_signal.reason.value for unmatched_signal in harness.unmatched_signals] == [
            "overflow"
        ]


@pytest.mark.parametrize("restarts", [False, True])
def test_each_of_many_answers_comes_through_at_once(agent: type[Agent], restarts: bool) -> None:
    with OperatorHarness(agent, config=LIMIT, auto_run=False, **PLAIN) as harness:
        harness.push(4 * MOST)
        harness.run_until_idle()
        snapshot = harness.snapshot()
        for number, wait in enumerate(harness.waits(0)):
            harness.signal(0, "x", number, wait=wait.id)
        harness.run_until_idle()
        if restarts:
            harness.recover(snapshot)
            harness.run_until_idle()
        assert harness.outputs[-1:] == [list(range(4 * MOST))] and harness.unmatched_signals == []


def test_a_flood_of_answers_to_one_wait_is_bounded(agent: type[Agent]) -> None:
    with OperatorHarness(agent, config=LIMIT, auto_run=False, **PLAIN) as harness:
        harness.push(2)
        harness.run_until_idle()
        wait = harness.waits(0)[0].id
        for number in range(100):
            harness.signal(0, "x", number, wait=wait)
        harness.run_until_idle()
        reasons = {unmatched_signal.reason.value for unmatched_signal in harness.unmatched_signals}
        assert reasons <= {"overflow", "duplicate"} and len(harness.unmatched_signals) == 99


def test_a_flood_of_answers_to_waits_to_come_is_bounded(agent: type[Agent]) -> None:
    with OperatorHarness(agent, config=LIMIT) as harness:
        harness.push(1)
        wait = harness.waits(0)[0].id.rpartition("|")[0]
        for number in range(1, 100):
            harness.signal(0, "x", number, wait=f"{wait}|{number}")
        assert (
            0
            < [unmatched_signal.reason.value for unmatched_signal in harness.unmatched_signals].count(
                "overflow"
            )
            < 99
        )


class Panic(BaseException):
    """What a library in another language may raise."""


class Answer(BaseModel):
    x: int

    @field_validator("x", mode="before")
    @classmethod
    def check(cls, x: object) -> object:
        errors: dict[object, type[BaseException]] = {"panic": Panic, "exit": SystemExit}
        if x in errors:
            raise errors[x]("in a validator")
        return x


class AsksTyped(Agent):
    on_error = "dead-letter"

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.wait_for_signal("n", Answer)).x)


@pytest.mark.parametrize(
    ("bad", "detail"), [("panic", "Panic"), ("exit", "SystemExit"), ("text", "int_parsing")]
)
def test_a_signal_whose_validator_raises_anything_is_a_stray(bad: str, detail: str) -> None:
    with OperatorHarness(AsksTyped) as harness:
        harness.push(1)
        harness.signal(0, "n", {"x": bad})
        assert harness.signal(0, "n", {"x": 7}) == [7]
        [stray] = harness.unmatched_signals
        assert stray.reason.value == "invalid" and stray.detail is not None and detail in stray.detail
        assert harness.dead_letters == []


def test_a_stray_says_what_does_not_fit() -> None:
    with OperatorHarness(Asks) as harness:
        harness.push("approval")
        request = harness.approvals[0]
        harness.signal(0, request.approve().name, {"id": "another"}, wait=request.approve().wait)
        [stray] = harness.unmatched_signals
        assert stray.reason.value == "invalid" and stray.detail is not None and "approved" in stray.detail
        assert len(harness.approvals) == 1


class PaysIfApproved(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        outcome = await ctx.request_approval("pay", {"amount": 1}, timeout=60)
        return OutputEvent(output=("paid" if outcome else "not paid", outcome.text))


def test_an_outcome_is_true_where_it_may_be_done() -> None:
    with OperatorHarness(PaysIfApproved) as harness:
        harness.push_all([1, 2, 3])
        assert harness.approve(harness.approvals[0], by="Ada") == [("paid", "pay was approved by Ada")]
        assert harness.deny(harness.approvals[0], "no") == [
            ("not paid", "pay was not approved, but denied: no")
        ]
        [(paid, text)] = harness.advance_time(60_000)
        assert paid == "not paid" and text.startswith("pay was not approved, but expired: no answer came")
