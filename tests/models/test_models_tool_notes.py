"""An error that a tool raised names the tool, whoever calls it and whatever is replayed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent
from suite.tables import each_case

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    ResourceType,
    RunnerContext,
    TerminalError,
    action,
    chat_model,
    tool,
)
from flink_agents.api.errors import ActionFailedError
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall

KINDS: dict[str, type[Exception]] = {}
SCRIPT: list[ScriptedModel] = []


class Never(TerminalError):
    pass


class Frozen(Exception):
    """Takes no note."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "__notes__":
            raise AttributeError(name)
        super().__setattr__(name, value)


def broken(what: str) -> str:
    raise KINDS["error"](f"broken {what}")


def outside(what: str) -> str:
    """Break, as a tool of pydantic-ai."""
    return broken(what)


def model() -> Any:
    return SCRIPT[0]


class Caller(Agent):
    """Calls the tool that its input names, in the way that it names."""

    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["plain", "later", "inside", "durable"])

    @tool
    def plain(self, what: str) -> str:
        return broken(what)

    @tool
    async def later(self, what: str) -> str:
        return broken(what)

    @tool
    async def inside(self, what: str, ctx: RunnerContext) -> str:
        return broken(what)

    @tool
    async def durable(self, what: str, ctx: RunnerContext) -> str:
        return await ctx.durable_execute_async(broken, what)

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        way, name = event.input
        if way == "model":
            return OutputEvent(output=(await ctx.chat("main", "go")).output)
        if way == "engine":
            agent: Any = ModelAgent(
                SCRIPT[0], name="judge", tools=[outside], capabilities=[FlinkDurability()]
            )
            return OutputEvent(output=(await agent.run("go")).output)
        plan_tool: Any = ctx.get_resource(name, ResourceType.TOOL)
        if way == "durable call":
            return OutputEvent(output=await ctx.durable_execute_async(plan_tool, "it"))
        arguments = {"ctx": ctx} if name in ("inside", "durable") else {}
        result = plan_tool(what="it", **arguments)
        return OutputEvent(output=result if name == "plain" else await result)


WAYS = [
    *(("model", name) for name in ("plain", "later", "inside", "durable")),
    *(("by name", name) for name in ("plain", "later", "inside", "durable")),
    *(("durable call", name) for name in ("plain", "later")),
    ("engine", "outside"),
]


def failure(way: str, name: str, **harness: Any) -> str:
    SCRIPT[:] = [ScriptedModel([ToolCall(name, {"what": "it"}), "done"])]
    with OperatorHarness(Caller(), **harness) as job, pytest.raises(ActionFailedError) as caught:
        job.push((way, name))
    return str(caught.value)


@each_case(("way", "name"), WAYS)
def test_the_error_names_the_tool_once(way: str, name: str) -> None:
    KINDS["error"] = OSError
    text = failure(way, name)
    assert "in broken: OSError: broken it" in text.split("\n")[0]
    assert text.split("\n")[1] == f"  in tool {name!r}"
    assert text.count("in tool") == 1


@each_case("error", [Never, Frozen, OSError, type("Attributes", (ValueError,), {"slot": object()})])
def test_whatever_is_raised(error: type[Exception]) -> None:
    KINDS["error"] = error
    text = failure("model", "inside")
    assert "broken it" in text
    assert text.count("in tool 'inside'") == (error is not Frozen)


@each_case(("way", "name"), WAYS)
def test_a_replay_names_it_as_well(way: str, name: str) -> None:
    KINDS["error"] = OSError
    for setting in ({"forced_replay": True}, {"forced_restart": True}):
        assert failure(way, name, **setting).count(f"in tool {name!r}") == 1


class Lenient(Caller):
    on_error = "dead-letter"


def test_a_dead_letter_names_it() -> None:
    KINDS["error"] = OSError
    SCRIPT[:] = [ScriptedModel([ToolCall("plain", {"what": "it"}), "done"])]
    with OperatorHarness(Lenient()) as job:
        job.push(("model", "plain"))
        (letter,) = job.dead_letters
    assert "in tool 'plain'" in letter.traceback and letter.error_message == "broken it"


class Noting(Agent):
    @action(InputEvent)
    def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        error = OSError("broken")
        for note in event.input:
            error.add_note(note)
        raise error


def test_notes_of_authors_are_shown_too() -> None:
    for notes, lines in (
        (["of order 7"], ["  of order 7"]),
        (["two\nlines"], ["  two", "  lines"]),
        (["x" * 10_000], ["  " + "x" * 500]),
        ([str(number) for number in range(9)], [f"  {number}" for number in range(5)]),
    ):
        with OperatorHarness(Noting()) as job, pytest.raises(ActionFailedError) as caught:
            job.push(notes)
        assert str(caught.value).split("\n")[1 : len(lines) + 1] == lines
