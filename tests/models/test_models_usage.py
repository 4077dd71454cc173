"""What conversations use: each recorded answer counts once, and limits hold before anything follows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RunnerContext, UsageLimits
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, AgentsError, UsageLimitExceededError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from flink_agents.testing.models import ScriptedModel

pytestmark = pytest.mark.executes_once

CALLED: list[str] = []
PRICE = 0.01
"""What each answer below costs, in US dollars."""


class Script:
    """The lines of the model below; each test writes them."""

    model: Any = None


def model() -> Model:
    return Script.model


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of prices of our own: that of the library changes with its versions."""
    CALLED.clear()

    class Price:
        total_price = PRICE

    monkeypatch.setattr(ModelResponse, "cost", lambda response: Price())


def shop(**limits: Any) -> Agent:
    """An agent that may use so much for an input."""

    async def ask(event: Any, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("clerk", event.input, tools=[look], limits=UsageLimits(**limits))
        return OutputEvent(output=result.usage.model_dump(exclude_none=True))

    agent = Agent(name="Shop").add_action("ask", [InputEvent], ask)
    agent.add_resource("clerk", "chat_model", ChatModel(clazz=f"{__name__}:model"))
    return agent


def look(item: str = "tea") -> str:
    """Look at an item."""
    CALLED.append(item)
    return "fresh"


def asks(*items: str) -> ModelResponse:
    calls = [ToolCallPart("look", {"item": item}, f"call {item}") for item in items]
    return ModelResponse(calls, usage=RequestUsage(input_tokens=10, output_tokens=5), model_name="any")


def says(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)], usage=RequestUsage(input_tokens=10, output_tokens=5))


def test_what_answers_use_adds_up() -> None:
    Script.model = ScriptedModel([asks("tea"), asks("rice", "salt"), says("good")])
    with OperatorHarness(shop(cost=1)) as harness:
        (used,) = harness.push("all?")
    assert used.pop("cost") == pytest.approx(3 * PRICE)
    assert used == {"requests": 3, "tool_calls": 3, "input_tokens": 30, "output_tokens": 15}


@pytest.mark.parametrize(
    ("limits", "text", "requests", "called"),
    [
        ({"cost": 2.5 * PRICE}, "limit of cost", 3, ["tea", "rice", "salt"]),
        ({"cost": 0.5 * PRICE}, "limit of cost", 1, []),
        ({"tool_calls": 2}, "limit of tool calls", 2, ["tea"]),
        ({"input_tokens": 19}, "limit of input tokens", 2, ["tea"]),
        ({"requests": 2}, "limit of requests", 2, ["tea", "rice", "salt"]),
    ],
)
def test_nothing_follows_from_an_answer_that_is_too_much(
    limits: dict[str, Any], text: str, requests: int, called: list[str]
) -> None:
    Script.model = ScriptedModel([asks("tea"), asks("rice", "salt"), says("good")])
    with OperatorHarness(shop(**limits)) as harness, pytest.raises(ActionFailedError, match=text) as caught:
        harness.push("all?")
    assert isinstance(caught.value.__cause__, UsageLimitExceededError)
    assert Script.model.count == requests
    assert sorted(CALLED) == sorted(called)


@pytest.mark.parametrize("later", ["dearer", "unknown"])
def test_a_replay_counts_the_price_that_was_recorded(monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    """Lists of prices come with the library, which may be another one when the job goes on."""
    Script.model = ScriptedModel([asks("tea"), says("good")])
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(shop(cost=2.5 * PRICE), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(AgentsError):
            harness.push("all?")

        def cost(response: ModelResponse) -> Any:
            if later == "unknown":
                raise LookupError("no such model")
            return type("Price", (), {"total_price": 1.0})()

        monkeypatch.setattr(ModelResponse, "cost", cost)
        harness.restore(snapshot)
        (used,) = harness.push("all?")
    assert used["cost"] == pytest.approx(2 * PRICE)
    assert Script.model.count == 2 and CALLED == ["tea"]
