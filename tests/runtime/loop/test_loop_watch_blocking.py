"""Code that blocks the agent loop is reported while it does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from core_agents import Step
from watch_tools import BLOCKED, Reports, WithClient, harness_of, harness_with, until

from flink_agents import Agent, InputEvent, action, client

pytestmark = pytest.mark.executes_once


class Gate:
    """What a test lets go of when it has seen the report."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def wait(self) -> None:
        assert self.open.wait(30)

    def compute(self) -> None:
        end = time.monotonic() + 30
        while not self.open.is_set() and time.monotonic() < end:
            sum(range(1000))


GATE = Gate()


@pytest.fixture(autouse=True)
def new_gate() -> Iterator[None]:
    GATE.open = threading.Event()
    yield
    GATE.open.set()


@contextmanager
def blocked(agent: Any, reports: Reports, config: dict[str, Any] | None = None) -> Iterator[str]:
    """The report on what the agent does with one input, which blocks still."""
    with harness_with(agent, config or BLOCKED) as harness:
        harness.push("k")
        (text,) = reports(1)
        assert not GATE.open.is_set()
        assert harness.run_metrics["loop_blocked"] == 1
        assert harness.run_metrics["loop_lag_ms"] >= 20
        yield text
        GATE.open.set()
        (end,) = reports(1, logging.INFO)
        assert ": the agent loop turns again, after " in end
        harness.run_until_idle()
        assert reports(1) == [text]


def agent_of(act: Any, **options: Any) -> Agent:
    return Agent(name="watched").add_action("act", [InputEvent], act, **options)


async def waits(event: InputEvent, ctx: Any) -> None:
    GATE.wait()


async def computes(event: InputEvent, ctx: Any) -> None:
    GATE.compute()


async def waits_later(event: InputEvent, ctx: Any) -> None:
    await asyncio.sleep(0)
    GATE.wait()


async def waits_in_a_task(event: InputEvent, ctx: Any) -> None:
    async def inner() -> None:
        GATE.wait()

    await asyncio.create_task(inner())


async def waits_in_a_callback(event: InputEvent, ctx: Any) -> None:
    asyncio.get_running_loop().call_soon(GATE.wait)
    await asyncio.sleep(0)


@pytest.mark.parametrize("timeout", [None, 3600])
@pytest.mark.parametrize(
    ("act", "name"),
    [
        (waits, "wait"),
        (computes, "compute"),
        (waits_later, "wait"),
        (waits_in_a_task, "wait"),
        (waits_in_a_callback, "wait"),
    ],
)
def test_code_that_blocks_is_named_while_it_does(
    act: Any, name: str, timeout: float | None, reports: Reports
) -> None:
    with blocked(agent_of(act, timeout=timeout), reports) as text:
        first = text.splitlines()[0]
        last = text.splitlines()[-1]
        assert (
            first.startswith("tests/runtime/loop/test_loop_watch_blocking.py:")
            and f" in Gate.{name}: " in first
        )
        assert "action act of agent watched, key 'k', sequence 0, event '_input_event'" in first
        assert ", blocks the agent loop, which has not turned for " in first
        assert f", in {name}\n" in text
        assert act is waits_in_a_callback or f", in {act.__name__}\n" in text or ", in inner\n" in text
        assert last.startswith("  fix: await what waits; ") and "blocking=True" in last
        assert "flink_agents/runtime" not in text


def test_condition_that_blocks_is_named(reports: Reports) -> None:
    def accept(event: Step) -> bool:
        GATE.wait()
        return False

    class Conditional(Agent):
        on_unhandled = "ignore"

        @action(InputEvent)
        async def begin(self, event: InputEvent, ctx: Any) -> Step:
            return Step(number=1)

        @action(Step, when=accept)
        async def go_on(self, event: Step, ctx: Any) -> None:
            pass

    with blocked(Conditional, reports) as text:
        assert "action go_on of agent Conditional, key 'k', sequence 0, event " in text
        assert ", in accept\n" in text


def test_client_that_blocks_is_named(reports: Reports) -> None:
    class Blocking(WithClient):
        async def open(self) -> None:
            GATE.wait()

    with blocked(Blocking, reports) as text:
        assert ": client 'slow' of agent Blocking, blocks the agent loop" in text


def test_client_that_blocks_at_its_end_is_named(reports: Reports) -> None:
    class Blocking(Agent):
        @client
        async def held(self) -> AsyncIterator[int]:
            yield 1
            GATE.wait()

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            await ctx.client("held")

    with harness_with(Blocking, BLOCKED) as harness:
        harness.push("k")
        harness.run_until_idle()
        opener = threading.Thread(target=lambda: (reports(1), GATE.open.set()))
        opener.start()
    opener.join()
    (text,) = reports(1)
    assert ": client 'held' of agent Blocking, blocks the agent loop" in text


def test_each_time_is_reported_once(reports: Reports) -> None:
    with harness_of(waits, BLOCKED) as harness:
        for number in (1, 2):
            GATE.open.clear()
            harness.push(number)
            texts = reports(number)
            GATE.open.set()
            reports(number, logging.INFO)
            assert len(texts) == number
        assert harness.run_metrics["loop_blocked"] == 2
    assert ["key 1" in texts[0], "key 2" in texts[1]] == [True, True]


def test_many_that_keep_the_loop_busy(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    count = 200
    arrived: list[int] = []
    start = asyncio.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        arrived.append(event.input)
        if len(arrived) == count:
            start.set()
        await start.wait()
        if not caplog.records:
            time.sleep(0.01)

    with harness_of(act, {"run.stuck-after": "0 s", "loop.blocked-after": "100 ms"}) as harness:
        harness.push_all(range(count))
        (text,) = reports(1)
        harness.run_until_idle()
    assert ", is one of many that keep the agent loop busy, which has not turned for " in text


def test_loop_that_turns_is_not_reported(reports: Reports) -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        while not GATE.open.is_set():
            await asyncio.sleep(0)

    with harness_of(act, {"run.stuck-after": "20 ms"}) as harness:
        harness.push("k")
        # Both have looked by then.
        reports(1)
        until(lambda: harness.run_metrics["loop_lag_ms"])
        GATE.open.set()
        harness.run_until_idle()
        assert harness.run_metrics["loop_blocked"] == 0
        assert harness.run_metrics["runs_stuck"] == 1
