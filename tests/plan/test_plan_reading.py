"""Which events an action can emit is found by reading its code and what it leads to."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

import plan_shop
import pytest
from plan_shop import BigOrderPlaced, OrderPaid, OrderPlaced

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import EventNeverEmittedError, UnknownTriggerError
from flink_agents.plan import compile_agent
from flink_agents.plan.analysis import reading as reading_module
from flink_agents.plan.analysis.reading import read
from tests.suite.tables import each_case

PAID = {"OrderPaid"}
REGISTRY = {"paid": [OrderPaid]}
KIND = "OrderPaid"


class Maker:
    event = OrderPaid

    def make(self) -> Any:
        return self.event(order_id="1")

    @property
    def made(self) -> Any:
        return self.make()

    @classmethod
    def of(cls) -> Any:
        return cls().made

    def __call__(self, event: Any, ctx: Any) -> Any:
        return self.make()


maker = Maker()


def make_paid() -> Any:
    return OrderPaid(order_id="1")


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


def returns(event: Any, ctx: Any) -> Any:
    return OrderPaid(order_id="1")


def sends(event: Any, ctx: RunnerContext) -> None:
    ctx.send_event(OrderPaid(order_id="1"))


def yields(event: Any, ctx: Any) -> Iterator[Event]:
    yield OrderPaid(order_id="1")


async def awaits(event: Any, ctx: Any) -> Any:
    return [OrderPaid(order_id="1") for _ in range(2)]


def annotated(event: Any, ctx: Any) -> list[OrderPaid | None]: ...


def annotated_beside_an_unknown_type(event: Nowhere, ctx: Any) -> OrderPaid: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable]


def by_helper(event: Any, ctx: Any) -> Any:
    return make_paid()


def by_nested(event: Any, ctx: Any) -> Any:
    def inner() -> Any:
        return make_paid()

    return inner()


def by_module(event: Any, ctx: Any) -> Any:
    return plan_shop.OrderPaid(order_id="1")


def by_import(event: Any, ctx: Any) -> Any:
    from plan_shop import OrderPaid as Paid

    return Paid(order_id="1")


def by_registry(event: Any, ctx: Any) -> Any:
    return REGISTRY["paid"][0](order_id="1")


def by_object(event: Any, ctx: Any) -> Any:
    return maker.make()


def by_property(event: Any, ctx: Any) -> Any:
    return maker.made


def by_class_method(event: Any, ctx: Any) -> Any:
    return Maker.of()


def by_default(event: Any, ctx: Any, kind: type[Event] = OrderPaid) -> Any:
    return kind(order_id="1")  # type: ignore[call-arg]


def by_text(event: Any, ctx: Any) -> Any:
    return NamedEvent(type="OrderPaid")


def by_constant(event: Any, ctx: Any) -> Any:
    return NamedEvent(type=KIND)


@wrapped
def decorated(event: Any, ctx: Any) -> Any:
    return make_paid()


def with_closure() -> Callable[..., Any]:
    kind = OrderPaid
    return lambda event, ctx: kind(order_id="1")


def finish(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=1)


EMITTERS = [
    returns,
    sends,
    yields,
    awaits,
    annotated,
    annotated_beside_an_unknown_type,
    by_helper,
    by_nested,
    by_module,
    by_import,
    by_registry,
    by_object,
    by_property,
    by_class_method,
    by_default,
    by_text,
    by_constant,
    decorated,
    with_closure(),
    functools.partial(by_default, kind=OrderPaid),
    maker,
    maker.make,
]


@each_case("function", EMITTERS)
def test_what_an_action_emits_is_found(function: Any) -> None:
    def call(event: Any, ctx: Any) -> Any:
        return function() if function == maker.make else function(event, ctx)

    for emitter in {function, call} - {maker.make}:
        agent = (
            Agent(name="a").add_action("start", InputEvent, emitter).add_action("end", "OrderPaid", finish)
        )
        assert compile_agent(agent).actions[0].emits == ("OrderPaid",)


@each_case("function", EMITTERS[:-1])
def test_a_trigger_by_class_needs_a_class(function: Any) -> None:
    agent = Agent(name="a").add_action("start", InputEvent, function).add_action("end", OrderPaid, finish)
    if function in (by_text, by_constant):
        with pytest.raises(EventNeverEmittedError):
            compile_agent(agent)
    else:
        compile_agent(agent)


class ByMethods(Agent):
    kind = OrderPaid

    def __init__(self) -> None:
        super().__init__()
        self.other = Maker()

    @action(InputEvent)
    def own_method(self, event: Any, ctx: Any) -> Any:
        return self._make()

    @action(InputEvent)
    def own_attribute(self, event: Any, ctx: Any) -> Any:
        return self.kind(order_id="1")

    @action(InputEvent)
    def object_of_the_constructor(self, event: Any, ctx: Any) -> Any:
        return self.other.made

    @action(InputEvent)
    def nothing(self, event: Any, ctx: Any) -> Any:
        return None

    @action(OrderPaid)
    def end(self, event: Any, ctx: Any) -> Any:
        return OutputEvent(output=1)

    def _make(self) -> Any:
        return make_paid()


def test_methods_attributes_and_objects_of_the_agent_are_followed() -> None:
    emits = {plan_action.name: plan_action.emits for plan_action in compile_agent(ByMethods).actions}
    assert emits == {
        "own_method": ("OrderPaid",),
        "own_attribute": ("OrderPaid",),
        "object_of_the_constructor": ("OrderPaid",),
        "nothing": (),
        "end": ("_output_event",),
    }


def test_a_method_of_the_context_class_may_emit() -> None:
    class Context(RunnerContext):
        def pay(self) -> None:
            self.send_event(OrderPaid(order_id="1"))

    class Shop(Agent):
        context_class = Context

        @action(InputEvent)
        def read(self, event: Any, ctx: Any) -> None:
            ctx.pay()

        @action(OrderPaid)
        def end(self, event: Any, ctx: Any) -> None: ...

    assert compile_agent(Shop).actions[0].emits == ("OrderPaid",)


def test_a_subclass_satisfies_the_trigger_of_its_base_but_not_the_reverse() -> None:
    def big(event: Any, ctx: Any) -> BigOrderPlaced: ...

    def small(event: Any, ctx: Any) -> OrderPlaced: ...

    def agent(function: Any, trigger: Any) -> Agent:
        return Agent(name="a").add_action("start", InputEvent, function).add_action("end", trigger, finish)

    compile_agent(agent(big, OrderPlaced))
    for function, trigger in ((small, BigOrderPlaced), (big, "OrderPlaced")):
        with pytest.raises((EventNeverEmittedError, UnknownTriggerError)):
            compile_agent(agent(function, trigger))


def silent(event: Any, ctx: Any) -> None: ...


@each_case(("emits", "trigger"), [([OrderPaid], OrderPaid), (["paid"], "paid")])
def test_what_no_code_names_is_declared(emits: Any, trigger: Any) -> None:
    agent = Agent(name="a").add_action("start", InputEvent, silent, emits=emits)
    agent.add_action("end", trigger, finish)
    plan = compile_agent(agent)
    assert plan.actions[0].emits == plan.actions[1].triggers


def test_installed_and_built_in_code_is_not_read() -> None:
    def encodes(event: Any, ctx: Any) -> Any:
        import json

        return json.dumps(event)

    for reading in read(encodes):
        assert reading.events == set()
        assert not reading.opaque


class Unrelated(Event):
    """Emitted by code that no action leads to."""


def emit_unrelated(ctx: RunnerContext) -> None:
    ctx.send_event(Unrelated())


def module_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a module that emits an unrelated event in each of its functions."""
    module = ModuleType(name)
    vars(module).update(dict.fromkeys(("append", "emit", "get", "set"), emit_unrelated))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_module_with_the_name_of_an_attribute_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(event: OrderPlaced, ctx: RunnerContext) -> None:
        totals = ctx.short_term_memory
        totals.set("count", totals.get("count", 0) + 1)

    for name in ("short_term_memory", "totals", "count", f"{__package__ or 'tests'}.set"):
        module_of_its_own(name, monkeypatch)
    for emitted in read(counts):
        assert Unrelated not in emitted.events


def test_a_module_that_a_function_imports_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(event: OrderPlaced, ctx: RunnerContext) -> None:
        import imported_here  # pyright: ignore[reportMissingImports]

        imported_here.emit(ctx)

    def imports_from(event: OrderPlaced, ctx: RunnerContext) -> None:
        from imported_here import emit  # pyright: ignore[reportMissingImports]

        emit(ctx)

    module_of_its_own("imported_here", monkeypatch)
    assert Unrelated in read(imports).shown.events
    assert Unrelated in read(imports_from).shown.events


def test_this_package_is_not_read_for_an_agent_that_is_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = FunctionType(emit_unrelated.__code__, globals(), "foreign")
    foreign.__module__ = "flink_agents.testing"
    monkeypatch.setitem(globals(), "foreign", foreign)

    def uses_the_package(event: OrderPlaced, ctx: RunnerContext) -> None:
        foreign(ctx)

    for emitted in read(uses_the_package):
        assert Unrelated not in emitted.events


def foreign(ctx: RunnerContext) -> None:
    """A function of this package, in one test."""


def test_nothing_is_claimed_of_code_that_cannot_be_read() -> None:
    assert read(divmod).possible.opaque
    agent = Agent(name="a").add_action("start", InputEvent, divmod).add_action("end", OrderPaid, finish)
    assert [plan_action.emits for plan_action in compile_agent(agent).actions] == [(), ("_output_event",)]


STEP = "durable_execute"


def steps(context: Any, number: int) -> Any:
    return getattr(context, STEP)(number)


def steps_of_any(*arguments: Any) -> Any:
    return steps(*arguments)


def steps_of_named(**arguments: Any) -> Any:
    return steps(**arguments)


def steps_by_name(*, context: Any) -> Any:
    return steps(context, 1)


def steps_second(number: int, context: Any) -> Any:
    return steps(context, number)


steps_with_number = functools.partial(steps_second, 1)


class Stepper:
    def step(self, context: Any, number: int) -> Any:
        return steps(context, number)

    def inherited(self, event: Any, context: Any) -> Any:
        return getattr(context, "durable_execute")(1)  # noqa: B009


stepper = Stepper()


class Overriding(Stepper):
    def inherited(self, event: Any, context: Any) -> Any:
        return Stepper.inherited(self, event, context)


@each_case(
    "function",
    [
        lambda event, ctx: getattr(ctx, "durable_execute")(1),  # noqa: B009
        lambda event, ctx: getattr(ctx, STEP)(1),
        lambda event, ctx: cast("Any", ctx),
        lambda event, ctx: eval("ctx"),
        lambda event, ctx: event.getattr(ctx),
        lambda event, ctx: getattr(*event, **ctx),
        lambda event, ctx: steps(ctx, 1),
        lambda event, ctx: steps_of_any(ctx, 1),
        lambda event, ctx: steps_of_named(context=ctx, number=1),
        lambda event, ctx: steps_by_name(context=ctx),
        lambda event, ctx: steps_with_number(ctx),
        lambda event, ctx: stepper.step(ctx, 1),
        lambda event, ctx: Stepper().step(ctx, 1),
        lambda event, ctx: Stepper.step(stepper, ctx, 1),
        Overriding().inherited,
        functools.partial(steps_second, 1),
    ],
)
def test_steps_that_are_reached_in_other_ways_than_by_their_names_are_possible(function: Any) -> None:
    shown = read(function).shown
    assert shown.opaque or shown.calls


def test_what_only_inspects_the_context_is_not_opaque() -> None:
    def inspects(event: Any, ctx: Any) -> Any:
        return isinstance(ctx, RunnerContext) and hasattr(ctx, STEP) and getattr(ctx, "key")  # noqa: B009

    assert not read(inspects).shown.opaque


def test_nothing_is_claimed_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "_MAX_FUNCTIONS", 1)
    assert read(by_helper).possible.opaque
    assert not read(returns).possible.opaque
