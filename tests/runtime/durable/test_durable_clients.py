"""Clients of the agent inside durable functions: opened for an attempt, given by name, in no record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from flink_agents import (
    NOT_DONE,
    Agent,
    DurableCallable,
    Event,
    InputEvent,
    OutputEvent,
    RetryPolicy,
    action,
    client,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import ActionFailedError, AgentConfigurationError, StoreError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

LOG: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    LOG.clear()
    yield
    LOG.clear()


class Session:
    """A client that no record could hold."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def get(self, path: str) -> str:
        LOG.append(f"get {path}")
        return f"200 {path}"

    def read(self, path: str) -> str:
        with self.lock:
            LOG.append(f"read {path}")
            return f"200 {path}"


class WithClients(Agent):
    """Has a client."""

    @client
    async def http(self) -> AsyncIterator[Session]:
        LOG.append("open")
        yield Session()
        LOG.append("close")


async def fetch(path: str, http: Session) -> str:
    return await http.get(path)


async def fetch_first(http: Session, path: str, suffix: str = "") -> str:
    return await http.get(path + suffix)


def read(http: Session, path: str, *more: str, idempotency_key: str = "") -> str:
    return http.read("".join((path, *more, str(len(idempotency_key)))))


LAST, FIRST, READ = (DurableCallable(function, client="http") for function in (fetch, fetch_first, read))


class Awaiting(WithClients):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        results = await ctx.gather(
            ctx.durable_execute_async(LAST, event.input),
            ctx.durable_execute_async(FIRST, event.input, suffix="?"),
            ctx.durable_execute_async(FIRST, path=event.input),
            ctx.durable_execute_async(READ, event.input, "+", "-"),
        )
        return OutputEvent(output=results)


class Blocking(WithClients):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=[ctx.durable_execute(READ, event.input), ctx.durable_execute(LAST, "/b")])


def test_client_reaches_the_function_wherever_its_parameter_stands() -> None:
    with OperatorHarness(Awaiting) as harness:
        assert harness.push("/a") == [["200 /a", "200 /a?", "200 /a", "200 /a+-32"]]


def test_def_action_uses_a_client_by_a_durable_function() -> None:
    with OperatorHarness(Blocking) as harness:
        assert harness.push("/a") == [["200 /a32", "200 /b"]]


@pytest.mark.executes_once
def test_client_is_opened_once_for_all_calls_and_closed_with_the_attempt() -> None:
    with OperatorHarness(Blocking) as harness:
        harness.push_all(["/a", "/b"])
        assert LOG.count("open") == 1
    assert LOG[-1] == "close"


@pytest.mark.executes_once
def test_replay_neither_opens_the_client_nor_calls() -> None:
    with OperatorHarness(Blocking) as harness:
        snapshot = harness.snapshot()
        first = harness.push("/a")
        harness.restore(snapshot)
        LOG.clear()
        assert harness.push("/a") == first
    assert LOG == []


@pytest.mark.executes_once
def test_client_that_does_not_open_fails_the_attempt_and_the_next_one_opens_it() -> None:
    class Flaky(WithClients):
        failures = 2

        @client
        async def http(self) -> AsyncIterator[Session]:
            LOG.append("open")
            if LOG.count("open") <= self.failures:
                raise ConnectionError("refused")
            yield Session()

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            retry = RetryPolicy(initial_interval=0.001, max_attempts=3)
            return OutputEvent(output=await ctx.durable_execute_async(LAST, event.input, retry=retry))

    with OperatorHarness(Flaky, forced_serialization=False) as harness:
        assert harness.push("/a") == ["200 /a"]
    assert LOG == ["open", "open", "open", "get /a"]


def test_time_of_an_attempt_bounds_the_opening() -> None:
    class Hanging(WithClients):
        @client
        async def http(self) -> AsyncIterator[Session]:
            await asyncio.Event().wait()
            yield Session()

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=await ctx.durable_execute_async(LAST, event.input, timeout=0.01))

    with OperatorHarness(Hanging) as harness, pytest.raises(ActionFailedError, match="fetch"):
        harness.push("/a")


@pytest.mark.executes_once
def test_reconciler_gets_the_client_too() -> None:
    async def look_up(path: str, http: Session) -> Any:
        LOG.append(f"look {path}")
        return NOT_DONE if path == "/none" else await http.get(f"{path} again")

    class Asking(WithClients):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            got = await ctx.durable_execute_async(LAST, event.input, reconciler=look_up)
            return OutputEvent(output=got)

    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
    with OperatorHarness(Asking, store=faults.store, forced_serialization=False) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("/a")
        harness.restore(snapshot)
        assert harness.push("/a") == ["200 /a again"]
    assert [line for line in LOG if line not in ("open", "close")] == ["get /a", "look /a", "get /a again"]


def test_request_tells_the_arguments_without_the_client() -> None:
    from flink_agents.runtime.execution.calls.arguments import request_text

    assert request_text(FIRST, ("/a", "?"), {}) == "path='/a', suffix='?'"


def test_function_without_a_parameter_for_the_client_is_refused() -> None:
    with pytest.raises(AgentConfigurationError, match="no parameter for the client 'db'") as caught:
        DurableCallable(fetch, client=("http", "db"))
    assert "'db'" in str(caught.value.fix)


def test_client_that_the_agent_has_not_is_named() -> None:
    class Without(Agent):
        @client
        async def https(self) -> AsyncIterator[Session]:
            yield Session()

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=await ctx.durable_execute_async(LAST, event.input))

    with pytest.raises(ActionFailedError, match="no client 'http'") as caught:
        OperatorHarness(Without).push("/a")
    assert "did you mean 'https'?" in str(caught.value)


def test_client_that_the_author_gives_as_an_argument_is_refused() -> None:
    class Twice(WithClients):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            http = await ctx.client("http")
            return OutputEvent(output=await ctx.durable_execute_async(LAST, event.input, http=http))

    with pytest.raises(ActionFailedError, match="has the argument 'http', which is a client"):
        OperatorHarness(Twice).push("/a")
