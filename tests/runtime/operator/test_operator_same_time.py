"""Delayed events, pauses and waits of a key that are due together: a crash changes nothing of their order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import SignalTimeoutError
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors


class Later(Event):
    name: str


class Diary(Agent):
    """Pauses, waits, and sends itself events; all of it writes one path of memory."""

    @action(InputEvent)
    async def begin(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent | None:
        kind, days = event.input
        if kind == "later":
            ctx.send_event(Later(name=f"later {days}"), delay=timedelta(days=days))
            return None
        if kind == "sleep":
            await ctx.sleep(timedelta(days=days))
        else:
            if kind == "both":
                ctx.send_event(Later(name=f"own later {days}"), delay=timedelta(days=days))
            try:
                await ctx.wait_for_signal("never", timeout=timedelta(days=days))
            except SignalTimeoutError:
                pass
        return self.write(f"{kind} {days}", ctx)

    @action(Later)
    def later(self, event: Later, ctx: RunnerContext) -> OutputEvent:
        return self.write(event.name, ctx)

    @staticmethod
    def write(name: str, ctx: RunnerContext) -> OutputEvent:
        written = [*ctx.short_term_memory.get("written", []), name]
        ctx.short_term_memory.set("written", written)
        return OutputEvent(output=written)


class Overtaken(Diary):
    on_suspend = "interleave"


KINDS = ("later", "sleep", "wait", "both")


@pytest.mark.nightly(beyond=4)
@factors(first=KINDS, second=KINDS, agent=[Diary, Overtaken])
def test_what_is_due_together_has_one_order(first: str, second: str, agent: Any) -> None:
    for days in ((2, 2), (1, 2), (2, 1)):
        inputs = list(zip((first, second), days, strict=True))
        # Each crash is compared with what came out without it.
        with OperatorHarness(agent, lambda _: "ada", crash="everywhere") as harness:
            harness.push_all(inputs)
            outputs = harness.advance_time(timedelta(days=9))
        assert len(outputs[-1]) == len(inputs) + [first, second].count("both")
