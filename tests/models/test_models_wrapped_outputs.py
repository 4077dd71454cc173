"""Outputs that are no JSON object come as ``{"response": ...}``; without the wrapper, the model is told."""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel, RootModel
from typing_extensions import TypedDict

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.api.errors import ActionFailedError, ModelOutputError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from tests.suite.conditions import UNFORCED
from tests.suite.factors import factors
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions


class Refund(BaseModel):
    amount: int


class Nothing(BaseModel):
    reason: str = ""


class Kind(enum.Enum):
    GOOD = "good"


class Amounts(RootModel[list[int]]):
    pass


class Typed(TypedDict):
    amount: int


@dataclass
class Plain:
    amount: int


WRAPPED: dict[str, tuple[Any, Any, Any]] = {
    "optional model": (Optional[Refund], {"amount": 5}, Refund(amount=5)),  # noqa: UP045
    "model or none": (Refund | None, {"amount": 5}, Refund(amount=5)),
    "union with none": (Refund | str | None, "later", "later"),
    "optional without fields": (Nothing | None, {}, Nothing()),
    "optional dataclass": (Plain | None, {"amount": 5}, Plain(5)),
    "optional typed dict": (Typed | None, {"amount": 5}, {"amount": 5}),
    "optional dict": (dict[str, int] | None, {"amount": 5}, {"amount": 5}),
    "optional number": (int | None, 5, 5),
    "optional list": (list[int] | None, [5], [5]),
    "any": (Any, {"amount": 5}, {"amount": 5}),
    "number": (int, 5, 5),
    "boolean": (bool, False, False),
    "list": (list[Refund], [{"amount": 5}], [Refund(amount=5)]),
    "union": (Refund | Nothing, {"amount": 5}, Refund(amount=5)),
    "literal": (Literal["a", "b"], "a", "a"),
    "enum": (Kind, "good", Kind.GOOD),
    "date": (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
    "root model": (Amounts, [5], Amounts([5])),
    "none": (type(None), None, None),
}
UNWRAPPED: dict[str, tuple[Any, Any, Any]] = {
    "model": (Refund, {"amount": 5}, Refund(amount=5)),
    "dataclass": (Plain, {"amount": 5}, Plain(5)),
    "typed dict": (Typed, {"amount": 5}, {"amount": 5}),
    "dict": (dict[str, int], {"amount": 5}, {"amount": 5}),
}
MODES = ["tool", "prompted", "native"]
MODEL: list[ScriptedModel] = []
ASKED: list[Any] = []


def model() -> Any:
    return MODEL[0]


class Asker(Agent):
    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, output_retries=1)

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        kind, mode = ASKED
        OUTPUTS.append((await ctx.chat("clerk", "go", output_type=kind, output_mode=mode)).output)
        return OutputEvent(output=None)


OUTPUTS: list[Any] = []


def answered(kind: Any, mode: str, *answers: Any) -> Any:
    """The output after these answers, all of which the agent asks for."""
    lines = [
        ToolCall("final_result", answer if isinstance(answer, dict) else json.dumps(answer))
        if mode == "tool"
        else json.dumps(answer)
        for answer in answers
    ]
    MODEL[:] = [ScriptedModel(lines)]
    ASKED[:] = [kind, mode]
    OUTPUTS.clear()
    with OperatorHarness(Asker(), **UNFORCED) as harness:
        harness.push("go")
    MODEL[0].assert_complete()
    return OUTPUTS[-1]


@factors(strength=1, name=WRAPPED, mode=MODES)
def test_an_answer_without_the_wrapper_is_told_to_the_model(name: str, mode: str) -> None:
    kind, value, output = WRAPPED[name]
    wrapped = {"response": value}
    assert answered(kind, mode, wrapped) == output
    assert answered(kind, mode, {**wrapped, "note": "done"}) == output
    for odd in ({"amount": 5}, {}, {"result": value}, {"Response": value}, [value], None, "yes"):
        assert answered(kind, mode, odd, wrapped) == output
        parts_text = str(MODEL[0].asked[1][-1].parts).replace("\\", "")
        assert "the output belongs under the key 'response'" in parts_text
    with pytest.raises(ActionFailedError) as caught:
        answered(kind, mode, {"amount": 5}, {})
    assert isinstance(caught.value.__cause__, ModelOutputError)


@each_case("mode", MODES)
@each_case("name", [name for name in WRAPPED if "optional" in name or "none" in name or name == "any"])
def test_none_in_the_wrapper_is_an_output(name: str, mode: str) -> None:
    assert answered(WRAPPED[name][0], mode, {"response": None}) is None


@each_case("mode", MODES)
@each_case("name", [*UNWRAPPED])
def test_an_object_has_no_wrapper(name: str, mode: str) -> None:
    kind, value, output = UNWRAPPED[name]
    assert answered(kind, mode, value) == output
