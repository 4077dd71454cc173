"""The deliberate mistakes of ``docs/mistakes.md``: each says what the page says."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from docs_pages import pages
from test_docs_snippets import matches

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.errors import AgentsError
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness

PAGE = "docs/mistakes.md"


class Paid(Event):
    order: str


async def charge(order: Any) -> str:
    return f"receipt of {order}"


def push(act: Callable[..., Any], *triggers: Any, output_type: Any = None, key: Any = None) -> None:
    agent = Agent(name="Shop").add_action("act", list(triggers) or [InputEvent], act)
    agent.output_type = output_type
    agent.add_resource("http", "client", open_http)
    with OperatorHarness(agent, key or (lambda record: 0)) as harness:
        harness.push("o1")


async def open_http() -> AsyncIterator[str]:
    yield "session"


def await_of_an_output() -> None:
    async def act(event: Any, ctx: Any) -> Any:
        return OutputEvent(output=ctx.durable_execute_async(charge, event.input))

    push(act)


def call_that_is_never_awaited() -> None:
    async def act(event: Any, ctx: Any) -> Any:
        ctx.durable_execute_async(charge, event.input)

    push(act)


def action_without_parentheses() -> None:
    class Shop(Agent):
        @action  # pyright: ignore[reportArgumentType]
        def act(self, event: Any, ctx: Any) -> None: ...


def mistyped_keyword() -> None:
    wrong: Any = {"timout": 3}

    class Shop(Agent):
        @action(InputEvent, **wrong)
        def act(self, event: Any, ctx: Any) -> None: ...


def signature_without_context() -> None:
    class Shop(Agent):
        @action(InputEvent)
        def act(self, event: Any) -> None: ...

    compile_agent(Shop)


def trigger_that_nothing_emits() -> None:
    class Shop(Agent):
        @action(InputEvent)
        def act(self, event: Any, ctx: Any) -> None: ...

        @action(Paid)
        def thank(self, event: Any, ctx: Any) -> None: ...

    compile_agent(Shop)


def output_that_is_no_event() -> None:
    push(lambda event, ctx: event.input)


def output_of_another_type() -> None:
    push(lambda event, ctx: OutputEvent(output="7"), output_type=int)


def context_in_a_durable_function() -> None:
    def act(event: Any, ctx: Any) -> Any:
        def remember() -> None:
            ctx.short_term_memory.set("order", event.input)

        return OutputEvent(output=ctx.durable_execute(remember))

    push(act)


def session_as_an_argument() -> None:
    async def act(event: Any, ctx: Any) -> Any:
        return OutputEvent(output=await ctx.durable_execute_async(charge, threading.Lock()))

    push(act)


def key_that_is_a_list() -> None:
    push(lambda event, ctx: None, key=lambda record: [record])


MISTAKES: dict[str, Callable[[], None]] = {
    "`OutputEvent(output=ctx.durable_execute_async(charge, order))`": await_of_an_output,
    "`ctx.durable_execute_async(charge, order)`, and nothing else": call_that_is_never_awaited,
    "`@action` without parentheses": action_without_parentheses,
    "`@action(InputEvent, timout=3)`": mistyped_keyword,
    "`def act(self, event)`": signature_without_context,
    "`@action(Paid)`, and no action emits `Paid`": trigger_that_nothing_emits,
    "`return event.input`": output_that_is_no_event,
    '`output_type = int`, and `OutputEvent(output="7")`': output_of_another_type,
    "`ctx.short_term_memory` inside a durable function": context_in_a_durable_function,
    "a session, or a lock, as an argument of a durable call": session_as_an_argument,
    "`key_selector=lambda order: [order]`": key_that_is_a_list,
}


_ENTRY = re.compile(
    r"^\*\*(?P<mistake>.+?)\*\* \((?P<code>\[\w+\]\(.*?\))\):\n\n"
    r"```text\n(?P<message>.*?)\n```\n\nFix: (?P<fix>.*?)\n\n",
    re.MULTILINE | re.DOTALL,
)


def entries() -> dict[str, re.Match[str]]:
    """The entries of the page by the mistake."""
    return {entry["mistake"]: entry for entry in _ENTRY.finditer(pages()[PAGE])}


def on_one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def test_page_has_the_mistakes() -> None:
    assert list(entries()) == list(MISTAKES)
    assert len(MISTAKES) >= 10


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_says_what_the_page_says(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentsError) as caught:
        MISTAKES[mistake]()
    error = caught.value
    entry = entries()[mistake]
    message = f"{error.message}: {error.found}" if error.found else error.message
    assert matches(on_one_line(message), on_one_line(entry["message"])), f"printed:\n{message}"
    advised = on_one_line(entry["fix"]).replace("`", "").removesuffix(".")
    assert matches(error.fix or "", advised[:1].lower() + advised[1:]), f"printed:\n{error.fix}"
    root = error.__cause__ if isinstance(error.__cause__, AgentsError) else error
    assert entry["code"] == f"[{root.code}](errors.md#{root.code.lower()})"


def test_place_is_the_authors() -> None:
    for mistake in (await_of_an_output, mistyped_keyword, signature_without_context):
        with pytest.raises(AgentsError) as caught:
            mistake()
        assert re.match(r"\S*test_docs_mistakes\.py:\d+ in ", str(caught.value))
