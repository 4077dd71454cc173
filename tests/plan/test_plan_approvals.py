"""Marks of actions and tools that need approvals: in code, YAML and plans, bound with code and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, ApprovalDeniedEvent, InputEvent, action, tool
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, compile_with_code
from flink_agents.plan.binding.needs import may_make_durable_steps
from flink_agents.plan.files.yaml import load_yaml
from flink_agents.plan.show import to_text
from tests.suite.tables import each_case


def is_large(about: Any) -> bool:
    return bool(about)


class Marked(Agent):
    @action(InputEvent, needs_approval=is_large, approval_timeout=60)
    async def pay(self, event: InputEvent, ctx: Any) -> None: ...

    @tool(needs_approval=is_large)
    @staticmethod
    def give(amount: float) -> float:
        """Give an amount."""
        return amount

    @tool(needs_approval=lambda arguments: False)
    @staticmethod
    def lend(amount: float) -> float:
        """Lend an amount."""
        return amount


class Unmarked(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> None: ...


class MarkedTool(Unmarked):
    @tool(needs_approval=True)
    @staticmethod
    def give(amount: float) -> float:
        """Give an amount."""
        return amount


class Told(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> None: ...

    @action(ApprovalDeniedEvent)
    def tell(self, event: ApprovalDeniedEvent, ctx: Any) -> None: ...


@each_case("with_code", [True, False])
def test_marks_go_through_the_plan(with_code: bool) -> None:
    plan = AgentPlan.from_json(compile_agent(Marked).to_json())
    bound = LoadedAgent(plan, compile_with_code(Marked)[1] if with_code else None)
    settings = bound.actions[0].settings
    assert settings.needs_approval is is_large
    assert settings.approval_timeout == 60
    assert bound.resource("give", "tool").settings.needs_approval is is_large
    assert bound.resource("lend", "tool").needs_approval({"amount": 1}) is False
    assert bound.plan.needs_approvals


def test_plans_say_what_needs_an_approval() -> None:
    plan = compile_agent(Marked)
    assert plan.actions[0].needs_approval == f"{__name__}:is_large"
    text = to_text(plan)
    assert "needs approval; approval within 60 s" in text
    assert "Give an amount. (needs approval)" in text


def test_a_mark_of_an_action_changes_the_fingerprint_and_no_mark_does_not() -> None:
    marked = compile_agent(Marked)
    plain = compile_agent(Unmarked)
    assert marked.recovery_parts()["actions"]["pay"]["needs_approval"] == f"{__name__}:is_large"
    assert "needs_approval" not in plain.recovery_parts()["actions"]["pay"]


@each_case(
    ("agent", "asks", "calls"),
    [(Marked, True, True), (MarkedTool, True, True), (Told, True, False), (Unmarked, False, False)],
)
def test_agents_with_marks_ask(agent: type[Agent], asks: bool, calls: bool) -> None:
    bound = LoadedAgent(*compile_with_code(agent))
    assert bound.plan.needs_approvals is asks
    assert may_make_durable_steps(bound) is calls


async def pay(event: Any, ctx: Any) -> None: ...


def give(amount: float) -> float:
    """Give an amount."""
    return amount


def test_marks_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(
        f"""
agents:
  - name: Whole
    actions:
      - {{name: pay, triggers: [_input_event], function: "{__name__}:pay", needs_approval: true}}
    tools:
      - name: give
        function: {__name__}:give
        needs_approval: {__name__}:is_large
        approval_timeout: 60
""",
        encoding="utf-8",
    )
    plan = AgentPlan.from_json(compile_agent(load_yaml(file)["Whole"]).to_json())
    bound = LoadedAgent(plan)
    assert bound.actions[0].settings.needs_approval is True
    settings = bound.resource("give", "tool").settings
    assert (settings.needs_approval, settings.approval_timeout) == (is_large, 60)


async def pays(event: Any, ctx: Any) -> None: ...


@each_case(
    "declare",
    [
        lambda: action(InputEvent, approval_timeout=60)(pays),
        lambda: tool(approval_timeout=60)(pays),
        lambda: Agent(name="Till").add_action("pay", [InputEvent], pays, approval_timeout=60),
    ],
    ids=["action", "tool", "builder"],
)
def test_a_timeout_of_an_approval_that_nobody_asks_for_is_refused(declare: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="but no needs_approval") as caught:
        declare()
    assert "needs_approval=True" in str(caught.value.fix)


def test_an_action_may_say_that_it_needs_no_approval() -> None:
    action(InputEvent, needs_approval=False, approval_timeout=60)(pays)
