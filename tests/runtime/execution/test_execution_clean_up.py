"""Clean-up of an action at the end of an attempt: nobody waits for what nothing can bring any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
from durable_tools import SEEN, crash, crash_and_replay, effect, effect_async, forget, one_action

from flink_agents import InputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once


class Outside:
    """What an action waits for that is no outcome."""

    awaited = threading.Event()
    answer: futures.Future[None] | None = None


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    forget()
    Outside.awaited.clear()
    Outside.answer = None
    yield


async def clean_up_by_a_call(event: InputEvent, ctx: Any) -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await ctx.durable_execute_async(effect, "clean-up")

    async def fails() -> None:
        await ctx.durable_execute_async(effect, "x")
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(fails())
    except* ValueError:
        SEEN.append("failed")


async def clean_up_by_a_timer(event: InputEvent, ctx: Any) -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.001)

    async def fails() -> None:
        await ctx.durable_execute_async(effect_async, "x")
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(fails())
            group.create_task(ctx.durable_execute_async(effect_async, "y"))
    except* ValueError:
        SEEN.append("failed")


@pytest.mark.parametrize("act", [clean_up_by_a_call, clean_up_by_a_timer])
def test_nobody_waits_for_a_clean_up_behind_a_call_that_cannot_be_recorded(
    act: Any, caplog: pytest.LogCaptureFixture
) -> None:
    second_refused = at_record(RecordKind.CALL, Fault.REFUSED, 1)
    crash_and_replay(one_action(act), 1, choose=second_refused).close()
    assert set(SEEN) == {"failed"}
    assert "did not end" not in caplog.text


async def clean_up_in_a_replay(event: InputEvent, ctx: Any) -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.001)
            SEEN.append("cleaned up")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(child())
        if Outside.answer is not None:
            Outside.awaited.set()
            await asyncio.wrap_future(Outside.answer)
        await ctx.durable_execute_async(effect_async, "x")
        task.cancel()


def test_nobody_waits_for_a_timer_in_a_replay_that_was_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(one_action(clean_up_in_a_replay), store=faults.store, auto_run=False) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push(1)
            harness.run_until_idle()
        SEEN.clear()
        Outside.answer = futures.Future()
        harness.restore(snapshot)
        harness.push(1)
        assert Outside.awaited.wait(10)
        harness.restore(snapshot)
        assert SEEN == ["cleaned up"]
        Outside.answer = None
        harness.push(1)
        harness.run_until_idle()
    assert SEEN == ["cleaned up"] * 2
    assert "did not end" not in caplog.text
