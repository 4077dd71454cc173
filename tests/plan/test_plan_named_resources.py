"""An action that names a resource which the agent lacks is an error before the job runs."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import pytest
from suite.tables import each_case

from flink_agents import Agent, InputEvent, Prompt, ResourceType, RunnerContext
from flink_agents.api.errors import MissingResourceError
from flink_agents.plan import compile_agent

OPTION = True

HEAD = "async def act(event, ctx):\n    "


def action_of(body: str, head: str = HEAD) -> Any:
    """Return a function with that body, whose source can be read."""
    text = head + body.replace("\n", "\n    ") + "\n"
    file = f"<action {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"ResourceType": ResourceType, "OPTION": OPTION, "suppress": print}
    exec(compile(text, file, "exec"), names)
    return names["act"]


def agent_of(body: str, **options: Any) -> Agent:
    return Agent(name="shop", **options).add_action("act", [InputEvent], action_of(body))


LACKED = {
    "await ctx.chat('analyst', 'hi')": "chat_model 'analyst'",
    "ctx.get_resource('price', 'tool')": "tool 'price'",
    "ctx.get_resource('price', ResourceType.TOOL)": "tool 'price'",
    "ctx.get_resource(name='price', resource_type='tool')": "tool 'price'",
    "http = await ctx.client('http')": "client 'http'",
    "return [await ctx.embed('words', 'a')]": "embedding_model 'words'",
    "ctx.vector_store('docs')": "vector_store 'docs'",
    "found = await ctx.retrieve('docs', event.input)": "vector_store 'docs'",
    "await ctx.mcp_server('files').call('read')": "mcp_server 'files'",
    "await ctx.prompt('greet', name='a')": "prompt 'greet'",
    # What is asked for with some events only is missing as well: an hour later.
    "if event.input == 'x':\n    await ctx.chat('analyst', 'hi')": "chat_model 'analyst'",
    "if event.input:\n    return\nawait ctx.chat('analyst', 'hi')": "chat_model 'analyst'",
    "big = len(event.input) > 3\nif big:\n    ctx.vector_store('docs')": "vector_store 'docs'",
    "for one in event.input:\n    ctx.vector_store('docs')": "vector_store 'docs'",
    "match event.input:\n    case 1:\n        ctx.vector_store('docs')": "vector_store 'docs'",
    "try:\n    ctx.vector_store('docs')\nfinally:\n    print()": "vector_store 'docs'",
    "return ctx.vector_store('docs') if event.input else None": "vector_store 'docs'",
    "async with await ctx.client('http') as http:\n    pass": "client 'http'",
}

LEFT_OPEN = [
    "await ctx.chat(event.input, 'hi')",
    "name = 'analyst'\nawait ctx.chat(name, 'hi')",
    "ctx.get_resource('price', event.input)",
    "ctx.get_resource('price', 'a_kind_of_somebody')",
    "event.chat('analyst')",
    "if OPTION:\n    ctx.vector_store('docs')",
    "if OPTION and event.input:\n    ctx.vector_store('docs')",
    "if not OPTION:\n    return\nctx.vector_store('docs')",
    "assert OPTION\nctx.vector_store('docs')",
    "use = OPTION\nif use:\n    ctx.vector_store('docs')",
    "if ctx.config.get('x'):\n    ctx.vector_store('docs')",
    "value = ctx.short_term_memory.get('a')\nif value:\n    ctx.vector_store('docs')",
    "OPTION and ctx.vector_store('docs')",
    "return ctx.vector_store('docs') if OPTION else None",
    "while OPTION:\n    ctx.vector_store('docs')",
    "for one in OPTION:\n    ctx.vector_store('docs')",
    "[ctx.vector_store('docs') for one in OPTION]",
    "match OPTION:\n    case 1:\n        ctx.vector_store('docs')",
    "try:\n    ctx.vector_store('docs')\nexcept LookupError:\n    pass",
    "with suppress(LookupError):\n    ctx.vector_store('docs')",
    "def later():\n    ctx.vector_store('docs')",
    "return lambda: ctx.vector_store('docs')",
]


@each_case("body", LACKED)
def test_a_resource_that_the_agent_lacks_is_named(body: str) -> None:
    with pytest.raises(MissingResourceError) as caught:
        compile_agent(agent_of(body))
    text = str(caught.value)
    assert LACKED[body] in text and "declare it" in text
    line = 2 + [LACKED[body].split("'")[1] in body_line for body_line in body.split("\n")].index(True)
    assert f">:{line} in act" in text


@each_case("body", LEFT_OPEN)
def test_what_may_be_left_out_on_purpose_is_no_mistake(body: str) -> None:
    compile_agent(agent_of(body))


class Declared(Agent):
    """Has what its actions name."""

    def __init__(self, translates: bool = False) -> None:
        self.translates = translates


def price() -> int:
    """Return the price."""
    return 3


def test_what_the_agent_has_is_found() -> None:
    body = "ctx.get_resource('price', 'tool')\nctx.prompt('greet')"
    agent = agent_of(body)
    agent.add_resource("price", "tool", price).add_resource("greet", "prompt", Prompt.from_text("hi"))
    compile_agent(agent)


def test_another_kind_and_a_misspelt_name_are_told() -> None:
    agent = agent_of("ctx.get_resource('price', 'prompt')").add_resource("price", "tool", price)
    with pytest.raises(MissingResourceError, match="'price' is a tool: ask for that type"):
        compile_agent(agent)
    agent = agent_of("ctx.get_resource('prise', 'tool')").add_resource("price", "tool", price)
    with pytest.raises(MissingResourceError, match="price"):
        compile_agent(agent)


def test_an_agent_that_is_made_without_it_is_no_mistake() -> None:
    head = "async def act(self, event, ctx):\n    "
    body = "if self.translates:\n    await ctx.chat('translator', 'hi')"
    act = action_of(body, head)
    agent = Declared().add_action("act", [InputEvent], functools.partial(act, Declared()))
    compile_agent(agent)


class OwnContext(RunnerContext):
    """Has its own meaning of a method."""

    def vector_store(self, name: str, collection: str | None = None) -> Any:
        return name


class OwnMeaning(Agent):
    """Has its own context."""

    context_class = OwnContext


def test_a_method_of_the_own_context_class_names_what_it_likes() -> None:
    agent = OwnMeaning(name="shop").add_action("act", [InputEvent], action_of("ctx.vector_store('docs')"))
    compile_agent(agent)
