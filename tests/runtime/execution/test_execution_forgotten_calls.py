"""A call of the context that nobody awaits did nothing: the action fails, and none of its outputs leaves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from importlib import import_module
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action, client, tool
from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.context import RunnerContext as Context
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness


class Shelf(AwaitedMethods):
    """What a resource gives to an action, with a method that is overridden and one that is not."""

    called_as = "ctx.shelf(...)"

    async def add(self, item: str) -> None:
        raise AssertionError(item)

    async def count(self) -> int:
        return 1


class OwnShelf(Shelf):
    async def add(self, item: str) -> None:
        raise AssertionError(item)


class Answers(Agent):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input + 1)


CALLS = {
    "ctx.request_approval": lambda ctx: ctx.request_approval("pay", {"amount": 1}),
    "ctx.call_agent": lambda ctx: ctx.call_agent(Answers, 1),
    "ctx.call_agent_all": lambda ctx: ctx.call_agent_all(Answers, 1),
    "ctx.call_agent_traced": lambda ctx: ctx.call_agent_traced(Answers, 1),
    "ctx.join": lambda ctx: ctx.join(),
    "ctx.gather": lambda ctx: ctx.gather(),
    "ctx.wait": lambda ctx: ctx.wait([]),
    "ctx.chat": lambda ctx: ctx.chat("analyst", "Hello"),
    "ctx.embed": lambda ctx: ctx.embed("words", "Hello"),
    "ctx.retrieve": lambda ctx: ctx.retrieve("docs", "Hello"),
    "ctx.client": lambda ctx: ctx.client("http"),
    "the tool refund": lambda ctx: ctx.get_resource("refund", "tool")(order="o"),
    "the tool look_up": lambda ctx: ctx.get_resource("look_up", "tool")(order="o"),
    "ctx.shelf(...).add": lambda ctx: OwnShelf().add("x"),
    "ctx.shelf(...).count": lambda ctx: OwnShelf().count(),
}
NEED_ASYNC = {
    "ctx.call_agent",
    "ctx.call_agent_all",
    "ctx.call_agent_traced",
    "ctx.client",
    "the tool refund",
}
"""What a ``def`` action is refused at once."""


class Forgets(Agent):
    """Makes a call that it does not await, in the way that the input names."""

    @client
    async def http(self) -> AsyncIterator[str]:
        yield "session"

    @tool(needs_approval=True)
    def refund(self, order: str) -> str:
        """Give money back."""
        raise AssertionError(order)

    @tool
    async def look_up(self, order: str) -> str:
        """Find an order."""
        raise AssertionError(order)

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent | None:
        way, called = event.input
        return await getattr(self, way)(CALLS[called], ctx)

    async def alone(self, make: Any, ctx: Any) -> Any:
        make(ctx)
        return OutputEvent(output="done")

    async def as_truth(self, make: Any, ctx: Any) -> Any:
        return OutputEvent(output="paid") if make(ctx) else None

    async def behind_an_await(self, make: Any, ctx: Any) -> Any:
        call = make(ctx)
        await asyncio.sleep(0)
        return OutputEvent(output=call is not None)

    async def among_many(self, make: Any, ctx: Any) -> Any:
        for _ in range(300):
            await ctx.gather()
        make(ctx)
        for _ in range(300):
            await ctx.gather()
        return OutputEvent(output="done")


class ForgetsInDef(Forgets):
    """A ``def`` action, which cannot await."""

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, called = event.input
        CALLS[called](ctx)
        return OutputEvent(output="done")


@pytest.mark.parametrize("way", ["alone", "as_truth", "behind_an_await", "among_many"])
@pytest.mark.parametrize("called", CALLS)
def test_a_call_that_nobody_awaits_fails_the_action(called: str, way: str) -> None:
    with OperatorHarness(Forgets) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push((way, called))
    text = str(caught.value)
    assert f"MissingAwaitError: action 'act' ended without awaiting {called}(...): it did nothing" in text
    assert f"fix: write await {called}(...)" in text
    assert harness.outputs == []


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("called", CALLS)
def test_a_def_action_is_told_to_be_async(called: str, inline: bool) -> None:
    with (
        OperatorHarness(ForgetsInDef, config={"run.inline": inline}) as harness,
        pytest.raises(ActionFailedError) as caught,
    ):
        harness.push(("", called))
    text = str(caught.value)
    assert ("ContextMisuseError" if called in NEED_ASYNC else "MissingAwaitError") in text
    assert "write async def" in text
    assert harness.outputs == []


class AskedForgets(Agent):
    """Asks an agent that forgets an await, and one that gives it to a task."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Forgets, event.input))


def test_an_asked_agent_forgets_nothing_either() -> None:
    with (
        OperatorHarness(AskedForgets) as harness,
        pytest.raises(ActionFailedError, match=r"ctx\.chat\(\.\.\.\)"),
    ):
        harness.push(("alone", "ctx.chat"))


def test_the_policy_of_the_action_decides() -> None:
    class Lenient(Forgets):
        on_error = "dead-letter"

    with OperatorHarness(Lenient) as harness:
        assert harness.push(("alone", "ctx.request_approval")) == []
        [letter] = harness.dead_letters
        assert letter.error_type == "MissingAwaitError"


KEPT: list[Coroutine[Any, Any, Any]] = []


class Remembers(Agent):
    """Does with calls what is no mistake; the input names it."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await getattr(self, event.input)(ctx))

    async def closes(self, ctx: Any) -> Any:
        ctx.chat("analyst", "Hello").close()
        return "closed"

    async def leaves_a_task(self, ctx: Any) -> Any:
        asyncio.ensure_future(ctx.gather())
        return "left"

    async def leaves_a_task_in_a_task(self, ctx: Any) -> Any:
        KEPT.append(ctx.gather())
        asyncio.ensure_future(asyncio.wait_for(KEPT[0], 1))
        return "left"

    async def cancels_at_once(self, ctx: Any) -> Any:
        asyncio.ensure_future(ctx.gather()).cancel()
        await asyncio.sleep(0)
        return "cancelled"

    async def awaits_later(self, ctx: Any) -> Any:
        calls = [ctx.call_agent(Answers, number) for number in (1, 2)]
        return [await call for call in reversed(calls)]

    async def joins(self, ctx: Any) -> Any:
        return await ctx.join(*(ctx.call_agent(Answers, number) for number in (1, 2)))


@pytest.mark.parametrize(
    "way", ["closes", "leaves_a_task", "leaves_a_task_in_a_task", "cancels_at_once", "awaits_later", "joins"]
)
def test_what_is_no_mistake_is_none(way: str) -> None:
    with OperatorHarness(Remembers) as harness:
        assert len(harness.push(way)) == 1
    while KEPT:
        KEPT.pop().close()


async def _no(asked: Any) -> bool:
    return False


decide: Any = _no


class Conditions(Agent):
    """Has conditions that give a coroutine; the input says which of them is asked."""

    @action(InputEvent, when=lambda event: decide(event) if event.input == "when" else True)
    def first(self, event: InputEvent, ctx: RunnerContext) -> None: ...

    @action(InputEvent, needs_approval=lambda event: decide(event) if event.input == "action" else False)
    async def second(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent | None:
        if event.input == "tool":
            await ctx.get_resource("refund", "tool")(order="o")
        return OutputEvent(output=event.input)

    @tool(needs_approval=lambda arguments: decide(arguments))
    def refund(self, order: str) -> str:
        """Give money back."""
        raise AssertionError(order)


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("when", "the condition of action 'first'"),
        ("action", "needs_approval of action 'second'"),
        ("tool", "needs_approval of the tool 'refund'"),
    ],
)
def test_a_condition_that_has_to_be_awaited_is_no_condition(which: str, told: str) -> None:
    with OperatorHarness(Conditions) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push(which)
    assert f"MissingAwaitError: {told} returned an awaitable that was not awaited" in str(caught.value)
    assert "coroutine _no" in str(caught.value)


def _classes(cls: type) -> list[type]:
    return [cls, *(subclass for child in cls.__subclasses__() for subclass in _classes(child))]


def test_no_method_that_actions_await_is_left_out() -> None:
    for module in ("retrieval.collection", "retrieval.long_term_memory", "mcp.calls"):
        import_module(f"flink_agents.models.{module}")
    methods = {
        f"{cls.__name__}.{name}": method
        for cls in _classes(AwaitedMethods)
        for name, method in vars(cls).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(method))
    }
    assert {"StoreCollection.add", "StoredMemory.add", "WaitMethods.request_approval"} <= set(methods)
    assert [name for name, method in methods.items() if not hasattr(method, "__wrapped__")] == []
    unwrapped_methods = {
        name for name, method in inspect.getmembers(Context, inspect.iscoroutinefunction) if name[0] != "_"
    }
    assert unwrapped_methods == set(), "RunnerContext has an async def method that nobody wraps"
