"""Nothing that a run makes is part of a reference cycle: a long job would keep it until a full collection."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OnError, OutputEvent, RetryPolicy, action
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {"forced_replay": False, "forced_restart": False, "crash": None}


async def effect(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def failing(value: Any) -> Any:
    raise ValueError(value)


class Remembers(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("order.number", event.input)
        ctx.sensory_memory.set("seen", 1)
        return OutputEvent(output=ctx.short_term_memory.get("order").field_names())


class Calls(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.append("all", event.input)
        ctx.short_term_memory.delete("all")
        return OutputEvent(output=await ctx.durable_execute_async(effect, event.input))


class CallsFromThread(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        return OutputEvent(output=ctx.durable_execute(str, event.input))


class Gathers(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        calls = [ctx.durable_execute_async(effect, number) for number in range(3)]
        ctx.short_term_memory.set("last", await ctx.gather(*calls))
        return OutputEvent(output=event.input)


class Fails(Agent):
    """Each input becomes a dead letter, after a retry."""

    @action(
        InputEvent, on_error=OnError.DEAD_LETTER, retry=RetryPolicy(max_attempts=2, initial_interval=0.001)
    )
    async def act(self, event: InputEvent, ctx: Any) -> None:
        ctx.short_term_memory.set("last", event.input)
        await ctx.durable_execute_async(failing, event.input)


class TimesOut(Agent):
    @action(InputEvent, timeout=60)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        return OutputEvent(output=await ctx.durable_execute_async(effect, event.input))


class Sleeps(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        await ctx.sleep(1)
        return OutputEvent(output=await ctx.durable_execute_async(effect, event.input))


class Overtaken(Sleeps):
    on_suspend = "interleave"


class Waits(Agent):
    """Each input becomes a dead letter when its signal does not come in time."""

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        return OutputEvent(output=await ctx.wait_for_signal("paid", timeout=1))


class Delays(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None:
        ctx.short_term_memory.set("last", event.input)
        if event.input < 1000:
            ctx.send_event(InputEvent(input=event.input + 1000), delay=1)


class Child(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("child", event.input)
        return OutputEvent(output=await ctx.durable_execute_async(effect, event.input))


class Asks(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        return OutputEvent(output=await ctx.call_agent(Child, event.input))


AGENTS: list[Any] = [
    *(Remembers, Calls, CallsFromThread, Gathers, Fails, TimesOut),
    *(Sleeps, Overtaken, Waits, Delays, Asks),
]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"trace.level": "content"},
    {"trace.level": "runs", "memory.short-term.ttl": "1 h"},
]
RUNS = 20


def is_of_runtime(module: str) -> bool:
    return module.startswith("flink_agents.") and not module.startswith("flink_agents.testing.")


def cycles_of(work: Callable[[], object]) -> Counter[str]:
    """Return the classes of the package with objects that ``work`` leaves to the collector, and how many."""
    gc.collect()
    # A test session has millions of older objects, which each collection would visit.
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        return Counter(
            f"{type(instance).__module__}.{type(instance).__qualname__}"
            for instance in gc.garbage
            if is_of_runtime(type(instance).__module__)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@each_case("config", CONFIGS)
@each_case("agent", AGENTS)
def test_runs_leave_no_cycles(agent: Any, config: dict[str, Any], tmp_path_factory: Any) -> None:
    place, directory = MemoryPlace(), tmp_path_factory.mktemp("trace")
    options: dict[str, Any] = {"config": {**config, "trace.directory": str(directory)}, **PLAIN}
    with OperatorHarness(
        agent, lambda number: number % 5, store=lambda: MemoryStore(place), **options
    ) as harness:

        def work() -> None:
            harness.push_all(range(RUNS))
            for _ in range(RUNS // 5 + 1):
                harness.advance_time(1000)

        work()
        cycles = cycles_of(work)
        many = {name: number for name, number in cycles.items() if number >= RUNS // 2}
        assert not many, f"{RUNS} runs left {many}"
