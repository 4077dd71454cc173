"""Tools and models that misbehave: each ends as documented, and costs other keys nothing.

The same by ``ctx.chat`` and by whole agents of pydantic-ai. One key meets the trouble; the outputs of all
others are complete.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent, Tool as ModelTool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import Agent, ChatModel, InputEvent, OnError, OutputEvent, RunnerContext, Tool, action
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

OTHERS = [f"order {number}" for number in range(5)]
LARGE = 10_000_000

GATE = threading.Event()
"""Lets tools that hang go on, at the end of a test."""


class Verdict(BaseModel):
    """What is asked for."""

    good: bool


def act(what: str) -> Any:
    """Do something."""
    if what == "raise":
        raise OSError("broken")
    if what == "hang":
        GATE.wait()
        return "released"
    return {"large": "x" * LARGE, "object": object(), "well": "well"}[what]


async def wait(what: str) -> str:
    """Wait without end, as code of the loop."""
    await asyncio.Event().wait()
    return what


SAID: dict[str, Callable[[int], Any]] = {
    "nonsense": lambda turn: TextPart("%&/()="),
    "wrong type": lambda turn: ToolCallPart("final_result", {"good": "perhaps"}),
    "silence": lambda turn: TextPart(""),
    "no JSON": lambda turn: ToolCallPart("act", "{no"),
    "unknown tool": lambda turn: ToolCallPart("atc", {"what": "well"}),
    "loop": lambda turn: ToolCallPart("act", {"what": "well"}),
    "async hang": lambda turn: ToolCallPart("wait", {"what": "for ever"}),
}
"""What the model says in each turn about a trouble that is its own; all else are calls of tools."""


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    trouble = str(vars(messages[0].parts[0])["content"])
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if trouble in OTHERS:
        return ModelResponse([ToolCallPart("final_result", {"good": True})])
    if trouble in SAID:
        return ModelResponse([SAID[trouble](turn)])
    if turn == 0:
        return ModelResponse([ToolCallPart("act", {"what": trouble})])
    content = str(vars(messages[-1].parts[0])["content"])
    return ModelResponse([ToolCallPart("final_result", {"good": len(content) > 1000})])


model = FunctionModel(answer)


class Chatting(Agent):
    """Asks by ``ctx.chat``."""

    def __init__(self, timeout: float | None = None) -> None:
        spec = ChatModel(clazz=f"{__name__}:model", tools=["act", "wait"], tool_timeout=timeout)
        self.add_resource("main", "chat_model", spec)
        self.add_resource("act", "tool", Tool(act))
        self.add_resource("wait", "tool", Tool(wait))

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("main", event.input, output_type=Verdict)
        return OutputEvent(output=(event.input, result.output.good))


class Whole(Agent):
    """Runs an agent of pydantic-ai."""

    def __init__(self, timeout: float | None = None) -> None:
        settings = {"flink": {} if timeout is None else {"timeout": timeout}}
        self.agent = ModelAgent(
            model,
            name="worker",
            output_type=Verdict,
            tools=[ModelTool(act, metadata=settings), ModelTool(wait, metadata=settings)],
            capabilities=[FlinkDurability()],
        )

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(event.input, (await self.agent.run(event.input)).output.good))


ENDS: dict[str, tuple[Any, Any]] = {
    "raise": ("OSError: broken", "OSError: broken"),
    "large": (False, "FA4014"),  # the one is told to ask for less
    "object": ("FA9102", "FA4014"),
    "nonsense": ("FA9003", "UnexpectedModelBehavior"),
    "wrong type": ("FA9003", "UnexpectedModelBehavior"),
    "silence": ("FA9003", "UnexpectedModelBehavior"),
    "no JSON": ("FA9101", "UnexpectedModelBehavior"),
    "unknown tool": ("FA9101", "UnexpectedModelBehavior"),
    "loop": ("FA9002", "UsageLimitExceeded"),
}
"""How each trouble ends: with the output of a run, or with an error in a dead letter."""

HANGS: dict[str, tuple[Any, Any]] = {
    "hang": ("FA9040", "FA9040"),
    "async hang": ("FA9040", "FA9040"),
}
"""The same of tools that hang, where they have a timeout."""


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


def harness_of(make: Make, agent: Agent) -> OperatorHarness:
    return make(
        agent,
        lambda record: record,
        auto_run=False,
        crash=None,
        forced_replay=False,
        forced_restart=False,
        forced_serialization=False,
    )


def ended(harness: OperatorHarness, trouble: str) -> Any:
    """What became of a trouble: an output, or the text of an error."""
    letters = harness.dead_letters
    if letters:
        assert {letter.key for letter in letters} == {trouble}
        return f"{letters[0].error_type}: {letters[0].error_message}"
    return dict(harness.outputs)[trouble]


def check(harness: OperatorHarness, trouble: str, expected: Any) -> None:
    harness.run_until_idle()
    other_outputs = {key: good for key, good in harness.outputs if key != trouble}
    assert other_outputs == dict.fromkeys(OTHERS, True)
    result = ended(harness, trouble)
    assert result is expected if isinstance(expected, bool) else str(expected) in result


KINDS = (Chatting, Whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", ENDS)
def test_each_ends_as_documented(agent_harness: Make, kind: type[Any], trouble: str) -> None:
    harness = harness_of(agent_harness, kind())
    harness.push_all([*OTHERS[:2], trouble, *OTHERS[2:]])
    check(harness, trouble, ENDS[trouble][KINDS.index(kind)])


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", HANGS)
def test_a_tool_that_hangs_has_a_timeout(agent_harness: Make, kind: type[Any], trouble: str) -> None:
    harness = harness_of(agent_harness, kind(timeout=0.2))
    harness.push_all([trouble, *OTHERS])
    check(harness, trouble, HANGS[trouble][KINDS.index(kind)])


@pytest.mark.parametrize("kind", KINDS)
def test_other_keys_end_while_a_tool_hangs(agent_harness: Make, kind: type[Any]) -> None:
    harness = harness_of(agent_harness, kind())
    harness.push("hang")
    harness.push_all(OTHERS)
    while len(harness.outputs) < len(OTHERS):
        harness.advance_time(1)
    assert dict(harness.outputs) == dict.fromkeys(OTHERS, True)
    assert harness.pending("hang") or not harness.dead_letters
    GATE.set()
    check(harness, "hang", False)
