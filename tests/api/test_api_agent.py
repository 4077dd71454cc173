"""Decorators, the builder, and constructor arguments as configuration."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

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
    AgentConfigurationError,
    AgentDefinitionError,
    AgentsError,
    DuplicateNameError,
    UnknownTriggerError,
)
from flink_agents.api.settings import ActionSettings
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each

# -- @action -------------------------------------------------------------------------


class Placed(Event):
    number: int = 0


def out(value: Any) -> OutputEvent:
    return OutputEvent(output=value)


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


@each(("make", "error", "text"), WRONG_ACTIONS.values(), ids=WRONG_ACTIONS.keys())
def test_wrong_action_is_a_named_error_that_names_the_place(make: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert "test_api_agent.py" in (caught.value.where or "")


@each("emits", [Placed, [Placed], "Placed"])
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


@each("agent", [ClassMethod, NoContext, TooMuch])
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


@each("resource", [upper, Tool(upper), Tool(upper, name="other")], ids=["function", "Tool", "named"])
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


@each("triggers", [InputEvent, [InputEvent], (InputEvent, "_input_event"), "_input_event"])
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


@each("kind", list(ResourceType))
def test_each_resource_type_has_its_decorator(kind: ResourceType) -> None:
    decorator = getattr(flink_agents, kind.value)
    bare = decorator(lambda self: None)
    named = decorator(name="n")(staticmethod(lambda: None))
    assert (getattr(bare, RESOURCE_MARK).type, getattr(bare, RESOURCE_MARK).name) == (kind, None)
    mark = getattr(named.__func__, RESOURCE_MARK)
    assert (mark.type, mark.name) == (kind, "n")


# -- configuration -------------------------------------------------------------------


class Limits(BaseModel):
    low: int
    high: int = 10


class Configured(Agent):
    def __init__(
        self,
        name: str,
        limits: Limits,
        since: date = date(2024, 1, 1),
        *tags: str,
        delay: timedelta = timedelta(seconds=1),
        **more: int,
    ) -> None:
        self.values = [name, limits, since, tags, delay, more]

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.values)

    @tool
    def low(self) -> int:
        """The lower limit."""
        return self.values[1].low  # pyright: ignore[reportAttributeAccessIssue]


def test_constructor_arguments_reach_each_subtask_with_their_types() -> None:
    agent = Configured("a", Limits(low=1), date(2020, 2, 2), "x", "y", delay=timedelta(minutes=1), extra=5)
    harness = OperatorHarness(agent, lambda record: record, parallelism=2)
    values = ["a", Limits(low=1), date(2020, 2, 2), ("x", "y"), timedelta(minutes=1), {"extra": 5}]
    assert harness.push_all(range(4)) == [values] * 4


def test_defaults_are_not_written_into_the_plan() -> None:
    harness = OperatorHarness(Configured("a", limits=Limits(low=1)))
    assert harness.plan.configuration == {"name": "a", "limits": {"low": 1, "high": 10}}
    assert harness.push(1)[0][2:] == [date(2024, 1, 1), (), timedelta(seconds=1), {}]


class Shared(Agent):
    """Has a mutable default, and an attribute that grows."""

    def __init__(self, tags: list[str] = []) -> None:  # noqa: B006
        self.tags = tags

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        self.tags.append(event.input)
        return out(list(self.tags))


def test_each_subtask_has_its_own_copy_of_a_mutable_argument() -> None:
    given = ["given"]
    for _ in range(2):
        assert OperatorHarness(Shared(given)).push("a") == [["given", "a"]]
    assert given == ["given"]


class Mutating(Agent):
    """Its constructor changes what it is given."""

    def __init__(self, tags: list[str], *more: list[str], by_name: dict[str, list[str]]) -> None:
        for changed in (tags, *more, by_name["x"]):
            changed.append("changed")
        self.values = [tags, *more, by_name["x"]]

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.values)


def test_configuration_is_what_was_passed_whatever_the_constructor_does() -> None:
    harness = OperatorHarness(Mutating(["a"], ["b"], by_name={"x": ["c"]}))
    assert harness.plan.configuration == {"tags": ["a"], "more": [["b"]], "by_name": {"x": ["c"]}}
    assert harness.push(1) == [[["a", "changed"], ["b", "changed"], ["c", "changed"]]]


class NoCopy:
    """Like a lock or a client, it cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy of this")


def test_argument_that_cannot_be_copied_is_refused_by_the_plan() -> None:
    agent = Untyped(NoCopy())
    with pytest.raises(AgentConfigurationError, match="'value' of Untyped"):
        OperatorHarness(agent)


def test_restored_operator_starts_with_the_configuration_again() -> None:
    harness = OperatorHarness(Shared(["given"]))
    snapshot = harness.snapshot()
    harness.push("a")
    harness.restore(snapshot)
    assert harness.push("b") == [["given", "b"]]


class NeedsName(Agent):
    def __init__(self, name: str) -> None:
        self.name = name

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> None: ...


def test_class_with_required_arguments_is_a_named_error() -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        OperatorHarness(NeedsName)
    assert "NeedsName" in (caught.value.where or "")
    assert "'name'" in (caught.value.found or "")


class Untyped(Agent):
    def __init__(self, value: Any) -> None:
        self.value = value

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out(self.value)


@each("value", [None, 1, 0.5, "a", True, [1, {"a": None}], {"a": [1]}])
def test_plain_json_needs_no_annotation(value: Any) -> None:
    assert OperatorHarness(Untyped(value)).push(1) == [value]


@each("value", [object(), {1: 2}, (1,), {1}, b"a", lambda: 1, Limits(low=1), float("nan"), print])
def test_argument_that_the_plan_cannot_hold_is_a_named_error(value: Any) -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        OperatorHarness(Untyped(value))
    assert "'value' of Untyped" in caught.value.message
    assert "test_api_agent.py" in (caught.value.where or "")
    assert caught.value.fix


class OwnName(Agent):
    agent_name = "own"

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return out((ctx.agent_name, self.agent_name))


class ClassName(OwnName):
    agent_name = None


def test_name_of_an_agent() -> None:
    assert OperatorHarness(OwnName).push(1) == [("own", "own")]
    assert OperatorHarness(ClassName).push(1) == [("ClassName", "ClassName")]
    assert OperatorHarness(ClassName("given")).push(1) == [("given", "given")]
    assert OperatorHarness(OwnName, name="job's").push(1) == [("job's", "job's")]


@each("name", ["", " ", 5])
def test_name_that_is_no_text_is_a_named_error(name: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="name of the agent"):
        OperatorHarness(ClassName(name))
