"""What records say of the calls of an agent, and what happens where its code has changed since."""

from __future__ import annotations

from typing import Any

import pytest
from engine_tools import EFFECTS, calls, counted, says, scripted
from pydantic_ai import Agent as ModelAgent, Tool
from pydantic_ai.toolsets import FunctionToolset

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, AgentDefinitionError
from flink_agents.models.engine import FlinkDurability, action_of, as_tool
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.runtime.durable_tools import calls_of, crash, journal


async def look_up(order: str) -> str:
    """Look an order up."""
    EFFECTS.append(("look_up", order))
    return f"state of {order}"


INNER = ModelAgent(scripted("inner-model", says("inner")), name="inner", capabilities=[FlinkDurability()])


def agent_of(*tools: Any, question: str = "one", **options: Any) -> ModelAgent[None, str]:
    return ModelAgent(
        scripted("model", calls(("look_up", {"order": question})), says("done")),
        name="orders",
        capabilities=[FlinkDurability()],
        tools=[look_up, *tools],
        **options,
    )


AGENTS: dict[str, ModelAgent[None, str]] = {}
"""The agent that a test runs."""

PROMPT: dict[str, str] = {}


@pytest.fixture(autouse=True)
def usual_prompt() -> None:
    PROMPT["text"] = "go"


class Orders(Agent):
    """Runs an agent of pydantic-ai."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(await AGENTS["one"].run(PROMPT["text"])).output)


def orders(agent: ModelAgent[None, str]) -> type[Agent]:
    AGENTS["one"] = agent
    return Orders


def recorded_names(agent: type[Agent]) -> list[str]:
    faults = Faults(lambda *at: None)
    OperatorHarness(agent, store=faults.store).push("order 1")
    return sorted(record.call.function for record in calls_of(journal(faults)))


def test_names_in_records() -> None:
    """Journals have them, so that they can never change."""
    tool = Tool(look_up, name="find")
    both = ModelAgent(
        scripted(
            "model",
            calls(("look_up", {"order": "a"}), ("find", {"order": "b"}), ("inner", {"request": "c"})),
            says("done"),
        ),
        name="orders",
        capabilities=[FlinkDurability()],
        tools=[look_up, as_tool(INNER, step_by_step=True)],
        toolsets=[FunctionToolset([tool], id="more")],
    )
    assert recorded_names(orders(both)) == [
        "inner__model.request",
        "orders__function_toolset__<agent>.call_tool:look_up",
        "orders__function_toolset__more.call_tool:find",
        "orders__model.request",
        "orders__model.request",
    ]


def interrupted(agent: type[Agent]) -> tuple[OperatorHarness, Any, Faults]:
    """A harness whose attempt ended before the action was recorded, and what to restore."""
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(agent, store=faults.store)
    snapshot = harness.snapshot()
    with crash():
        harness.push("order 1")
    return harness, snapshot, faults


def test_another_request_than_was_recorded_is_found() -> None:
    harness, snapshot, _ = interrupted(orders(agent_of()))
    PROMPT["text"] = "go elsewhere"
    harness.restore(snapshot)
    with pytest.raises(ActionFailedError, match="orders__model.request"):
        harness.push("order 1")
    assert counted() == {("model", 0): 1, ("model", 1): 1, ("look_up", "one"): 1}


def test_the_time_of_a_request_is_no_part_of_it() -> None:
    harness, snapshot, _ = interrupted(orders(agent_of()))
    harness.advance_time(86_400_000)
    harness.restore(snapshot)
    harness.push("order 1")
    assert harness.outputs == ["done: state of one"]
    assert counted() == {("model", 0): 1, ("model", 1): 1, ("look_up", "one"): 1}


class Opaque:
    """Cannot be written as JSON."""


async def keep(order: str) -> Any:
    """Return something that no journal can have."""
    return Opaque()


def test_a_result_that_cannot_be_recorded_names_agent_and_tool() -> None:
    agent = ModelAgent(
        scripted("model", calls(("keep", {"order": "a"})), says("done")),
        name="orders",
        capabilities=[FlinkDurability()],
        tools=[keep],
    )
    with pytest.raises(ActionFailedError) as caught:
        OperatorHarness(orders(agent)).push("order 1")
    text = str(caught.value)
    assert "'orders__function_toolset__<agent>.call_tool:keep' of the agent 'orders'" in text
    assert "Opaque" in text


@pytest.mark.parametrize("metadata", [None, {"flink": False}])
def test_a_tool_may_be_code_of_the_action(metadata: dict[str, bool] | None) -> None:
    tool = Tool(look_up, name="find", metadata=metadata)
    agent = ModelAgent(
        scripted("model", calls(("find", {"order": "a"})), says("done")),
        name="orders",
        capabilities=[FlinkDurability()],
        tools=[tool],
    )
    harness, snapshot, _ = interrupted(orders(agent))
    harness.restore(snapshot)
    harness.push("order 1")
    assert counted()[("look_up", "a")] == (1 if metadata is None else 2)
    assert harness.outputs == ["done: state of a"]


class OneLine(Agent):
    """An action of one line."""

    decide = action_of(
        ModelAgent(scripted("model", says("said")), name="speaker", capabilities=[FlinkDurability()]),
        InputEvent,
    )


def test_an_action_of_one_line() -> None:
    harness = OperatorHarness(OneLine, crash="everywhere")
    harness.push("hello")
    assert harness.outputs == ["said: hello"]
    assert [plan_action.name for plan_action in harness.plan.actions] == ["speaker"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: action_of(ModelAgent("test", name="speaker"), InputEvent),
        lambda: as_tool(ModelAgent("test")),
        lambda: as_tool(ModelAgent("test", name="speaker"), step_by_step=True),
    ],
)
def test_agents_that_nothing_would_record_are_refused(make: Any) -> None:
    with pytest.raises(AgentDefinitionError):
        make()


class LateTools(Agent):
    """Gives a run tools that its agent does not have."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: Any) -> OutputEvent:
        result = await AGENTS["one"].run("go", toolsets=[FunctionToolset([look_up], id="late")])
        return OutputEvent(output=result.output)


def test_tools_that_come_with_a_run_are_refused() -> None:
    AGENTS["one"] = agent_of()
    with pytest.raises(ActionFailedError, match="Flink"):
        OperatorHarness(LateTools).push("order 1")


class Twice(Agent):
    """Runs an agent twice, and notes how the runs are known."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: Any) -> OutputEvent:
        results = [await AGENTS["one"].run("a"), await AGENTS["one"].run("b")]
        SEEN.append([(result.run_id, result.conversation_id) for result in results])
        return OutputEvent(output=len(results))


SEEN: list[list[Any]] = []


def test_runs_have_the_same_identity_on_replay() -> None:
    SEEN.clear()
    AGENTS["one"] = agent_of()
    harness, snapshot, _ = interrupted(Twice)
    harness.restore(snapshot)
    harness.push("order 1")
    assert SEEN[0] == SEEN[1]
    assert len(set(SEEN[0])) == 2
