"""One agent in every form gives one plan; what a class says about actions ends up in it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plan_shop
from plan_cases import answer
from plan_shop import BigOrderPlaced, Limits, OrderPlaced, ShopAgent, ShopContext, shop

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, action, tool
from flink_agents.plan import ActionPlan, AgentPlan, LoadedAgent, compile_agent, load_target, load_yaml
from tests.suite.tables import each_case

if TYPE_CHECKING:
    from decimal import Decimal

YAML = Path(__file__).with_name("shop.yaml")


class Greeter(Agent):
    @action(InputEvent)
    def greet(self, event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


def finish(event: Any, ctx: Any) -> None: ...


def actions(agent: Any) -> dict[str, ActionPlan]:
    return {plan_action.name: plan_action for plan_action in compile_agent(agent).actions}


# -- forms ------------------------------------------------------------------------------------


@each_case(
    "make",
    [
        lambda: compile_agent(shop()),
        lambda: compile_agent(ShopAgent(limits=Limits(credit=500))),
        lambda: compile_agent(load_yaml(YAML)["ShopAgent"]),
        lambda: compile_agent(LoadedAgent(compile_agent(shop())).instance),
        lambda: AgentPlan.from_json(compile_agent(shop()).to_json()),
        lambda: load_target(f"{YAML}:ShopAgent"),
    ],
    ids=["instance", "keywords", "yaml", "bound", "json", "target"],
)
def test_every_form_of_a_class_gives_one_plan(make: Callable[[], AgentPlan]) -> None:
    assert make() == compile_agent(shop())
    assert make().fingerprint == compile_agent(shop()).fingerprint


def test_class_and_instance_give_one_plan() -> None:
    assert compile_agent(Greeter) == compile_agent(Greeter())


@each_case("target", [f"{YAML}:Orders", "plan_shop:built"])
def test_builder_and_yaml_give_one_plan(target: str) -> None:
    plan = load_target(target)
    assert plan == compile_agent(plan_shop.builder())
    assert (plan.name, plan.agent_class, plan.configuration) == ("Orders", None, {})


def test_all_that_an_agent_declares_is_in_the_plan() -> None:
    plan = compile_agent(shop())
    assert str(plan.agent_class) == "plan_shop:ShopAgent"
    assert plan.context_class and plan.context_class.resolve() is ShopContext
    assert plan.side_outputs == {"late": "plan_shop:Receipt", "notes": "str"}
    assert plan.output_type == "plan_shop:Receipt"
    assert (plan.on_error, plan.on_unhandled) == ("dead-letter", "ignore")
    assert [plan_action.name for plan_action in plan.actions] == ["read_order", "book", "approve", "thank"]
    assert [(event.type, event.bases) for event in plan.events] == [
        ("BigOrderPlaced", ("OrderPlaced",)),
        ("Event", ()),
        ("OrderPaid", ()),
        ("OrderPlaced", ()),
        ("_input_event", ()),
        ("_output_event", ()),
    ]


def test_resources_are_described() -> None:
    rate, double, greeting, local, clerk = compile_agent(shop()).resources
    assert (rate.name, rate.kind, rate.description) == (
        "rate",
        "instance",
        "The amount in the currency of the shop.",
    )
    assert rate.parameters and rate.parameters["required"] == ["amount"]
    assert (double.name, double.kind, double.description) == ("double", "static", "Twice the amount.")
    assert greeting.prompt and greeting.prompt.variables == {"customer", "total"}
    assert local.descriptor and local.descriptor.arguments == {"host": "localhost"}
    assert [(reference.type.value, reference.name) for reference in clerk.references] == [
        ("chat_model_connection", "local"),
        ("prompt", "greeting"),
        ("tool", "rate"),
        ("tool", "double"),
    ]


def test_the_name_is_given_declared_or_that_of_the_class() -> None:
    class Named(Greeter):
        agent_name = "named"

    assert compile_agent(Greeter).name == "Greeter"
    assert compile_agent(Greeter("mine")).name == "mine"
    assert compile_agent(Named).name == "named"
    assert compile_agent(Named, "other").name == "other"


# -- kinds of functions -----------------------------------------------------------------------


class Kinds(Agent):
    @action(InputEvent)
    def method(self, event: Any, ctx: Any) -> None: ...

    @action(InputEvent)
    @staticmethod
    def static_below(event: Any, ctx: Any) -> None: ...

    @staticmethod
    @action(InputEvent)
    def static_above(event: Any, ctx: Any) -> None: ...

    @action(InputEvent)
    async def coroutine(self, event: Any, ctx: Any) -> None: ...

    @action(InputEvent)
    def generator(self, event: Any, ctx: Any) -> Iterator[Event]:
        yield OutputEvent(output=1)

    @action(InputEvent)
    async def async_generator(self, event: Any, ctx: Any) -> AsyncIterator[Event]:
        yield OutputEvent(output=1)


@each_case(
    ("name", "kind", "is_async", "is_generator", "is_async_generator"),
    [
        ("method", "instance", False, False, False),
        ("static_below", "static", False, False, False),
        ("static_above", "static", False, False, False),
        ("coroutine", "instance", True, False, False),
        ("generator", "instance", False, True, False),
        ("async_generator", "instance", True, False, True),
    ],
)
def test_kinds(name: str, kind: str, is_async: bool, is_generator: bool, is_async_generator: bool) -> None:
    plan = compile_agent(Kinds)
    compiled = next(plan_action for plan_action in plan.actions if plan_action.name == name)
    bound = next(bound_action for bound_action in LoadedAgent(plan).actions if bound_action.name == name)
    assert (compiled.kind, compiled.is_async) == (kind, is_async)
    assert (bound.is_async, bound.is_generator, bound.is_async_generator) == (
        is_async,
        is_generator,
        is_async_generator,
    )


def test_a_wrapped_action_keeps_its_mark_and_its_place() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    class Greeter(Agent):
        @logged
        @action(InputEvent)
        def greet(self, event: Any, ctx: Any) -> None: ...

    assert actions(Greeter)["greet"].function.qualname.endswith("Greeter.greet")


# -- inheritance ------------------------------------------------------------------------------


class Parent(Agent):
    @action(InputEvent, config={"a": 1})
    def first(self, event: Any, ctx: Any) -> Any:
        return "parent"

    @action(InputEvent)
    def second(self, event: Any, ctx: Any) -> None: ...

    @tool
    def rate(self) -> int:
        return 1


class Mixin:
    @action(InputEvent)
    def mixed(self, event: Any, ctx: Any) -> Any:
        return "mixin"


class Child(Mixin, Parent):
    @action(InputEvent)
    def third(self, event: Any, ctx: Any) -> None: ...

    def first(self, event: Any, ctx: Any) -> Any:
        return "child"


class Remarked(Parent):
    @action(InputEvent, name="renamed", config={"b": 2})
    def first(self, event: Any, ctx: Any) -> Any:
        return "remarked"


class Without(Parent):
    second = None  # pyright: ignore[reportAssignmentType]
    rate = None  # pyright: ignore[reportAssignmentType]


def test_actions_are_inherited_in_order_and_mixed_in() -> None:
    assert list(actions(Child)) == ["first", "second", "mixed", "third"]
    assert [resource.name for resource in compile_agent(Child).resources] == ["rate"]


def test_an_override_without_mark_keeps_triggers_and_config() -> None:
    first = actions(Child)["first"]
    assert (first.triggers, first.config) == (("_input_event",), {"a": 1})
    assert str(first.function) == "test_plan_forms:Child.first"
    bound = {bound_action.name: bound_action for bound_action in LoadedAgent(compile_agent(Child)).actions}
    assert bound["first"].call(InputEvent(input=1), None) == "child"  # pyright: ignore[reportArgumentType]
    assert bound["mixed"].call(InputEvent(input=1), None) == "mixin"  # pyright: ignore[reportArgumentType]


def test_an_override_with_a_mark_replaces_it() -> None:
    assert list(actions(Remarked)) == ["renamed", "second"]
    assert actions(Remarked)["renamed"].config == {"b": 2}


def test_none_removes_an_action_and_a_resource() -> None:
    assert list(actions(Without)) == ["first"]
    assert compile_agent(Without).resources == ()


def test_actions_added_to_an_instance_follow_those_of_the_class() -> None:
    agent = Parent().add_action("added", [InputEvent], answer, when=lambda event: True, limit=3)
    compiled = actions(agent)
    assert list(compiled) == ["first", "second", "added"]
    assert (compiled["added"].kind, compiled["added"].config) == ("function", {"limit": 3})
    assert list(actions(Parent())) == ["first", "second"]


def test_odd_class_attributes_are_no_actions() -> None:
    class Anything:
        def __getattr__(self, name: str) -> str:
            return name

    class Shop(Parent):
        client = Anything()

    assert list(actions(Shop)) == ["first", "second"]


# -- triggers and conditions ------------------------------------------------------------------


class Overlap(Agent):
    @action(InputEvent)
    def read(self, event: Any, ctx: Any) -> BigOrderPlaced | OrderPlaced | NamedEvent:
        return NamedEvent(type="order")

    @action(OrderPlaced, BigOrderPlaced, "OrderPlaced", "order", OrderPlaced)
    def both(self, event: Any, ctx: Any) -> None: ...

    @action("OrderPlaced")
    def exact(self, event: Any, ctx: Any) -> None: ...

    @action(Event)
    def all(self, event: Any, ctx: Any) -> None: ...

    @action("Event", "_input_event")
    def all_by_name(self, event: Any, ctx: Any) -> None: ...


@each_case(
    ("name", "classes", "types"),
    [
        ("both", ("OrderPlaced", "BigOrderPlaced"), ("OrderPlaced", "order")),
        ("exact", (), ("OrderPlaced",)),
        ("all", ("Event",), ()),
        ("all_by_name", ("Event", "_input_event"), ()),
    ],
)
def test_triggers_by_class_and_by_name(name: str, classes: tuple[str, ...], types: tuple[str, ...]) -> None:
    compiled = actions(Overlap)[name]
    assert (compiled.trigger_classes, compiled.trigger_types) == (classes, types)
    assert compiled.triggers == tuple(dict.fromkeys(classes + types))


def test_bound_triggers_keep_both_sides_of_an_overlap() -> None:
    both = next(
        bound_action
        for bound_action in LoadedAgent(compile_agent(Overlap)).actions
        if bound_action.name == "both"
    )
    assert both.trigger_classes == (OrderPlaced, BigOrderPlaced)
    assert both.trigger_types == {"OrderPlaced", "order"}


limit = 5


class Conditions(Agent):
    @action(InputEvent, when=lambda event: event.input["kind"] == "a  b")
    def spaces(self, event: Any, ctx: Any) -> None: ...

    @action(
        InputEvent,
        when=lambda event: event.input > limit,
    )
    def several_lines(self, event: Any, ctx: Any) -> None: ...

    # fmt: off
    one = staticmethod(action(InputEvent, when=lambda event: event.input > 1)(finish)); two = lambda: 2  # noqa: E702, E731
    # fmt: on

    @action(InputEvent, when=plan_shop.is_large)
    def named(self, event: Any, ctx: Any) -> None: ...


def test_conditions_are_shown_as_their_source() -> None:
    texts = {plan_action.name: str(plan_action.when) for plan_action in compile_agent(Conditions).actions}
    assert texts == {
        "spaces": "lambda event: event.input['kind'] == 'a  b'",
        "several_lines": "lambda event: event.input > limit",
        "one": "lambda event: event.input > 1",
        "named": "is_large",
    }


def test_a_condition_with_a_closure_is_shown_too() -> None:
    least = 3
    agent = Agent(name="a").add_action("x", InputEvent, answer, when=lambda event: event.input > least)
    assert str(compile_agent(agent).actions[0].when) == "lambda event: event.input > least"


def test_a_condition_without_source_is_shown_by_name() -> None:
    when = eval("lambda event: True")
    assert str(compile_agent(Agent(name="a").add_action("x", InputEvent, answer, when=when)).actions[0].when)


# -- configuration ----------------------------------------------------------------------------


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Settings(Greeter):
    def __init__(
        self,
        path: Path,
        *rest: int,
        color: Color = Color.RED,
        pair: tuple[int, str] = (1, "a"),
        names: set[str] | None = None,
        point: Point | None = None,
        pause: timedelta = timedelta(0),
        limits: Limits | None = None,
        plain: Any = None,
        **more: float,
    ) -> None:
        super().__init__()
        self.all = (path, rest, color, pair, names, point, pause, limits, plain, more)


@each_case(
    ("make", "written"),
    [
        (lambda: Settings(Path("a/b")), {"path": "a/b"}),
        (lambda: Settings(Path("a"), 1, 2), {"path": "a", "rest": [1, 2]}),
        (lambda: Settings(path=Path("a"), color=Color.RED), {"path": "a", "color": "red"}),
        (lambda: Settings(Path("a"), pair=(2, "b")), {"path": "a", "pair": [2, "b"]}),
        (lambda: Settings(Path("a"), names={"n"}), {"path": "a", "names": ["n"]}),
        (lambda: Settings(Path("a"), point=Point(1)), {"path": "a", "point": {"x": 1, "y": 0}}),
        (lambda: Settings(Path("a"), pause=timedelta(seconds=90)), {"path": "a", "pause": "PT1M30S"}),
        (
            lambda: Settings(Path("a"), limits=Limits(credit=1)),
            {"path": "a", "limits": {"credit": 1.0, "currency": "EUR"}},
        ),
        (
            lambda: Settings(Path("a"), plain={"a": [1, None, "ä"]}),
            {"path": "a", "plain": {"a": [1, None, "ä"]}},
        ),
        (lambda: Settings(Path("a"), x=1.5), {"path": "a", "more": {"x": 1.5}}),
        (lambda: Settings(Path("a"), plain=2**70), {"path": "a", "plain": 2**70}),
    ],
)
def test_constructor_arguments_come_back_with_their_types(
    make: Callable[[], Settings], written: dict[str, Any]
) -> None:
    plan = compile_agent(make())
    assert plan.configuration == written
    restored = LoadedAgent(AgentPlan.from_json(plan.to_json())).instance
    assert isinstance(restored, Settings)
    assert restored.all == make().all


def test_annotations_that_cannot_be_read_leave_plain_json() -> None:
    class Priced(Greeter):
        def __init__(self, price: Decimal) -> None:
            super().__init__()

    assert compile_agent(Priced(3)).configuration == {"price": 3}  # type: ignore[arg-type]


def test_an_agent_may_be_a_dataclass() -> None:
    @dataclasses.dataclass
    class Limited(Greeter):
        limit: int

    assert compile_agent(Limited(3)).configuration == {"limit": 3}


def test_a_constructor_may_add_actions() -> None:
    class Greeter(Agent):
        def __init__(self, names: list[str]) -> None:
            for name in names:
                self.add_action(name, InputEvent, answer)

    plan = compile_agent(Greeter(["a", "b"]))
    assert [plan_action.name for plan_action in plan.actions] == ["a", "b"]
