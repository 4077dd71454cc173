"""Clients of a subtask: opened once at first use, closed with the attempt, by the task that opened."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, ResourceType, RetryPolicy, action, client
from flink_agents.api.errors import (
    ActionFailedError,
    ActionSignatureError,
    ContextMisuseError,
    ResourceNotFoundError,
    ResourceUnavailableError,
)
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent
from flink_agents.runtime.execution import environment
from flink_agents.testing import OperatorHarness

LOG: list[str] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    LOG.clear()


class Connection:
    """A client that knows who opened it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.task = asyncio.current_task()

    async def __aenter__(self) -> Connection:
        LOG.append(f"open {self.name}")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closed = True
        same = "same task" if asyncio.current_task() is self.task else "another task"
        LOG.append(f"close {self.name} in the {same}")


class Pool:
    """A client that is opened without waiting."""

    def __enter__(self) -> Pool:
        LOG.append("open pool")
        return self

    def __exit__(self, *exception: object) -> None:
        LOG.append("close pool")


async def use(ctx: Any, name: str) -> Event:
    first = await ctx.client(name)
    second = await ctx.client(name)
    return OutputEvent(output=(first is second, getattr(first, "closed", None)))


class Every(Agent):
    """A client in each form, all used by each input."""

    @client
    async def generated(self) -> AsyncIterator[Connection]:
        async with Connection("generated") as connection:
            yield connection

    @client(name="plain")
    def plain_generated(self) -> Iterator[Pool]:
        with Pool() as pool:
            yield pool

    @client
    @staticmethod
    def managed() -> AbstractAsyncContextManager[Connection]:
        return Connection("managed")

    @client
    @asynccontextmanager
    async def decorated(self) -> AsyncIterator[Connection]:
        async with Connection("decorated") as connection:
            yield connection

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> list[Event]:
        return [await use(ctx, name) for name in event.input]


NAMES = ["generated", "plain", "managed", "decorated"]


@pytest.mark.executes_once
def test_each_form_is_opened_once_and_closed_by_the_task_that_opened_it() -> None:
    with OperatorHarness(Every) as harness:
        outputs = harness.push_all([NAMES, NAMES])
        assert [same for same, _ in outputs] == [True] * 8
        assert LOG == ["open generated", "open pool", "open managed", "open decorated"]
    assert sorted(LOG[4:]) == [
        "close decorated in the same task",
        "close generated in the same task",
        "close managed in the same task",
        "close pool",
    ]


@pytest.mark.executes_once
def test_what_nobody_uses_is_not_opened() -> None:
    with OperatorHarness(Every) as harness:
        harness.push(["plain"])
    assert LOG == ["open pool", "close pool"]


def test_plan_names_clients() -> None:
    plan = AgentPlan.from_json(compile_agent(Every).to_json())
    assert [(resource.name, resource.type.value) for resource in plan.resources] == [
        (name, "client") for name in NAMES
    ]
    assert LoadedAgent(plan).clients.keys() == set(NAMES)


def test_client_of_a_builder() -> None:
    @asynccontextmanager
    async def connect() -> AsyncIterator[str]:
        yield "connection"

    async def act(event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=await ctx.client("c"))

    agent = Agent(name="a").add_action("act", [InputEvent], act)
    agent.add_resource("c", ResourceType.CLIENT, connect)
    with OperatorHarness(agent) as harness:
        assert harness.push(1) == ["connection"]


@pytest.mark.executes_once
def test_keys_that_ask_together_get_one_client() -> None:
    class Slow(Agent):
        @client
        async def connection(self) -> AsyncIterator[Connection]:
            for _ in range(10):
                await asyncio.sleep(0)
            async with Connection("c") as connection:
                yield connection

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            await ctx.client("connection")
            return OutputEvent(output=event.input)

    with OperatorHarness(Slow, lambda record: record, forced_serialization=False, auto_run=False) as harness:
        harness.push_all(range(20))
        harness.run_until_idle()
        assert sorted(harness.outputs) == list(range(20))
    assert LOG == ["open c", "close c in the same task"]


@pytest.mark.executes_once
def test_client_outlives_the_action_that_asked_first() -> None:
    class Impatient(Agent):
        opening: list[int] = []

        @client
        async def connection(self) -> AsyncIterator[str]:
            LOG.append("open")
            while len(self.opening) < 3:
                await asyncio.sleep(0.001)
            yield "connection"

        @action(InputEvent, timeout=0.01, retry=RetryPolicy(initial_interval=0, max_attempts=None))
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            self.opening.append(1)
            return OutputEvent(output=await ctx.client("connection"))

    with OperatorHarness(Impatient, forced_serialization=False) as harness:
        assert harness.push(1) == ["connection"]
    assert LOG == ["open"]


@pytest.mark.executes_once
def test_client_that_does_not_open_fails_the_action_and_is_tried_again() -> None:
    class Fails(Agent):
        tries = 0

        @client
        async def connection(self) -> AsyncIterator[str]:
            self.tries += 1
            if self.tries < 3:
                raise OSError("refused")
            yield "connection"

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=await ctx.client("connection"))

    with OperatorHarness(Fails, config={"actions.on-error": "dead-letter"}) as harness:
        assert harness.push_all([1, 2, 3]) == ["connection"]
        first, _ = harness.dead_letters
        assert (first.error_type, first.error_message) == ("OSError", "refused")
        assert first.where.endswith("connection")


@pytest.mark.executes_once
def test_client_is_opened_anew_in_the_next_attempt_of_the_job() -> None:
    with OperatorHarness(Every) as harness:
        snapshot = harness.snapshot()
        harness.push(["plain"])
        harness.restore(snapshot)
        harness.push(["plain"])
    assert LOG == ["open pool", "close pool"] * 2


@pytest.mark.executes_once
def test_actions_have_ended_when_clients_close() -> None:
    class Waits(Every):
        async def act(self, event: InputEvent, ctx: Any) -> Event:  # type: ignore[override]
            connection = await ctx.client("managed")
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                LOG.append(f"action ends, closed: {connection.closed}")
            return OutputEvent(output=0)

    started = threading.Event()
    harness = OperatorHarness(Waits, forced_serialization=False, auto_run=False)
    harness.push(1)
    assert started.wait(30)
    harness.close()
    assert LOG == ["open managed", "action ends, closed: False", "close managed in the same task"]


# -- closing that goes wrong ---------------------------------------------------------


class Rude(Every):
    """Beside a good client, one that raises and one that never ends at close."""

    @client
    async def raises(self) -> AsyncIterator[str]:
        yield "raises"
        raise OSError("cannot close")

    @client
    async def hangs(self) -> AsyncIterator[str]:
        yield "hangs"
        await asyncio.Event().wait()


@pytest.mark.executes_once
def test_client_that_raises_at_close_is_logged_and_ends_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="flink_agents"):
        with OperatorHarness(Rude) as harness:
            harness.push(["raises", "managed"])
    (record,) = caplog.records
    assert record.getMessage().startswith("the client raises raised when it was closed")
    assert "cannot close" in caplog.text
    assert LOG[-1] == "close managed in the same task"


def test_client_that_does_not_end_is_left_in_bounded_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CLIENT_CLOSE_SECONDS", 0.01)
    previous_threads = set(threading.enumerate())
    with caplog.at_level(logging.WARNING, logger="flink_agents"):
        with OperatorHarness(Rude) as harness:
            harness.push(["hangs", "managed"])
    assert "the client hangs did not close within 0.01 s" in caplog.text
    assert LOG[-1] == "close managed in the same task"
    assert not [
        thread for thread in set(threading.enumerate()) - previous_threads if thread.name == "agent-loop"
    ]


@pytest.mark.executes_once
def test_client_that_is_still_opening_is_cancelled() -> None:
    started = threading.Event()

    class Opening(Agent):
        @client
        async def connection(self) -> AsyncIterator[str]:
            started.set()
            try:
                await asyncio.Event().wait()
                yield "never"
            finally:
                LOG.append("given up")

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            await ctx.client("connection")

    harness = OperatorHarness(Opening, forced_serialization=False, auto_run=False)
    harness.push(1)
    assert started.wait(30)
    harness.close()
    assert LOG == ["given up"]


# -- misuse --------------------------------------------------------------------------


def cause_of(agent: Agent, record: Any = None) -> BaseException | None:
    with OperatorHarness(agent, forced_serialization=False) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push(record)
    return caught.value.__cause__


@pytest.mark.parametrize("blocking", [False, True])
def test_def_action_cannot_have_a_client(blocking: bool) -> None:
    agent = Every().add_action(
        "sync", [InputEvent], lambda event, ctx: ctx.client("plain"), blocking=blocking
    )
    assert isinstance(cause_of(agent, []), ContextMisuseError)


def test_unknown_client() -> None:
    error = cause_of(Every(), ["manged"])
    assert isinstance(error, ResourceNotFoundError)
    assert error.fix == "did you mean 'managed'?"


def test_get_resource_leads_to_client() -> None:
    async def act(event: InputEvent, ctx: Any) -> None:
        ctx.get_resource("plain", "client")

    error = cause_of(Every().add_action("get", [InputEvent], act), [])
    assert isinstance(error, ResourceUnavailableError)
    assert error.fix == "call ctx.client"


def test_function_that_opens_nothing() -> None:
    class Wrong(Every):
        @client
        def nothing(self) -> int:
            return 5

    error = cause_of(Wrong(), ["nothing"])
    assert isinstance(error, ResourceUnavailableError)
    assert "found: int" in str(error)


async def coroutine() -> None: ...


@pytest.mark.parametrize("function", [5, coroutine, lambda name: name])
def test_client_that_cannot_be_opened_is_refused(function: Any) -> None:
    agent = Every()
    agent.add_resource("wrong", "client", function)
    with pytest.raises(ActionSignatureError, match="client"):
        compile_agent(agent)
