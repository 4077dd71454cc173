"""Groups of exceptions show what caused them, and objects of another event loop the way to a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    Event,
    InputEvent,
    OutputEvent,
    RetryPolicy,
    action,
    chat_model,
    tool,
)
from flink_agents.api.errors import ActionFailedError, MissingAwaitError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from flink_agents.trace.recording.attributes import call_facts
from tests.suite.tables import each_case

Group: Any = ExceptionGroup


async def fail(error: Exception) -> None:
    raise error


async def in_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail(ValueError("no such order")))
        group.create_task(fail(OSError("no route")))


async def in_nested_groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_group())


async def in_chain() -> None:
    try:
        await in_group()
    except Group as error:
        raise Group("orders", [error, KeyError("k")]) from error


async def in_large_group() -> None:
    raise Group("all", [ValueError(str(number)) for number in range(9)])


BOTH = "ValueError: no such order; OSError: no route"

RAISED: dict[Callable[[], Any], str] = {
    in_group: f"unhandled errors in a TaskGroup (2 sub-exceptions): {BOTH}",
    in_nested_groups: f"unhandled errors in a TaskGroup (1 sub-exception): {BOTH}",
    in_chain: f"orders (2 sub-exceptions): {BOTH}; KeyError: 'k'",
    in_large_group: "all (9 sub-exceptions): " + "; ".join(f"ValueError: {number}" for number in range(5)),
}


def agent_of(work: Callable[[], Any], durable: bool, on_error: str, retry: Any = None) -> Agent:
    class Failing(Agent):
        @action(InputEvent, on_error=on_error, retry=retry)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            await (ctx.durable_execute_async(work) if durable else work())

    return Failing()


@each_case(("work", "durable"), [(work, durable) for work in RAISED for durable in (True, False)])
def test_the_error_and_the_dead_letter_of_a_group_show_its_causes(
    work: Callable[[], Any], durable: bool
) -> None:
    with OperatorHarness(agent_of(work, durable, "fail")) as harness:
        with pytest.raises(ActionFailedError) as failure:
            harness.push(1)
        assert RAISED[work] in failure.value.message
        assert failure.value.where is not None
        assert "test_execution_groups.py" in failure.value.where
    with OperatorHarness(agent_of(work, durable, "dead-letter")) as harness:
        harness.push(1)
        (letter,) = harness.dead_letters
    assert letter.error_type == "ExceptionGroup"
    assert RAISED[work] in letter.error_message
    assert RAISED[work] in call_facts(failure.value.__cause__ or failure.value)["message"]


def test_logs_and_attempts_of_a_group_show_its_causes(caplog: pytest.LogCaptureFixture) -> None:
    retry = RetryPolicy(max_attempts=2, initial_interval=0.001, retry_on=(Exception,))
    with (
        caplog.at_level(logging.INFO),
        OperatorHarness(agent_of(in_group, False, "dead-letter", retry)) as harness,
    ):
        harness.push(1)
        (letter,) = harness.dead_letters
    assert [RAISED[in_group] in attempt.error_message for attempt in letter.attempts] == [True, True]
    messages = [record.getMessage() for record in caplog.records if "act" in record.getMessage()]
    assert len([message for message in messages if RAISED[in_group] in message]) >= 2


def test_a_group_has_the_fix_of_its_first_cause_that_has_one() -> None:
    async def work() -> None:
        missing = MissingAwaitError("a call was not awaited", fix="write await")
        raise Group("both", [OSError("no route"), Group("inner", [missing])])

    with (
        OperatorHarness(agent_of(work, False, "fail")) as harness,
        pytest.raises(ActionFailedError) as failure,
    ):
        harness.push(1)
    assert failure.value.fix == "write await"
    assert "OSError: no route; MissingAwaitError: a call was not awaited" in failure.value.message


MODEL = ScriptedModel([ToolCall("look_up", {}), "I could not look it up"])


class Asking(Agent):
    @chat_model
    def analyst(self) -> ChatModel:
        return ChatModel(clazz=f"{__name__}:MODEL", tools=["look_up"], on_tool_error="tell-model")

    @tool
    async def look_up(self) -> str:
        """Look up an order."""
        await in_nested_groups()
        return "never"

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=(await ctx.chat("analyst", "Where is it?")).output)


def test_a_model_gets_the_causes_of_a_group() -> None:
    with OperatorHarness(Asking(), crash=None, forced_replay=False) as harness:
        assert harness.push(1) == ["I could not look it up"]
    assert BOTH in str(MODEL.asked[-1])


# -- objects of another event loop ---------------------------------------------------------


class Globals(Agent):
    """Waits for an object that lives as long as the process."""

    gate: asyncio.Event

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        try:
            await asyncio.wait_for(GATES[event.input].wait(), 0.01)
        except TimeoutError:
            return OutputEvent(output="in time")
        raise AssertionError("the gate never opens")


GATES: dict[str, asyncio.Event] = {}


@pytest.mark.own_conditions
def test_a_global_that_belongs_to_another_loop_leads_to_a_client() -> None:
    GATES["orders"] = asyncio.Event()
    with OperatorHarness(Globals(), crash=None, forced_replay=False, forced_restart=False) as harness:
        snapshot = harness.snapshot()
        assert harness.push("orders") == ["in time"]
        harness.restore(snapshot)
        with pytest.raises(ActionFailedError, match="bound to a different event loop") as failure:
            harness.push("orders")
    assert failure.value.fix is not None
    assert "@client" in failure.value.fix


async def closed() -> None:
    raise RuntimeError("Event loop is closed")


async def wrapped() -> None:
    try:
        await closed()
    except RuntimeError as error:
        raise ConnectionError("connection error") from error


async def grouped() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wrapped())


async def foreign() -> None:
    raise RuntimeError("Task <Task pending> got Future <Future pending> attached to a different loop")


@each_case(("work", "durable"), [(work, no) for work in (closed, wrapped, grouped, foreign) for no in (0, 1)])
def test_errors_of_clients_on_another_loop_lead_to_a_client(work: Callable[[], Any], durable: int) -> None:
    agent = agent_of(work, bool(durable), "fail")
    with OperatorHarness(agent) as harness, pytest.raises(ActionFailedError) as failure:
        harness.push(1)
    assert failure.value.fix is not None
    assert "@client" in failure.value.fix
