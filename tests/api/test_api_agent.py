"""Decorators, the builder, and constructor arguments as configuration."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import flink_agents
from flink_agents import (
    Agent,
    Event,
    InputEvent,
    OnError,
    OutputEvent,
    Prompt,
    ResourceType,
    Tool,
    action,
    tool,
)
from flink_agents.api.agents.decorators import ACTION_MARK, RESOURCE_MARK, ActionMark
from flink_agents.api.errors import (
    ActionSignatureError,
    AgentDefinitionError,
    AgentsError,
    DuplicateNameError,
    UnknownTriggerError,
)
from flink_agents.api.settings import ActionSettings
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


def out(value: Any) -> OutputEvent:
    return OutputEvent(output=value)


# -- @action -------------------------------------------------------------------------


class Placed(Event):
    number: int = 0


class Shapes(Agent):
    """Every shape that a method may have; each puts out its name."""

    @action(InputEvent)
    def plain(self, event: InputEvent, ctx: Any) -> Event:
        return out((ctx.action_name, type(self).__name__))

    @action(InputEvent)
    @staticmethod
    def static_below(event: InputEvent, ctx: Any) -> Event:
        return out(ctx.action_name)

    @staticmethod
    @action(InputEvent)
    def static_above(event: InputEvent, ctx: Any) -> Event:
        return out(ctx.action_name)

    @action(InputEvent)
    def generator(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        yield out(ctx.action_name)

    @action(InputEvent)
    async def coroutine(self, event: InputEvent, ctx: Any) -> Event:
        return out(ctx.action_name)

    @action(InputEvent)
    async def async_generator(self, event: InputEvent, ctx: Any) -> AsyncIterator[Event]:
        yield out(ctx.action_name)

    @action(InputEvent)
    @staticmethod
    async def async_static(event: InputEvent, ctx: Any) -> Event:
        return out(ctx.action_name)

    @action(InputEvent, name="renamed")
    def original(self, event: InputEvent, ctx: Any) -> Event:
        return out(ctx.action_name)


def test_methods_of_every_shape_are_actions_in_their_order() -> None:
    assert OperatorHarness(Shapes).push(1) == [
        ("plain", "Shapes"),
        "static_below",
        "static_above",
        "generator",
        "coroutine",
        "async_generator",
        "async_static",
        "renamed",
    ]


def test_decorated_methods_can_be_called_as_they_are() -> None:
    class Own:
        action_name = "direct"

    event = InputEvent(input=1)
    assert Shapes().plain(event, Own()) == out(("direct", "Shapes"))
    assert Shapes.static_above(event, Own()) == Shapes.static_below(event, Own()) == out("direct")


def test_mark_says_what_was_written() -> None:
    def condition(event: Any) -> bool:
        return True

    @action(InputEvent, "other", when=condition, on_error="ignore", name="n", config={"a": 1}, emits=[Placed])
    def marked(event: Any, ctx: Any) -> None: ...

    assert getattr(marked, ACTION_MARK) == ActionMark(
        triggers=(InputEvent, "other"),
        settings=ActionSettings(when=condition, on_error=OnError.IGNORE),
        config={"a": 1},
        name="n",
        emits=(Placed,),
    )


def test_config_is_copied() -> None:
    config = {"a": 1}
    marked = action(InputEvent, config=config)(lambda event, ctx: None)
    config["a"] = 2
    assert getattr(marked, ACTION_MARK).config == {"a": 1}


def plain(event: Any, ctx: Any) -> None: ...


def wrapped(func: Any) -> Any:
    """What a decorator of the author's makes of ``func``."""

    @functools.wraps(func)
    def wrapper(event: Any, ctx: Any) -> Any:
        return func(event, ctx)

    return wrapper


WRONG_ACTIONS: dict[str, tuple[Any, type[AgentsError], str]] = {
    "no trigger": (lambda: action()(plain), UnknownTriggerError, "has no trigger"),
    "no parentheses": (lambda: action(plain), UnknownTriggerError, "with parentheses"),  # type: ignore[arg-type]
    "no parentheses, static": (
        lambda: action(staticmethod(plain)),  # type: ignore[arg-type]
        UnknownTriggerError,
        "with parentheses",
    ),
    "class that is no event": (lambda: action(int)(plain), UnknownTriggerError, "type int"),  # type: ignore[arg-type]
    "instance of an event": (
        lambda: action(Placed())(plain),  # type: ignore[arg-type]
        UnknownTriggerError,
        "Placed(number=0)",
    ),
    "empty text": (lambda: action("")(plain), UnknownTriggerError, "found: ''"),
    "None": (lambda: action(InputEvent, None)(plain), UnknownTriggerError, "found: None"),  # type: ignore[arg-type]
    "number among emits": (
        lambda: action(InputEvent, emits=[5])(plain),  # type: ignore[list-item]
        UnknownTriggerError,
        "an entry of emits",
    ),
    "unknown policy": (
        lambda: action(InputEvent, on_error="explode")(plain),
        AgentDefinitionError,
        "'fail', 'retry', 'ignore', 'dead-letter'",
    ),
    "twice, with the inner trigger dropped": (
        lambda: action(InputEvent)(action(Placed)(lambda event, ctx: None)),
        AgentDefinitionError,
        "fix: write @action(InputEvent, Placed)",
    ),
    "twice, around a static method": (
        lambda: action(InputEvent, "b")(staticmethod(action("b", name="n")(lambda event, ctx: None))),
        AgentDefinitionError,
        "found: @action(InputEvent, 'b') above @action('b')\n  fix: write @action(InputEvent, 'b');",
    ),
    "twice, with a wrapper between": (
        lambda: action(InputEvent)(wrapped(action(Placed)(lambda event, ctx: None))),
        AgentDefinitionError,
        "two @action mark one function",
    ),
    "None among nothing for emits": (
        lambda: action(InputEvent, emits=None)(plain),  # type: ignore[arg-type]
        UnknownTriggerError,
        "an entry of emits",
    ),
    "retry that is no policy": (
        lambda: action(InputEvent, retry=3)(plain),  # type: ignore[arg-type]
        AgentDefinitionError,
        "found: 3\n  fix: write retry=RetryPolicy(max_attempts=3)",
    ),
    "timeout that is no time": (
        lambda: action(InputEvent, timeout=0)(plain),
        AgentDefinitionError,
        "expected: seconds, more than 0",
    ),
    "endless timeout": (
        lambda: action(InputEvent, timeout=float("inf"))(plain),
        AgentDefinitionError,
        "found: inf",
    ),
    "no concurrency": (
        lambda: action(InputEvent, max_concurrency=0)(plain),
        AgentDefinitionError,
        "an integer of 1 or more",
    ),
    "rate that is a number": (
        lambda: action(InputEvent, rate_limit=10)(plain),  # type: ignore[arg-type]
        AgentDefinitionError,
        "write rate_limit=RateLimit(10, per=1)",
    ),
    "blocking that is a text": (
        lambda: action(InputEvent, blocking="yes")(plain),  # type: ignore[arg-type]
        AgentDefinitionError,
        "True or False",
    ),
    "builder, timeout": (
        lambda: Agent().add_action("a", InputEvent, plain, timeout=True),
        AgentDefinitionError,
        "action 'a' has an invalid timeout",
    ),
    "limits of a tool": (
        lambda: tool(max_concurrency=0)(plain),
        AgentDefinitionError,
        "@tool has an invalid max_concurrency",
    ),
    "builder, None": (
        lambda: Agent().add_action("a", None, plain),  # type: ignore[arg-type]
        UnknownTriggerError,
        "found: None",
    ),
    "builder, number": (
        lambda: Agent().add_action("a", 5, plain),  # type: ignore[arg-type]
        UnknownTriggerError,
        "found: 5",
    ),
    "builder, instance of an event": (
        lambda: Agent().add_action("a", Placed(), plain),  # type: ignore[arg-type]
        UnknownTriggerError,
        "Placed(number=0)",
    ),
    "builder, no trigger": (
        lambda: Agent().add_action("a", [], plain),
        UnknownTriggerError,
        "has no trigger",
    ),
    "builder, class that is no event": (
        lambda: Agent().add_action("a", [int], plain),  # type: ignore[list-item]
        UnknownTriggerError,
        "action 'a' has a trigger",
    ),
    "builder, unknown policy": (
        lambda: Agent().add_action("a", InputEvent, plain, on_error="explode"),
        AgentDefinitionError,
        "action 'a' has an invalid on_error",
    ),
    "builder, a name twice": (
        lambda: Agent().add_action("a", InputEvent, plain).add_action("a", InputEvent, plain),
        DuplicateNameError,
        "'a'",
    ),
}


@each_case(("make", "error", "text"), WRONG_ACTIONS.values(), ids=WRONG_ACTIONS.keys())
def test_wrong_action_is_a_named_error_that_names_the_place(make: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert "test_api_agent.py" in (caught.value.where or "")


@each_case("emits", [Placed, [Placed], "Placed"])
def test_emits_may_be_one_event_alone(emits: Any) -> None:
    mark = getattr(action(InputEvent, emits=emits)(lambda event, ctx: None), ACTION_MARK)
    assert mark.emits in ((Placed,), ("Placed",))


def test_a_method_that_overrides_an_action_may_have_its_own_triggers() -> None:
    class Retriggered(Shapes):
        @action(InputEvent, "other", emits=["other"])
        def plain(self, event: Event, ctx: Any) -> Event:
            return out("overridden")

    assert OperatorHarness(Retriggered).push(1)[0] == "overridden"


class ClassMethod(Agent):
    @action(InputEvent)
    @classmethod
    def act(cls, event: InputEvent, ctx: Any) -> None: ...


class NoContext(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent) -> None: ...


class TooMuch(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any, more: int) -> None: ...


@each_case("agent", [ClassMethod, NoContext, TooMuch])
def test_method_that_cannot_be_called_is_a_named_error(agent: type[Agent]) -> None:
    with pytest.raises(ActionSignatureError) as caught:
        OperatorHarness(agent)
    assert "test_api_agent.py" in (caught.value.where or "")
    assert f"{agent.__name__}.act" in (caught.value.where or "")


# -- the builder ---------------------------------------------------------------------


def greet(event: InputEvent, ctx: Any) -> Event:
    return out(
        ctx.get_resource("hello", "prompt").format_string(name=ctx.get_resource("upper", "tool")(event.input))
    )


def upper(text: str) -> str:
    """Make it loud."""
    return text.upper()


@each_case("resource", [upper, Tool(upper), Tool(upper, name="other")], ids=["function", "Tool", "named"])
def test_builder(resource: Any) -> None:
    agent = (
        Agent(name="greeter")
        .add_action("greet", [InputEvent], greet)
        .add_resource("hello", "prompt", Prompt.from_text("Hello {name}"))
        .add_resource("upper", ResourceType.TOOL, resource)
    )
    harness = OperatorHarness(agent)
    assert harness.plan.name == "greeter"
    assert harness.push("ada") == ["Hello ADA"]


@each_case("triggers", [InputEvent, [InputEvent], (InputEvent, "_input_event"), "_input_event"])
def test_builder_takes_one_trigger_or_several(triggers: Any) -> None:
    agent = Agent(name="a").add_action("a", triggers, lambda event, ctx: out(1))
    assert OperatorHarness(agent).push(1) == [1]


def test_builder_adds_to_a_class() -> None:
    agent = Shapes().add_action("added", InputEvent, lambda event, ctx: out("added"))
    assert OperatorHarness(agent).push(1)[-1] == "added"
    assert OperatorHarness(Shapes).push(1)[-1] == "renamed"


def test_resource_names_are_unique_within_their_type() -> None:
    agent = Agent().add_resource("x", "tool", upper).add_resource("x", "prompt", Prompt.from_text("x"))
    with pytest.raises(DuplicateNameError, match="tool 'x'"):
        agent.add_resource("x", ResourceType.TOOL, upper)


# -- resources by decorator ----------------------------------------------------------


@each_case("kind", list(ResourceType))
def test_each_resource_type_has_its_decorator(kind: ResourceType) -> None:
    decorator = getattr(flink_agents, kind.value)
    bare = decorator(lambda self: None)
    named = decorator(name="n")(staticmethod(lambda: None))
    assert (getattr(bare, RESOURCE_MARK).type, getattr(bare, RESOURCE_MARK).name) == (kind, None)
    mark = getattr(named.__func__, RESOURCE_MARK)
    assert (mark.type, mark.name) == (kind, "n")
