"""Whether an agent may wait for what outlasts its executions is read from its code."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from asyncio import sleep
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, RunnerContext, action
from flink_agents.api.durable import waits_durably
from flink_agents.plan import AgentCode, bind, compile_agent
from flink_agents.plan.binding.uses import may_wait
from tests.suite.tables import each_case


async def pause(ctx: Any) -> None:
    await ctx.sleep(1)


class Sleeps(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await ctx.sleep(1)


class Asks(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await asyncio.gather(*[ctx.wait_for_signal(name) for name in ("a", "b")])


class Helped(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.help(ctx)

    async def help(self, ctx: Any) -> None:
        await pause(ctx)


class Both(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await asyncio.sleep(0)
        await ctx.sleep(1)


class Others(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        import asyncio as loops

        await asyncio.sleep(0)
        await asyncio.wait_for(loops.sleep(0), 1)
        await sleep(0)
        time.sleep(0)


class Gate:
    """Stands for an object of a library; nothing in its code names a wait."""

    async def passed(self, ctx: Any) -> None:
        return None


gate = waits_durably(Gate())


class Gated(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await gate.passed(ctx)


class GatedByOneOfSome(Agent):
    def __init__(self) -> None:
        self.gates = [waits_durably(Gate()), gate]

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.gates[0].passed(ctx)


class GatedByAClass(Agent):
    gates = (gate,)

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.gates[0].passed(ctx)


class GatedAction(Agent):
    @action(InputEvent)
    @waits_durably
    async def work(self, event: InputEvent, ctx: Any) -> None:
        return None


class Ungated(Agent):
    def __init__(self) -> None:
        self.way = Gate()

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.way.passed(ctx)


@each_case("agent", [Gated, GatedByOneOfSome, GatedByAClass, GatedAction])
def test_objects_that_a_library_says_wait(agent: type[Agent]) -> None:
    assert _waits(agent)


def test_an_object_of_which_nobody_says_that_it_waits() -> None:
    assert not _waits(Ungated)


WAYS = {"nap": [pause]}


class OfATable(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        for way in WAYS[event.input]:
            await way(ctx)


class OfATableOfItsOwn(Agent):
    ways = (pause,)

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.ways[0](ctx)


class OfAProperty(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.way(ctx)

    @property
    def way(self) -> Any:
        return pause


class OfADefault(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.go(ctx)

    async def go(self, ctx: Any, way: Any = pause, *, other: Any = None) -> None:
        await way(ctx)


class OfANamedDefault(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        await self.go(ctx)

    async def go(self, ctx: Any, *, way: Any = pause) -> None:
        await way(ctx)


def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def slow(self: Any, event: InputEvent, ctx: Any) -> Any:
        await ctx.sleep(1)
        return await function(self, event, ctx)

    return slow


class OfADecorator(Agent):
    @action(InputEvent)
    @slowed
    async def work(self, event: InputEvent, ctx: Any) -> None:
        return None


HIDDEN = [OfATable, OfATableOfItsOwn, OfAProperty, OfADefault, OfANamedDefault, OfADecorator]


@each_case("agent", [Sleeps, Asks, Helped, Both, *HIDDEN])
def test_agents_that_wait(agent: type[Agent]) -> None:
    assert _waits(agent)


def test_functions_of_modules_are_no_waits() -> None:
    assert not _waits(Others)


async def napping(ctx: RunnerContext) -> int:
    """Sleep."""
    await ctx.sleep(1)
    return 1


@each_case("added", [napping, Sleeps().as_tool("Sleeps.")], ids=["function", "agent"])
def test_tools_that_were_added_to_an_agent(added: Any) -> None:
    """Its class does not name them, and its action does so by a text."""
    built_agent = OfData("built").add_resource("nap", "tool", added)
    assert may_wait(bind(compile_agent(built_agent), AgentCode.of(built_agent)))


MUCH: list[Any] = [[number] for number in range(100)]
MUCH.append(MUCH)


class OfData(Agent):
    """Names a collection that holds itself."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        MUCH.append(len(MUCH))


def test_collections_are_looked_through_once() -> None:
    assert not _waits(OfData)


class Imports(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> None:
        import author_of_waits  # pyright: ignore[reportMissingImports]

        await author_of_waits.pause(ctx)


def test_a_module_that_is_not_imported_yet_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "async def pause(ctx):\n    await ctx.sleep(1)\n"
    tmp_path.joinpath("author_of_waits.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert _waits(Imports)
    assert "author_of_waits" not in sys.modules


def _waits(agent: type[Agent]) -> bool:
    instance = agent()
    return may_wait(bind(compile_agent(instance), AgentCode.of(instance)))
