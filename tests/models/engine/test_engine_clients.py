"""Connections of whole agents: attempts share them, and they end with the last attempt that used them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mcp_agents import wait_until
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply

Serve = Callable[..., ModelServer]
AGENTS: list[Any] = []
"""The agent of the module that a test stands for."""


class Whole(Agent):
    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await AGENTS[0].run(event.input)).output)


@pytest.fixture
def server(model_server: Serve) -> ModelServer:
    server = model_server(lambda request: Reply("good"))
    provider = OpenAIProvider(base_url=server.base_url, api_key="any")
    AGENTS[:] = [
        ModelAgent(OpenAIChatModel("any", provider=provider), name="asker", capabilities=[FlinkDurability()])
    ]
    return server


def attempt() -> OperatorHarness:
    return OperatorHarness(
        Whole(), crash=None, forced_replay=False, forced_restart=False, forced_serialization=False
    )


def test_they_end_with_the_attempt(server: ModelServer) -> None:
    for number in range(3):
        with attempt() as harness:
            assert harness.push_all(["one", "two"]) == ["good", "good"]
            assert server.connections == 1
        wait_until(lambda: server.connections == 0, f"attempt {number} closes its connection")
    assert server.count == 6


def test_an_attempt_that_ends_leaves_those_of_another_one_alone(server: ModelServer) -> None:
    with attempt() as first:
        first.push("one")
        with attempt() as second:
            second.push("two")
        assert first.push("three") == ["good"]
        assert server.connections == 1
    wait_until(lambda: server.connections == 0, "the last attempt closes the connection")
    assert server.count == 3
