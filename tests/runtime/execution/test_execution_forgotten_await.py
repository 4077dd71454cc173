"""An ``await`` that somebody forgot says so, wherever it shows."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action, client
from flink_agents.api.errors import ActionFailedError, MissingAwaitError
from flink_agents.testing import OperatorHarness

CALLED: list[Any] = []


async def fetch(page: Any) -> str:
    CALLED.append(page)
    return f"text of {page}"


class Pages(Agent):
    """Each input names what the author did wrong."""

    side_outputs = {"aside": str}

    @client
    async def http(self) -> AsyncIterator[str]:
        yield "session"

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return await getattr(self, event.input)(ctx)

    async def output(self, ctx: Any) -> Any:
        return OutputEvent(output=ctx.durable_execute_async(fetch, "a"))

    async def own_coroutine(self, ctx: Any) -> Any:
        return OutputEvent(output=fetch("a"))

    async def in_a_list(self, ctx: Any) -> Any:
        return OutputEvent(output=[ctx.durable_execute_async(fetch, "a")])

    async def side_output(self, ctx: Any) -> Any:
        ctx.emit_to("aside", ctx.durable_execute_async(fetch, "a"))

    async def event(self, ctx: Any) -> Any:
        ctx.send_event(ctx.durable_execute_async(fetch, "a"))

    async def argument(self, ctx: Any) -> Any:
        page = ctx.durable_execute_async(fetch, "a")
        return OutputEvent(output=await ctx.durable_execute_async(fetch, page))

    async def memory(self, ctx: Any) -> Any:
        ctx.short_term_memory.set("page", ctx.durable_execute_async(fetch, "a"))

    async def attribute(self, ctx: Any) -> Any:
        return OutputEvent(output=ctx.durable_execute_async(fetch, "a").upper())

    async def item(self, ctx: Any) -> Any:
        return OutputEvent(output=ctx.client("http")[0])

    async def nothing(self, ctx: Any) -> Any:
        ctx.durable_execute_async(fetch, "a")
        return OutputEvent(output="done")

    async def one_of_two(self, ctx: Any) -> Any:
        calls = [ctx.durable_execute_async(fetch, page) for page in "ab"]
        return OutputEvent(output=await calls[0])


class Answers(Agent):
    """Is asked by an author who forgets to await the answer."""

    @action(InputEvent)
    def answer(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return OutputEvent(output=event.input)


class Asks(Agent):
    """Forgets to await the answer."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return OutputEvent(output=ctx.call_agent(Answers, event.input))


class Chats(Agent):
    """Calls what has to be awaited in a def action."""

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> Any:
        page: Any = fetch(event.input)
        try:
            return OutputEvent(output=page.upper())
        finally:
            page.close()


def failure(kind: str) -> str:
    with OperatorHarness(Pages) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push(kind)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("output", "MissingAwaitError: action 'act' emits something that was not awaited"),
        ("side_output", "MissingAwaitError: action 'act' emits something that was not awaited"),
        ("event", "MissingAwaitError: action 'act' emits something that was not awaited"),
        ("in_a_list", "MissingAwaitError: action 'act' ended without awaiting"),
        ("argument", "which was not awaited"),
        ("memory", "which was not awaited"),
        ("nothing", "MissingAwaitError: action 'act' ended without awaiting"),
        ("one_of_two", "MissingAwaitError: action 'act' ended without awaiting"),
    ],
)
def test_forgotten_await_names_the_durable_call(kind: str, what: str) -> None:
    text = failure(kind)
    assert what in text
    assert re.search(r"the durable call [\w.]+:fetch\(page='[ab]'\)", text)
    assert "write await" in text


@pytest.mark.parametrize("kind", ["attribute", "item"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_use_of_a_coroutine_as_its_result_says_what_is_missing(kind: str) -> None:
    text = failure(kind)
    assert re.match(rf"[^\n]*in (Pages\.)?{kind}: (Attribute|Type)Error: 'coroutine' object", text)
    assert "fix: write await" in text


def test_an_answer_that_is_not_awaited_is_closed_as_a_whole() -> None:
    with OperatorHarness(Asks) as harness, pytest.raises(ActionFailedError, match="MissingAwaitError"):
        harness.push("x")
    gc.collect()


def test_a_def_action_is_told_that_it_has_to_be_an_async_def() -> None:
    with OperatorHarness(Chats) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("x")
    assert "fix: write async def, and await" in str(caught.value)


def test_coroutine_of_the_author_is_named() -> None:
    assert "found: coroutine fetch" in failure("own_coroutine")


def test_place_is_that_of_the_author() -> None:
    assert re.match(r"\S*test_execution_forgotten_await\.py:\d+ in .*event: MissingAwait", failure("event"))


@pytest.mark.executes_once
def test_call_that_is_not_awaited_is_not_made_and_the_policy_is_followed() -> None:
    CALLED.clear()
    with OperatorHarness(Pages, config={"actions.on-error": "dead-letter"}) as harness:
        assert harness.push("nothing") == []
        (letter,) = harness.dead_letters
    assert letter.error_type == MissingAwaitError.__name__
    assert CALLED == []


def test_calls_that_are_cancelled_or_closed_are_not_forgotten() -> None:
    class Cancelling(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Any:
            cancelled = asyncio.ensure_future(ctx.durable_execute_async(fetch, "a"))
            cancelled.cancel()
            closed = ctx.durable_execute_async(fetch, "b")
            closed.close()
            asyncio.ensure_future(ctx.durable_execute_async(fetch, "c"))
            return OutputEvent(output=await ctx.durable_execute_async(fetch, "d"))

    with OperatorHarness(Cancelling) as harness:
        assert harness.push("x") == ["text of d"]
