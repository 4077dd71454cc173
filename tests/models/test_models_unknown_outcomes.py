"""A call of a tool whose outcome nobody knows is not repeated, whatever kind of tool it is.

The table is every kind of tool x a call that takes too long, that is cancelled, that a crash interrupts, and
that the model is asked to make otherwise. Effects are counted: nobody pays twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent, FunctionToolset, Tool as ModelTool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OnError,
    OutputEvent,
    RetryPolicy,
    RunnerContext,
    Skills,
    Tool,
    action,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import (
    ActionFailedError,
    StoreError,
    ToolOutcomeUnknownError,
)
from flink_agents.models.engine import FlinkDurability, as_tool, skills_toolset
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

PAID: list[str] = []
"""The effects: what each call did, with its idempotency key if it has one."""

GATE = threading.Event()

TIMEOUT = 0.6
"""Seconds after which a call that hangs has timed out. On a loaded machine, it must have begun before."""


@pytest.fixture(autouse=True)
def nothing_paid() -> Iterator[None]:
    PAID.clear()
    GATE.clear()
    yield
    GATE.set()


def effect(what: str, key: str = "") -> None:
    PAID.append(f"{what} {key}".strip())


# -- kinds of tools -----------------------------------------------------------------------


def pay(how: str) -> str:
    """Pay."""
    effect("pay")
    if how == "slow":
        GATE.wait()
    if how == "retry" and len(PAID) < 2:
        raise ModelRetry("pay otherwise")
    return "paid"


async def pay_async(how: str) -> str:
    """Pay."""
    effect("pay")
    if how == "slow":
        await asyncio.Event().wait()
    if how == "retry" and len(PAID) < 2:
        raise ModelRetry("pay otherwise")
    return "paid"


class Till:
    """Has methods that are tools."""

    def pay(self, how: str) -> str:
        """Pay."""
        return pay(how)

    async def pay_async(self, how: str) -> str:
        """Pay."""
        return await pay_async(how)


async def pay_in_action(how: str, ctx: RunnerContext) -> str:
    """Pay, as code of the action."""
    return await ctx.durable_execute_async(pay_async, how)


def one_call(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the only tool once, or again if it asks for that, and say what it returned."""
    last = messages[-1].parts[-1]
    how = str(vars(messages[0].parts[-1])["content"])
    if len(messages) > 1 and getattr(last, "outcome", "") != "retried":
        return ModelResponse([TextPart(str(getattr(last, "content", last)))])
    definition = info.function_tools[-1]
    wanted = {"how": how}
    if definition.name == "run_script":
        wanted = {"skill": "till", "script": "scripts/pay.sh", "arguments": [how]}
    elif definition.name == "cashier":
        wanted = {"request": how}
    return ModelResponse([ToolCallPart(definition.name, wanted)])


model = FunctionModel(one_call)


GIVEN: list[Any] = []
"""What agents are given that no plan can hold; they get the place of it."""


def keep(given: Any) -> int:
    GIVEN.append(given)
    return len(GIVEN) - 1


class Shop(Agent):
    """Lets a model pay by one tool."""

    def __init__(self, kind: str, place: int, tool_timeout: float | None = None) -> None:
        tool, chat = GIVEN[place]
        spec = ChatModel(clazz=f"{__name__}:model", tool_timeout=tool_timeout, **chat)
        self.add_resource("clerk", "chat_model", spec)
        self.add_resource("pay", kind, tool)


class Patient(Shop):
    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input, tools=["pay"])).output)


HASTY = RetryPolicy(initial_interval=0.001, max_attempts=3)


class Hasty(Shop):
    """Gives up before the tool does, and tries again."""

    @action(InputEvent, on_error=OnError.DEAD_LETTER, timeout=TIMEOUT, retry=HASTY)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input, tools=["pay"])).output)


class Whole(Agent):
    """Runs an agent of pydantic-ai that has the tool."""

    def __init__(self, place: int, timeout: float | None = None) -> None:
        calls: Any = {} if timeout is None else {"timeout": timeout}
        durability = FlinkDurability[None](tool_calls=calls)
        self.agent = ModelAgent(model, name="worker", capabilities=[durability], **GIVEN[place])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


class HastyWhole(Whole):
    @action(InputEvent, on_error=OnError.DEAD_LETTER, timeout=TIMEOUT, retry=HASTY)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


# -- the table ----------------------------------------------------------------------------


def sub_agent() -> ModelTool[Any]:
    """An agent as the tool of another one."""
    inner = ModelAgent(FunctionModel(one_call), name="inner", tools=[ModelTool(pay_async, name="pay")])
    return as_tool(inner, name="cashier")


CHATTING: dict[str, Callable[[], Any]] = {
    "def": lambda: Tool(pay, "pay"),
    "async def": lambda: Tool(pay_async, "pay"),
    "method": lambda: Tool(Till().pay, "pay"),
    "async method": lambda: Tool(Till().pay_async, "pay"),
    "in the action": lambda: Tool(pay_in_action, "pay"),
}
WHOLE: dict[str, Callable[[], Any]] = {
    "function": lambda: {"tools": [ModelTool(pay, name="pay")]},
    "async function": lambda: {"tools": [ModelTool(pay_async, name="pay")]},
    "toolset": lambda: {"toolsets": [FunctionToolset([ModelTool(pay_async, name="pay")], id="till")]},
    "agent": lambda: {"tools": [sub_agent()]},
}


def harness_of(agent: Agent, **options: Any) -> OperatorHarness:
    """A harness without any condition but those of the test."""
    return OperatorHarness(agent, crash=None, forced_replay=False, forced_serialization=False, **options)


def chatting(
    tool: Any, timeout: float | None = None, agent: type[Shop] = Patient, kind: str = "tool", **chat: Any
) -> Agent:
    """An agent whose model has one tool."""
    return agent(kind, keep((tool, chat)), timeout)


def whole(timeout: float | None = None, agent: type[Whole] = Whole, **settings: Any) -> Agent:
    """An agent of pydantic-ai that has one tool."""
    return agent(keep(settings), timeout)


def settle(harness: OperatorHarness, how: str) -> None:
    """Push an input, and let all attempts of its action end."""
    harness.push(how)
    for _ in range(20):
        if harness.outputs or harness.dead_letters:
            return
        harness.advance_time(1000)


def check_unknown(harness: OperatorHarness, error: str = "ToolOutcomeUnknownError") -> None:
    """Check that the run ended with the documented error, and that its effect was taken once."""
    [letter] = harness.dead_letters
    assert (letter.error_type, harness.outputs) == (error, [])
    assert "FA9040" in letter.traceback or "FA9203" in letter.traceback
    assert len(PAID) == 1


@each_case("kind", CHATTING)
def test_a_call_that_takes_too_long_ends_the_conversation(kind: str) -> None:
    PAID.clear()
    with harness_of(chatting(CHATTING[kind](), TIMEOUT)) as harness:
        settle(harness, "slow")
        GATE.set()
        check_unknown(harness)
    GATE.clear()


@each_case("kind", CHATTING)
def test_a_call_is_not_made_again_when_its_action_was_cancelled(kind: str) -> None:
    PAID.clear()
    if kind == "in the action":
        return  # Its own durable calls are those of the action, which says what may be repeated.
    with harness_of(chatting(CHATTING[kind](), agent=Hasty)) as harness:
        settle(harness, "slow")
        GATE.set()
        check_unknown(harness)
    GATE.clear()


@each_case("kind", CHATTING)
def test_a_model_may_be_asked_for_another_call(kind: str) -> None:
    PAID.clear()
    with harness_of(chatting(CHATTING[kind]())) as harness:
        assert harness.push("retry") == ["paid"]
    assert PAID == ["pay", "pay"]


@each_case("kind", WHOLE)
def test_the_same_in_whole_agents(kind: str) -> None:
    for make in (
        lambda: whole(TIMEOUT, **WHOLE[kind]()),
        lambda: whole(agent=HastyWhole, **WHOLE[kind]()),
    ):
        PAID.clear()
        with harness_of(make()) as harness:
            settle(harness, "slow")
            GATE.set()
            check_unknown(harness)
        GATE.clear()


def test_the_timeout_of_a_tool_of_pydantic_ai_is_no_reason_to_try_again() -> None:
    tools = [ModelTool(pay_async, name="pay", timeout=0.2)]
    with harness_of(whole(tools=tools)) as harness:
        settle(harness, "slow")
        check_unknown(harness)


# -- after the error ----------------------------------------------------------------------


class Strict(Shop):
    """Fails, so that the job restarts."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input, tools=["pay"])).output)


def test_a_restart_does_not_make_the_call_again() -> None:
    with harness_of(chatting(Tool(pay_async, "pay"), 0.2, Strict)) as harness:
        snapshot = harness.snapshot()
        for _ in range(3):
            with pytest.raises(ActionFailedError) as caught:
                harness.push("slow")
            assert isinstance(caught.value.__cause__, ToolOutcomeUnknownError)
            harness.restore(snapshot)
    assert PAID == ["pay"]


def test_the_model_is_not_told_even_if_it_is_told_of_errors() -> None:
    with harness_of(chatting(Tool(pay_async, "pay"), 0.2, on_tool_error="tell-model")) as harness:
        settle(harness, "slow")
        check_unknown(harness)


# -- a person decides ---------------------------------------------------------------------


async def pay_by_key(how: str, idempotency_key: str) -> str:
    """Pay."""
    effect("pay", idempotency_key)
    if how == "slow" and len(PAID) == 1:
        await asyncio.Event().wait()
    return "paid"


def asking_harness() -> OperatorHarness:
    tool = Tool(pay_by_key, "pay", idempotent=False)
    harness = harness_of(chatting(tool, 0.2, on_unknown_outcome="ask"))
    settle_asked(harness)
    return harness


def settle_asked(harness: OperatorHarness) -> None:
    harness.push("slow")
    while not harness.approvals:
        harness.advance_time(100)


def test_a_person_lets_the_call_be_made_again_with_its_key() -> None:
    with asking_harness() as harness:
        [request] = harness.approvals
        assert request.what == "repeat tool pay"
        assert request.arguments == {"call": {"how": "slow"}, "reason": "it took longer than 0.2 seconds"}
        assert harness.approve(request) == ["paid"]
    assert len(PAID) == 2
    assert len(set(PAID)) == 1


def test_a_person_lets_the_conversation_go_on_without_the_call() -> None:
    with asking_harness() as harness:
        [answer] = harness.deny(harness.approvals[0], "it was paid")
    assert "do not call the tool again for this. it was paid" in answer
    assert len(PAID) == 1


# -- idempotent tools ---------------------------------------------------------------------


def test_an_idempotent_tool_is_called_again_with_its_key() -> None:
    with harness_of(chatting(Tool(pay_by_key, "pay"), 0.2)) as harness:
        settle(harness, "slow")
        assert harness.outputs == ["paid"]
    assert len(PAID) == 2
    assert len(set(PAID)) == 1
    assert len(PAID[0]) == len("pay ") + 32


def test_no_model_is_told_of_the_key() -> None:
    assert list(Tool(pay_by_key).parameters["properties"]) == ["how"]


KEYED: dict[str, Callable[[], Agent]] = {
    "chat": lambda: chatting(Tool(pay_by_key, "pay")),
    "whole": lambda: whole(tools=[ModelTool(pay_by_key, name="pay")]),
}


@each_case("kind", KEYED)
def test_a_call_keeps_its_key_when_the_worker_dies(kind: str) -> None:
    PAID.clear()
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, 1))
    with harness_of(KEYED[kind](), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("well")
        harness.restore(snapshot)
        assert harness.push("well") == ["paid"]
        assert harness.push("well") == ["paid"]
    assert [PAID.count(key) for key in dict.fromkeys(PAID)] == [2, 1]


@each_case("of_whole", [False, True])
def test_a_tool_that_must_not_be_repeated_is_not_called_again_after_a_crash(of_whole: bool) -> None:
    PAID.clear()
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED, 1))
    strict = Tool(pay_async, "pay", idempotent=False)
    of_library = ModelTool(pay_async, name="pay", metadata={"flink": {"idempotent": False}})
    agent = whole(tools=[of_library]) if of_whole else chatting(strict)
    with harness_of(agent, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("well")
        harness.restore(snapshot)
        harness.push("well")
        check_unknown(harness)
        assert "the worker died during the call" in harness.dead_letters[0].traceback


# -- skills -------------------------------------------------------------------------------

SCRIPT = """#!/bin/sh
echo pay >> "$PAID"
[ "$1" = slow ] && sleep 60
echo paid
"""


def till(folder: Path, **options: Any) -> Skills:
    """Skills with a script that pays."""
    (folder / "till" / "scripts").mkdir(parents=True)
    (folder / "till" / "SKILL.md").write_text("---\nname: till\ndescription: Pays.\n---\nRun the script.")
    (folder / "till" / "scripts" / "pay.sh").write_text(SCRIPT)
    return Skills(str(folder), timeout=1, environment={"PAID": str(folder / "paid")}, **options)


@pytest.mark.parametrize("kind", ["chat", "whole"])
def test_a_script_that_takes_too_long(tmp_path: Path, kind: str) -> None:
    skills = till(tmp_path)
    agent = chatting(skills, kind="skills") if kind == "chat" else whole(toolsets=[skills_toolset(skills)])
    with harness_of(agent) as harness:
        settle(harness, "slow")
        PAID.extend((tmp_path / "paid").read_text().split())
        check_unknown(harness)


def test_a_script_that_may_be_run_again_is_told_to_the_model(tmp_path: Path) -> None:
    with harness_of(chatting(till(tmp_path, idempotent=["till/*"]), kind="skills")) as harness:
        assert "it took longer than 1 seconds" in harness.push("slow")[0]


# -- keys under crashes -------------------------------------------------------------------


def two_calls(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the only tool twice at once."""
    if len(messages) > 1:
        return ModelResponse([TextPart("done")])
    name = info.function_tools[0].name
    return ModelResponse([ToolCallPart(name, {"how": argument}) for argument in ("first", "second")])


def return_key(how: str, idempotency_key: str) -> str:
    """Pay."""
    return idempotency_key


class Both(Agent):
    """Runs a whole agent that calls a tool with a key twice at once."""

    def __init__(self) -> None:
        self.agent = ModelAgent(
            FunctionModel(two_calls),
            name="worker",
            tools=[ModelTool(return_key, name="pay")],
            capabilities=[FlinkDurability()],
        )

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await self.agent.run(event.input)
        contents = [vars(part).get("content") for part in result.all_messages()[2].parts]
        return OutputEvent(output=contents)


def test_calls_at_once_have_keys_of_their_own_which_survive_a_crash_anywhere() -> None:
    with OperatorHarness(
        Both(), crash="everywhere", forced_replay=False, forced_serialization=False
    ) as harness:
        [keys] = harness.push("go")
    assert len(set(keys)) == 2
    assert {len(key) for key in keys} == {32}
