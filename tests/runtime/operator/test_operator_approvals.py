"""Approvals of actions and tools: asked for once, answered once, and the effect happens once.

Each crash test runs with a crash before and after each append and each commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from flink_agents import Agent, Event, InputEvent, OutputEvent, Tool, action, tool
from flink_agents.api.errors import (
    ActionFailedError,
    AgentDefinitionError,
    ApprovalDeniedError,
    ContextMisuseError,
)
from flink_agents.api.events.approvals import ApprovalDeniedEvent, ApprovalRequest, Decision
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

Make = Callable[..., OperatorHarness]

effects: list[Any] = []


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    effects.clear()


class Refund(BaseModel):
    order: str
    amount: float


def is_large(event: InputEvent) -> bool:
    return event.input.amount > 10


def pay(order: str, amount: float) -> str:
    effects.append((order, amount))
    return f"{order}: paid {amount:g}"


class Pays(Agent):
    """An action that somebody has to approve where the amount is large."""

    @action(InputEvent, needs_approval=is_large, approval_timeout=60)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        refund: Refund = event.input
        return OutputEvent(output=await ctx.durable_execute_async(pay, refund.order, refund.amount))


class PaysByTool(Agent):
    """A tool that somebody has to approve, called by the code of an action."""

    @tool(needs_approval=lambda arguments: arguments["amount"] > 10, approval_timeout=60)
    @staticmethod
    def pay(order: str, amount: float) -> str:
        """Pay an amount back."""
        return pay(order, amount)

    @action(InputEvent)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        refund: Refund = event.input
        paying = ctx.get_resource("pay", "tool")
        try:
            return OutputEvent(output=await paying(refund.order, amount=refund.amount))
        except ApprovalDeniedError as denied:
            return OutputEvent(output=f"{refund.order}: {denied.decision}: {denied.message}")


class PaysByRequest(Agent):
    """Asks for itself."""

    @action(InputEvent)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        refund: Refund = event.input
        answer = await ctx.request_approval("refund", {"amount": refund.amount})
        return OutputEvent(output=f"{refund.order}: paid {answer.arguments['amount']:g}")


BOTH = pytest.mark.parametrize("agent", [Pays, PaysByTool])
KETTLE = Refund(order="kettle", amount=40)


@BOTH
def test_what_somebody_approves_is_done_then_and_once(agent: type[Agent]) -> None:
    harness = OperatorHarness(agent, crash="everywhere")
    assert harness.push(KETTLE) == []
    [request] = harness.approvals
    assert effects == []
    assert (request.agent, request.action, request.key) == (agent.__name__, "refund", 0)
    assert request.expires_at == harness.current_time + 60_000
    assert harness.approve(request, by="Ada") == ["kettle: paid 40"]
    assert effects == [("kettle", 40)]
    [outcome] = harness.approval_outcomes
    assert (outcome.request.id, outcome.decision, outcome.by) == (request.id, Decision.APPROVED, "Ada")
    assert harness.approvals == []
    assert harness.state().pending == {}


@BOTH
def test_what_needs_no_approval_is_done_at_once(agent: type[Agent], agent_harness: Make) -> None:
    harness = agent_harness(agent)
    assert harness.push(Refund(order="tea", amount=4)) == ["tea: paid 4"]
    assert harness.approvals == []


def test_requests_tell_what_is_to_be_done(agent_harness: Make) -> None:
    harness = agent_harness(Pays)
    harness.push(KETTLE)
    harness.approve(harness.approvals[0])
    [request] = [
        output for output in harness.side_output("approval-requests") if isinstance(output, ApprovalRequest)
    ]
    assert request.what == "action refund"
    assert request.arguments == {"input": {"order": "kettle", "amount": 40.0}}
    tool_harness = agent_harness(PaysByTool)
    tool_harness.push(KETTLE)
    assert tool_harness.approvals[0].what == "tool pay"
    assert tool_harness.approvals[0].arguments == {"order": "kettle", "amount": 40.0}


def test_an_answer_changes_the_event_of_an_action() -> None:
    harness = OperatorHarness(Pays, crash="everywhere")
    harness.push(KETTLE)
    changed = {"input": {"order": "kettle", "amount": 30}}
    assert harness.approve(harness.approvals[0], changed) == ["kettle: paid 30"]
    assert effects == [("kettle", 30)]
    assert harness.approval_outcomes[0].changed
    assert harness.approval_outcomes[0].arguments == changed


def test_an_answer_changes_one_argument_of_a_tool() -> None:
    harness = OperatorHarness(PaysByTool, crash="everywhere")
    harness.push(KETTLE)
    assert harness.approve(harness.approvals[0], {"amount": 30}) == ["kettle: paid 30"]
    assert effects == [("kettle", 30)]


@pytest.mark.parametrize(
    ("agent", "wrong"),
    [
        (Pays, {"input": {"order": "kettle", "amount": "much"}}),
        (Pays, {"order": "kettle"}),
        (PaysByTool, {"amount": "much"}),
        (PaysByTool, {"amuont": 30}),
        (PaysByRequest, {"amuont": 30}),
    ],
)
def test_arguments_that_do_not_fit_are_a_stray_and_the_run_waits_on(
    agent: type[Agent], wrong: dict[str, Any], agent_harness: Make
) -> None:
    harness = agent_harness(agent)
    harness.push(KETTLE)
    assert harness.approve(harness.approvals[0], wrong) == []
    assert [str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals] == ["invalid"]
    assert harness.approve(harness.approvals[0]) == ["kettle: paid 40"]


def test_a_denied_action_is_not_executed() -> None:
    harness = OperatorHarness(Pays, crash="everywhere")
    harness.push(KETTLE)
    assert harness.deny(harness.approvals[0], "it was used", by="Ada") == []
    assert effects == []
    [outcome] = harness.approval_outcomes
    assert (outcome.decision, outcome.reason, outcome.by) == (Decision.DENIED, "it was used", "Ada")
    assert harness.state().pending == {}


def test_a_denied_tool_raises_with_the_reason() -> None:
    harness = OperatorHarness(PaysByTool, crash="everywhere")
    harness.push(KETTLE)
    expected = "kettle: denied: tool pay was not approved, but denied by Ada: it was used"
    assert harness.deny(harness.approvals[0], "it was used", by="Ada") == [expected]
    assert effects == []


@BOTH
def test_what_nobody_answers_is_denied_with_that_reason(agent: type[Agent]) -> None:
    harness = OperatorHarness(agent, crash="everywhere")
    harness.push(KETTLE)
    harness.advance_time(59_999)
    assert harness.approval_outcomes == []
    harness.advance_time(1)
    [outcome] = harness.approval_outcomes
    assert (outcome.decision, outcome.reason) == (Decision.EXPIRED, "no answer came within 60 s")
    assert effects == []


def test_the_end_of_the_input_is_a_denial(agent_harness: Make) -> None:
    harness = agent_harness(PaysByTool)
    harness.push(KETTLE)
    [output] = harness.end_input()
    assert output.startswith("kettle: ended: tool pay was not approved")


def test_a_second_answer_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(Pays)
    harness.push(KETTLE)
    [request] = harness.approvals
    harness.approve(request)
    assert harness.deny(request) == []
    assert [str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals] == ["duplicate"]
    assert len(harness.approval_outcomes) == 1


NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), Decimal("NaN"), "NaN", "Infinity", "-inf", "1e999"]


@each_case("number", NO_NUMBERS)
@each_case("agent", [Pays, PaysByTool])
def test_no_answer_brings_a_number_that_is_none(agent: type[Agent], number: Any) -> None:
    """Not by the console or the command line, and not by a record that somebody wrote."""
    changed = {"input": {"order": "kettle", "amount": number}} if agent is Pays else {"amount": number}
    if agent is Pays and isinstance(number, str):
        return  # The type of an input is its author's, and may have such numbers.
    with OperatorHarness(agent) as harness:
        harness.push(KETTLE)
        [request] = harness.approvals
        if isinstance(number, str):
            assert harness.approve(request, changed) == []
        else:
            with pytest.raises(ValidationError, match="numbers must be finite"):
                request.approve(changed)
        signal = request.approve()
        answer = {**signal.value, "arguments": changed}
        assert harness.signal(signal.key, signal.name, answer, wait=signal.wait) == []
        assert {str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals} == {"invalid"}
        assert effects == []
        assert harness.approve(request) == ["kettle: paid 40"]
    assert effects == [("kettle", 40)]
    effects.clear()


def test_an_answer_to_the_request_of_another_job_does_not_fit(agent_harness: Make) -> None:
    """Its run has the same number, key and action, since that job began anew without state."""
    earlier = agent_harness(Pays, job_id="earlier")
    earlier.push(KETTLE)
    [old] = earlier.approvals
    harness = agent_harness(Pays, job_id="later")
    harness.push(KETTLE)
    [new] = harness.approvals
    assert old.id != new.id
    assert old.id.rpartition("|")[0] == new.id.rpartition("|")[0]
    assert harness.approve(old) == []
    assert [str(unmatched_signal.reason) for unmatched_signal in harness.unmatched_signals] == ["invalid"]
    assert harness.approve(new) == ["kettle: paid 40"]


def test_the_id_of_a_request_is_the_same_after_a_crash(agent_harness: Make) -> None:
    harness = agent_harness(Pays)
    snapshot = harness.snapshot()
    harness.push(KETTLE)
    [first] = harness.approvals
    harness.advance_time(5_000)
    harness.recover(snapshot)
    [again] = harness.approvals
    assert again.id == first.id
    assert harness.approve(first) == ["kettle: paid 40"]


class Denied(Agent):
    """Is told of a denial by an event."""

    @action(InputEvent, needs_approval=True)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output="paid")

    @action(ApprovalDeniedEvent)
    def refuse(self, event: ApprovalDeniedEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.event.input, str(event.outcome.decision), event.outcome.reason))


def test_an_action_is_told_of_a_denial() -> None:
    harness = OperatorHarness(Denied, crash="everywhere")
    harness.push("kettle")
    assert harness.deny(harness.approvals[0], "no") == [("kettle", "denied", "no")]


class Chosen(Event):
    amount: float
    note: str = ""


class Chooses(Agent):
    """An action behind another one, which yields."""

    @action(InputEvent)
    def choose(self, event: InputEvent, ctx: Any) -> Chosen:
        return Chosen(amount=event.input)

    @action(Chosen, needs_approval=True)
    async def pay(self, event: Chosen, ctx: Any) -> Any:
        yield OutputEvent(output=event.amount)
        yield OutputEvent(output=(event.note, event.id is not None))


def test_an_action_that_yields_and_has_fields_of_its_own() -> None:
    harness = OperatorHarness(Chooses, crash="everywhere")
    harness.push(7)
    assert harness.approvals[0].arguments == {"amount": 7.0, "note": ""}
    assert harness.approve(harness.approvals[0], {"note": "less", "amount": 5}) == [5.0, ("less", True)]


class Both(Agent):
    """Asks twice at a time."""

    def __init__(self) -> None:
        self.pay = Tool(pay, needs_approval=True)

    @action(InputEvent)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        paid = await ctx.gather(*(self.pay(order=name, amount=20) for name in event.input))
        return OutputEvent(output=paid)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_several_requests_of_a_run_are_answered_in_any_order(order: tuple[int, ...]) -> None:
    harness = OperatorHarness(Both, crash="everywhere")
    harness.push(["a", "b", "c"])
    requests = harness.approvals
    assert [request.arguments["order"] for request in requests] == ["a", "b", "c"]
    for number in order:
        assert len(effects) == order.index(number)
        harness.approve(requests[number])
    assert harness.outputs == [["a: paid 20", "b: paid 20", "c: paid 20"]]
    assert sorted(effects) == [("a", 20), ("b", 20), ("c", 20)]


class CallsInThread(Agent):
    """Calls a tool where no run can wait for it."""

    pay = Tool(pay, needs_approval=True)

    @action(InputEvent)
    def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=self.pay(order="a", amount=1))


def test_a_tool_that_needs_approval_is_refused_where_nobody_can_be_asked(agent_harness: Make) -> None:
    with pytest.raises(ActionFailedError) as failed:
        agent_harness(CallsInThread).push("a")
    assert isinstance(failed.value.__cause__, ContextMisuseError)
    with pytest.raises(ContextMisuseError, match="the tool 'pay' needs an approval"):
        Tool(pay, needs_approval=True)("a", 1)


def test_an_action_that_needs_approval_is_async_def() -> None:
    class Wrong(Agent):
        @action(InputEvent, needs_approval=True)
        def refund(self, event: InputEvent, ctx: Any) -> None: ...

    with pytest.raises(AgentDefinitionError, match="has to be async def"):
        compile_agent(Wrong)
    with pytest.raises(AgentDefinitionError, match="invalid needs_approval"):
        action(InputEvent, needs_approval=3)(pay)  # pyright: ignore[reportArgumentType]


ANSWERS = 500


class Asks(Agent):
    """Puts out what it was answered."""

    @action(InputEvent, needs_approval=True)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(pay, str(event.input), event.input))

    @action(ApprovalDeniedEvent)
    def refuse(self, event: ApprovalDeniedEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"{event.event.input}: {event.outcome.reason}")


@pytest.mark.executes_once
def test_500_approvals_are_answered_in_random_order_across_a_restart(agent_harness: Make) -> None:
    """A third before the checkpoint, a third behind it and again after the restart, a third after it."""
    chance = random.Random(7)
    harness = agent_harness(Asks, key_selector=lambda number: number, config={"run.max-in-flight": 4})
    harness.push_all(range(ANSWERS))
    requests = harness.approvals
    assert len({approval.id for approval in requests}) == ANSWERS
    chance.shuffle(requests)

    def answer(one: ApprovalRequest) -> None:
        number = one.arguments["input"]
        harness.approve(one) if number % 3 else harness.deny(one, f"no {number}")

    third = ANSWERS // 3
    for request in requests[:third]:
        answer(request)
    snapshot = harness.snapshot()
    for request in requests[third : 2 * third]:
        answer(request)
    harness.recover(snapshot, parallelism=2)
    for request in requests[2 * third :]:
        answer(request)
    expected = [
        f"{number}: paid {number}" if number % 3 else f"{number}: no {number}" for number in range(ANSWERS)
    ]
    assert sorted(harness.outputs) == sorted(expected)
    assert sorted(effects) == sorted((str(number), number) for number in range(ANSWERS) if number % 3)
    assert harness.approvals == [] and harness.unmatched_signals == []
    assert len(harness.approval_outcomes) == ANSWERS
