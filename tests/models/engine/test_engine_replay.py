"""An agent of pydantic-ai inside an action: whatever crashes, recorded calls are not made again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
from engine_tools import EFFECTS, calls, counted, says, scripted, transcript
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent, ModelRetry, RunContext, Tool
from pydantic_ai.models import ModelRequestParameters

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.models.engine import FlinkDurability, as_tool
from flink_agents.models.engine.messages import digest_of
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case


async def slow_check(ctx: RunContext[None], number: int) -> None:
    """Take another time at each execution, as a validator that asks somebody would."""
    await asyncio.sleep(random.random() / 500)


async def tenfold(number: int) -> int:
    """Multiply by ten."""
    EFFECTS.append(("tenfold", number))
    await asyncio.sleep(random.random() / 500)
    return number * 10


def moody() -> str:
    """Ask for another try, once for each run that has not recorded that."""
    EFFECTS.append("moody")
    if counted()["moody"] == 1:
        raise ModelRetry("try again")
    return "calm"


TOOLS: list[Any] = [Tool(tenfold, args_validator=slow_check), moody]

refunds = ModelAgent(
    scripted(
        "refunds-model",
        calls(*(("tenfold", {"number": number}) for number in range(4)), ("moody", {})),
        calls(("moody", {}), ("tenfold", {"number": 7})),
        says("done"),
    ),
    name="refunds",
    capabilities=[FlinkDurability()],
    tools=TOOLS,
)


class Refunds(Agent):
    """Lets the agent decide, and puts out what it said, its transcript and identities."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: Any) -> OutputEvent:
        result = await refunds.run(str(event.input))
        messages = transcript(result.all_messages_json())
        return OutputEvent(output=[result.output, messages, result.run_id, result.usage.requests])


EXECUTED = {("refunds-model", 0): 1, ("refunds-model", 1): 1, ("refunds-model", 2): 1, "moody": 2} | {
    ("tenfold", number): 1 for number in (0, 1, 2, 3, 7)
}


def test_each_call_is_recorded_once_and_replayed() -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(Refunds, store=faults.store)
    snapshot = harness.snapshot()
    with pytest.raises(Exception, match="FA6"):
        harness.push("order 1")
    assert counted() == EXECUTED
    harness.restore(snapshot)
    harness.push("order 1")
    assert counted() == EXECUTED
    [(text, messages, run_id, requests)] = harness.outputs
    assert text == "done: calm 70"
    assert requests == 3
    assert run_id
    assert len(messages) == 6


@pytest.mark.own_conditions
def test_a_crash_anywhere_changes_nothing() -> None:
    harness = OperatorHarness(Refunds, crash="everywhere")
    harness.push("order 1")
    [(text, *_)] = harness.outputs
    assert text == "done: calm 70"


def test_outside_of_actions_the_agent_runs_as_without() -> None:
    EFFECTS.append("moody")
    result = asyncio.run(refunds.run("order 1"))
    assert result.output == "done: calm 70"
    assert counted() == EXECUTED | {"moody": 3}


@dataclass
class Tags:
    tags: Any


class TagsModel(BaseModel):
    tags: set[int]


@pytest.mark.own_conditions
@each_case(
    "holds",
    [
        lambda tags: {"tags": tags},
        lambda tags: (1, [tags]),
        lambda tags: frozenset((frozenset(tags), frozenset((1,)))),
        Tags,
        lambda tags: TagsModel(tags=tags),
        lambda tags: ModelRequestParameters(revealed_tool_names={str(tag) for tag in tags}),
    ],
    ids=["argument", "nested", "set of sets", "dataclass", "model", "revealed tools"],
)
def test_the_digest_of_a_request_does_not_depend_on_the_order_of_a_set(holds: Any) -> None:
    # 0 and 8 meet in a table of 8 places, as strings do in some processes.
    assert list({0, 8}) != list({8, 0})
    assert digest_of([holds({0, 8})]) == digest_of([holds({8, 0})])
    assert digest_of([holds({0, 8})]) != digest_of([holds({0, 9})])


inner = ModelAgent(
    scripted("inner-model", calls(("tenfold", {"number": 5})), says("inner")),
    name="inner",
    capabilities=[FlinkDurability()],
    tools=[tenfold],
)


def outer(step_by_step: bool) -> ModelAgent[None, str]:
    return ModelAgent(
        scripted(
            "outer-model",
            calls(("inner", {"request": "left"}), ("inner", {"request": "right"})),
            says("outer"),
        ),
        name="outer",
        capabilities=[FlinkDurability()],
        tools=[as_tool(inner, step_by_step=step_by_step)],
    )


AT_ONCE = outer(False)
STEP_BY_STEP = outer(True)


class Nested(Agent):
    """Lets an agent ask another one twice, side by side."""

    def __init__(self, step_by_step: bool = False) -> None:
        self.agent = STEP_BY_STEP if step_by_step else AT_ONCE

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(str(event.input))).output)


@pytest.mark.nightly(beyond=1)
@pytest.mark.own_conditions
@pytest.mark.parametrize("step_by_step", [False, True])
def test_an_agent_in_a_tool(step_by_step: bool) -> None:
    harness = OperatorHarness(Nested(step_by_step), crash="everywhere")
    harness.push("order 1")
    assert harness.outputs == ["outer: inner: 50 inner: 50"]
