"""Code that swallows the suspension of its run in a loop around a wait fails, and other keys continue."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes import clock
from tests.suite.factors import factors

Make = Callable[..., OperatorHarness]
Wait = Callable[[Any], Any]

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {
    "crash": None,
    "forced_replay": False,
    "forced_restart": False,
}


async def sleeps(ctx: Any) -> Any:
    await ctx.sleep(60)


async def waits_for_signal(ctx: Any) -> Any:
    return await ctx.wait_for_signal("go")


async def requests_approval(ctx: Any) -> Any:
    return await ctx.request_approval("pay")


async def gathers(ctx: Any) -> Any:
    return await ctx.gather(ctx.sleep(60), ctx.wait_for_signal("go"))


async def reads_and_waits(ctx: Any) -> Any:
    ctx.short_term_memory.get("seen", 0)
    await ctx.sleep(60)


async def calls_and_waits(ctx: Any) -> Any:
    await ctx.durable_execute_async(str, 1)
    await ctx.sleep(60)


WAITS: list[Wait] = [sleeps, waits_for_signal, requests_approval, gathers, reads_and_waits, calls_and_waits]


async def passes(wait: Wait, ctx: Any) -> None:
    while True:
        try:
            await wait(ctx)
            return
        except:  # noqa: E722
            pass


async def continues(wait: Wait, ctx: Any) -> None:
    while True:
        try:
            await wait(ctx)
            return
        except BaseException:
            continue


async def suppresses(wait: Wait, ctx: Any) -> None:
    while True:
        with contextlib.suppress(BaseException):
            await wait(ctx)
            return


async def finally_continues(wait: Wait, ctx: Any) -> None:
    while True:
        try:
            await wait(ctx)
        finally:
            continue  # noqa: B012


async def pauses(wait: Wait, ctx: Any) -> None:
    while True:
        try:
            await wait(ctx)
            return
        except BaseException:
            await asyncio.sleep(0.001)


async def helps(wait: Wait, ctx: Any) -> None:
    async def once() -> bool:
        try:
            await wait(ctx)
        except BaseException:
            return False
        return True

    while not await once():
        pass


async def in_task(wait: Wait, ctx: Any) -> None:
    await asyncio.gather(asyncio.ensure_future(passes(wait, ctx)), ctx.sleep(120))


async def forever_ten_times(wait: Wait, ctx: Any) -> None:
    for _ in range(10):
        try:
            await wait(ctx)
            return
        except BaseException:
            pass


LOOPS = [passes, continues, suppresses, finally_continues, helps, in_task, forever_ten_times]


def looping(loop: Any, wait: Wait, on_suspend: str = "block", **options: Any) -> Agent:
    async def work(event: Any, ctx: Any) -> OutputEvent:
        if event.input == "loop":
            await loop(wait, ctx)
        return OutputEvent(output=event.input)

    agent = Agent(name="loops")
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    agent.add_action("work", [InputEvent], work, **options)
    return agent


def swallowing(loop: Any, wait: Wait, on_suspend: str, sub_agent: bool) -> Agent:
    """Return an agent whose code, or that of its sub-agent, swallows its suspension."""
    if not sub_agent:
        return looping(loop, wait, on_suspend, on_error="dead-letter")
    inner = looping(loop, wait, on_error="ignore")

    async def call(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(inner, event.input))

    agent = Agent(name="calls")
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    agent.add_action("work", [InputEvent], call, on_error="dead-letter")
    return agent


@factors(loop=LOOPS, wait=WAITS, on_suspend=["block", "interleave"], sub_agent=[False, True])
def test_the_action_fails_and_other_keys_continue(
    agent_harness: Make, loop: Any, wait: Wait, on_suspend: str, sub_agent: bool
) -> None:
    agent = swallowing(loop, wait, on_suspend, sub_agent)
    harness = agent_harness(agent, key_selector=lambda record: record, **PLAIN)
    harness.push_all(["a", "loop", "b"])
    assert harness.outputs == ["a", "b"]
    [letter] = harness.dead_letters
    assert letter.error_type == "ContextMisuseError"
    assert "swallowed the suspension" in letter.error_message and letter.record == "loop"
    assert __name__.rpartition(".")[2] in letter.where
    assert harness.waits("loop") == [] and harness.approvals == []
    assert harness.push("loop") == [] and len(harness.dead_letters) == 2


def test_the_job_fails_by_default(agent_harness: Make) -> None:
    harness = agent_harness(looping(passes, sleeps), **PLAIN)
    with pytest.raises(ActionFailedError, match="swallowed the suspension"):
        harness.push("loop")


def test_a_suspension_that_is_swallowed_once_is_one(agent_harness: Make) -> None:
    async def once(wait: Wait, ctx: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await wait(ctx)
        await wait(ctx)

    harness = agent_harness(looping(once, waits_for_signal), **PLAIN)
    harness.push("loop")
    harness.signal(0, "go")
    assert harness.signal(0, "go") == ["loop"]


@factors(loop=[pauses], wait=WAITS, on_suspend=["block", "interleave"])
def test_code_that_lets_the_second_cancellation_pass_is_suspended(
    agent_harness: Make, loop: Any, wait: Wait, on_suspend: str
) -> None:
    harness = agent_harness(looping(loop, wait, on_suspend), key_selector=lambda record: record, **PLAIN)
    harness.push_all(["a", "loop", "b"])
    assert harness.outputs == ["a", "b"]
    assert harness.waits("loop")


async def spins_on_a_task(wait: Wait, ctx: Any) -> None:
    task = asyncio.ensure_future(wait(ctx))
    while True:
        try:
            await task
            return
        except BaseException:
            pass


@pytest.mark.parametrize("sub_agent", [False, True])
def test_the_watchdog_ends_code_that_blocks_the_loop(agent_harness: Make, sub_agent: bool) -> None:
    agent = swallowing(spins_on_a_task, sleeps, "block", sub_agent)
    config = {"loop.blocked-after": "50 ms"}
    harness = agent_harness(agent, key_selector=lambda record: record, config=config, **PLAIN)
    harness.push_all(["a", "loop", "b"])
    assert harness.outputs == ["a", "b"]
    assert ["swallowed the suspension" in letter.error_message for letter in harness.dead_letters] == [True]


async def waits_on_a_task(wait: Wait, ctx: Any) -> None:
    task = asyncio.ensure_future(wait(ctx))
    while True:
        try:
            await task
            return
        except BaseException:
            await asyncio.sleep(0.001)


async def waits_for_nothing(wait: Wait, ctx: Any) -> None:
    try:
        await wait(ctx)
    except BaseException:
        await asyncio.Event().wait()


async def is_reported_before(wait: Wait, ctx: Any) -> None:
    await ctx.durable_execute_async(time.sleep, 0.2)
    await waits_for_nothing(wait, ctx)


@pytest.mark.parametrize("sub_agent", [False, True])
@pytest.mark.parametrize("loop", [waits_on_a_task, waits_for_nothing, is_reported_before])
def test_the_watchdog_ends_code_that_awaits_something_else(
    agent_harness: Make, loop: Any, sub_agent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The harness leaves it to the watchdog, however soon it finds a hang.
    monkeypatch.setattr(clock, "HANG_LOOKS", 1)
    agent = swallowing(loop, sleeps, "block", sub_agent)
    config = {"run.stuck-after": "50 ms"}
    harness = agent_harness(agent, key_selector=lambda record: record, config=config, **PLAIN)
    harness.push_all(["a", "loop", "b"])
    assert harness.outputs == ["a", "b"]
    assert ["swallowed the suspension" in letter.error_message for letter in harness.dead_letters] == [True]


def test_a_trace_function_of_the_loop_is_restored(agent_harness: Make) -> None:
    seen: list[Any] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        return None

    async def work(event: Any, ctx: Any) -> None:
        if event.input == "set":
            sys.settrace(trace)
        elif event.input == "loop":
            await passes(sleeps, ctx)
        else:
            seen.append((threading.current_thread().name, sys.gettrace() is trace))
            sys.settrace(None)

    agent = Agent(name="traces")
    agent.on_error = "dead-letter"  # type: ignore[assignment]
    agent.add_action("work", [InputEvent], work)
    harness = agent_harness(agent, forced_serialization=False, **PLAIN)
    harness.push_all(["set", "loop", "get"])
    assert seen == [("agent-loop", True)]
