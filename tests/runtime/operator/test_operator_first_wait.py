"""What a run does before it first waits: a resumed run has all of it, and does none of it again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults
from tests.suite.tables import each_case

EXECUTED: Counter[str] = Counter()


class Work(Event):
    items: list[int]


class Waits(Agent):
    """Its last action waits; the others end before, on Flink's thread or on the loop."""

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: Any) -> Any:
        EXECUTED["begin"] += 1
        ctx.short_term_memory.set("n", 1)
        ctx.sensory_memory.set("place", "begin")
        yield OutputEvent(output="first")
        yield Work(items=[1, 2])
        yield OutputEvent(output="second")

    @action(Work, on_error="dead-letter")
    def fail(self, event: Work, ctx: Any) -> None:
        EXECUTED["fail"] += 1
        ctx.short_term_memory.set("n", 100)
        raise ValueError("no")

    @action(Work)
    async def count(self, event: Work, ctx: Any) -> OutputEvent:
        EXECUTED["count"] += 1
        ctx.short_term_memory.set("n", ctx.short_term_memory.get("n") + 1)
        event.items.append(3)
        return OutputEvent(output="third")

    @action(Work)
    async def wait(self, event: Work, ctx: Any) -> Any:
        EXECUTED["wait"] += 1
        before = ctx.short_term_memory.get("n"), ctx.sensory_memory.get("place"), list(event.items)
        ctx.short_term_memory.set("n", 5)
        event.items.append(4)
        yield OutputEvent(output="fourth")
        answer = await ctx.wait_for_signal("answer")
        yield OutputEvent(output=[*before, answer, ctx.short_term_memory.get("n")])

    @action(Work)
    async def follow(self, event: Work, ctx: Any) -> OutputEvent:
        EXECUTED["follow"] += 1
        await ctx.sleep(60)
        return OutputEvent(output=["end", event.items])


PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
ENDED = [2, "begin", [1, 2], "yes", 5]


@pytest.mark.own_conditions
@each_case("with_store", [False, True])
@each_case("inline", [False, True])
def test_what_ended_before_the_first_wait_is_not_executed_again(with_store: bool, inline: bool) -> None:
    EXECUTED.clear()
    options = {"store": Faults().store} if with_store else {}
    with OperatorHarness(Waits, config={"run.inline": inline}, **options, **PLAIN) as harness:
        assert harness.push("x") == ["first", "second", "third", "fourth"]
        assert [letter.action for letter in harness.dead_letters] == ["fail"]
        harness.restore(harness.snapshot())
        harness.signal(0, "answer", "yes")
        harness.advance_time(61_000)
        assert harness.outputs[4:] == [ENDED, ["end", [1, 2]]]
        assert harness.memory(0) == {"n": 5}
        assert len(harness.dead_letters) == 1
    assert EXECUTED == {"begin": 1, "fail": 1, "count": 1, "wait": 2, "follow": 2}


class Calls(Waits):
    """Makes durable calls before it waits, and during its waits."""

    @action(Work)
    async def count(self, event: Work, ctx: Any) -> OutputEvent:
        step = await ctx.durable_execute_async(abs, -1)
        ctx.short_term_memory.set("n", ctx.short_term_memory.get("n") + step)
        return OutputEvent(output="third")

    @action(Work)
    async def follow(self, event: Work, ctx: Any) -> OutputEvent:
        _, last = await ctx.gather(ctx.sleep(60), ctx.durable_execute_async(str, "end"))
        return OutputEvent(output=[last, event.items])


@pytest.mark.own_conditions
@each_case("agent", [Waits, Calls])
def test_a_crash_anywhere_around_the_first_wait_changes_nothing(agent: type[Agent]) -> None:
    with OperatorHarness(agent, crash="everywhere") as harness:
        harness.push("x")
        harness.signal(0, "answer", "yes")
        harness.advance_time(61_000)
        assert harness.outputs == ["first", "second", "third", "fourth", ENDED, ["end", [1, 2]]]
        assert len(harness.dead_letters) == 1
