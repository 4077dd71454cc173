"""Helpers for tests of the reports of a running agent loop: harnesses, waiting, options."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from flink_agents import Agent, InputEvent, action, client
from flink_agents.testing import OperatorHarness

STUCK = {"run.stuck-after": "5 ms", "loop.blocked-after": "0 s"}
BLOCKED = {"run.stuck-after": "0 s", "loop.blocked-after": "20 ms"}

Reports = Callable[..., list[str]]


def until(condition: Callable[[], Any]) -> None:
    """Wait until ``condition`` holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "agent-watch"}


def harness_of(act: Any, config: dict[str, Any], **options: Any) -> OperatorHarness:
    agent = Agent(name="watched").add_action("act", [InputEvent], act, **options)
    return harness_with(agent, config)


def harness_with(agent: Any, config: dict[str, Any]) -> OperatorHarness:
    return OperatorHarness(
        agent, lambda record: record, config=config, forced_serialization=False, auto_run=False
    )


class WithClient(Agent):
    """Has a client that opens as the test wants."""

    async def open(self) -> None:
        raise NotImplementedError

    @client
    async def slow(self) -> AsyncIterator[int]:
        await self.open()
        yield 1

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> None:
        await ctx.client("slow")
