"""The edges of a plan's picture are what actions emit, not what their code merely mentions."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import plan_shop
from plan_shop import BigOrderPlaced, OrderPaid, OrderPlaced

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, RunnerContext, action
from flink_agents.plan import compile_agent
from flink_agents.plan.show import flow_of, to_text
from tests.suite.tables import each_case

if TYPE_CHECKING:
    from somewhere import OnlyForCheckers  # type: ignore[import-not-found] # pyright: ignore[reportMissingImports]

KIND = "OrderPaid"
HANDLERS: dict[type[Event], str] = {OrderPaid: "paid"}


class Shape:
    """A class of the project with a method that has the name of a field."""

    def score(self) -> Event:
        return OrderPaid(order_id="1")


def paid() -> Event:
    return OrderPaid(order_id="1")


# -- what is mentioned, and not emitted ----------------------------------------------


def parameter(event: OrderPaid, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=event.order_id)


def parameter_only(event: OrderPaid, ctx: RunnerContext):  # type: ignore[no-untyped-def]
    return OutputEvent(output=event.order_id)


def unannotated(event, ctx):  # type: ignore[no-untyped-def]
    return OutputEvent(output=event.order_id)


def checks(event: Any, ctx: Any) -> Any:
    if isinstance(event, OrderPaid) or isinstance(event, (OrderPlaced, OrderPaid)):
        return OutputEvent(output=1)
    return OutputEvent(output=issubclass(type(event), OrderPaid | OrderPlaced))


def checks_by_module(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=isinstance(event, plan_shop.OrderPaid))


def asserts(event: Any, ctx: Any) -> Any:
    assert isinstance(event, OrderPaid), "no OrderPaid"
    return OutputEvent(output=1)


def compares(event: Any, ctx: Any) -> Any:
    same = type(event) is OrderPaid or type(event) == OrderPaid or event.__class__ in (OrderPaid, OrderPlaced)  # noqa: E721
    return OutputEvent(output=same)


def compares_texts(event: Any, ctx: Any) -> Any:
    if event.event_type == "OrderPaid" or event.event_type in ("OrderPaid", KIND):
        return NamedEvent(type="Other")
    return OutputEvent(output=event.event_type != OrderPaid.EVENT_TYPE)


def matches(event: Any, ctx: Any) -> Any:
    match event:
        case OrderPaid(order_id=order):
            return OutputEvent(output=order)
        case _ if isinstance(event, OrderPlaced):
            return None
        case "OrderPaid":
            return None
    return OutputEvent(output=1)


def local_hints(event: Any, ctx: Any) -> Any:
    first: OrderPaid = event
    many: list[OrderPaid] = []
    nothing: OrderPaid | None  # noqa: F842

    def inner(one: OrderPaid, *more: OrderPaid) -> Any:
        return one

    return OutputEvent(output=[first, many, inner])


def casts(event: Any, ctx: Any) -> Any:
    first = cast(OrderPaid, event)
    second = cast("OrderPaid", event)
    return OutputEvent(output=[first.order_id, second.order_id])


def dispatches(event: Any, ctx: Any) -> Any:
    names = {OrderPaid: "paid", "OrderPaid": 1}
    return OutputEvent(output=[HANDLERS[type(event)], names[OrderPaid], names["OrderPaid"]])


def documented(event: Any, ctx: Any) -> Any:
    """OrderPaid"""  # noqa: D415
    return OutputEvent(output=f"OrderPaid of {event.id}")


def remembers(event: Any, ctx: Any) -> Any:
    ctx.short_term_memory.set("OrderPaid", OrderPaid(order_id="1"))
    ctx.emit_to("OrderPaid", OrderPaid(order_id="1"))
    return NamedEvent(type=ctx.short_term_memory.get("OrderPaid", "Other"))


def content(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=OrderPaid(order_id="1"))


def content_of_content(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=[{"paid": OrderPaid(order_id="1")}, *[OrderPaid(order_id="1")]])


def caught(event: Any, ctx: Any) -> Any:
    try:
        return OutputEvent(output=1)
    except (ValueError, cast("Any", OrderPaid)) as error:
        raise RuntimeError("OrderPaid") from error


def reads_event(event: Any, ctx: Any) -> Any:
    shape = Shape
    return OutputEvent(output=[event.score, event.score.score, shape])


def says_nothing(event: Any, ctx: Any) -> None:
    ctx.short_term_memory.set("last", paid().id)


def says_output(event: Any, ctx: Any) -> OutputEvent:
    last = paid()
    return OutputEvent(output=last.id)


def says_outputs(event: Any, ctx: Any) -> Iterator[OutputEvent | None]:
    yield OutputEvent(output=paid().id)


async def says_outputs_async(event: Any, ctx: Any) -> AsyncIterator[OutputEvent]:
    yield OutputEvent(output=paid().id)


NOTHING: list[Callable[..., Any]] = [
    parameter,
    parameter_only,
    unannotated,
    checks,
    checks_by_module,
    asserts,
    compares,
    compares_texts,
    matches,
    local_hints,
    casts,
    dispatches,
    documented,
    remembers,
    content,
    content_of_content,
    caught,
    reads_event,
]
"""Emit something else than ``OrderPaid`` on every way."""

DECLARED: list[Callable[..., Any]] = [says_nothing, says_output, says_outputs, says_outputs_async]
"""Say by their annotation that they emit no ``OrderPaid``, which they make for themselves."""


# -- what is emitted -----------------------------------------------------------------


def returns(event: OrderPaid | OrderPlaced, ctx: Any) -> Any:
    if isinstance(event, OrderPlaced):
        return OrderPaid(order_id="1")


def returns_beside_its_annotation(event: Any, ctx: Any) -> OutputEvent:
    return OrderPaid(order_id="1")  # type: ignore[return-value] # pyright: ignore[reportReturnType]


def sends_beside_its_annotation(event: Any, ctx: Any) -> OutputEvent:
    ctx.send_event(OrderPaid(order_id="1"))
    return OutputEvent(output=1)


def sends_by_helper(event: Any, ctx: Any) -> None:
    send(ctx)


def send(ctx: Any) -> None:
    ctx.send_event(OrderPaid(order_id="1"))


def sends_inside_of_content(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=send(ctx))


def yields(event: Any, ctx: Any) -> Iterator[Event]:
    yield OrderPaid(order_id="1")


def annotated(event: Any, ctx: Any) -> OrderPaid: ...  # type: ignore[empty-body]


def annotated_list(event: Any, ctx: Any) -> list[OrderPaid | None]: ...  # type: ignore[empty-body]


def annotated_as_text(event: Any, ctx: Any) -> plan_shop.OrderPaid | None: ...


def annotated_for_checkers(event: OnlyForCheckers, ctx: Any) -> OrderPaid: ...  # type: ignore[empty-body]


def annotated_open(event: Any, ctx: Any) -> Event:
    return paid()


def by_helper(event: Any, ctx: Any) -> Any:
    paid_event = paid()
    return paid_event


def by_annotated_helper(event: Any, ctx: Any) -> Any:
    return stub()


def stub() -> OrderPaid: ...  # type: ignore[empty-body]


def by_local_name(event: Any, ctx: Any) -> Any:
    kind = OrderPaid
    return kind(order_id="1")


def by_class_method(event: Any, ctx: Any) -> Any:
    return OrderPaid.model_validate({"order_id": "1"})


def by_copy(event: Any, ctx: Any) -> Any:
    return OrderPaid.model_construct(order_id=event.order_id).model_copy()


def by_argument(event: Any, ctx: Any) -> Any:
    return make(OrderPaid)


def make(kind: type[Event]) -> Event:
    return kind()


def by_object(event: Any, ctx: Any) -> Any:
    return Shape().score()


def by_text(event: Any, ctx: Any) -> Any:
    return NamedEvent(type="OrderPaid")


def by_named_text(event: Any, ctx: Any) -> Any:
    return NamedEvent(type=KIND, attributes={})


def by_type_of_class(event: Any, ctx: Any) -> Any:
    return NamedEvent(type=OrderPaid.EVENT_TYPE)


def by_lambda() -> Callable[..., Any]:
    return lambda event, ctx: OrderPaid(order_id="1")


def by_durable_call(event: Any, ctx: Any) -> Any:
    return ctx.durable_execute(paid)


EMITTED: list[Callable[..., Any]] = [
    returns,
    returns_beside_its_annotation,
    sends_beside_its_annotation,
    sends_by_helper,
    sends_inside_of_content,
    yields,
    annotated,
    annotated_list,
    annotated_as_text,
    annotated_for_checkers,
    annotated_open,
    by_helper,
    by_annotated_helper,
    by_local_name,
    by_class_method,
    by_copy,
    by_argument,
    by_object,
    by_text,
    by_named_text,
    by_type_of_class,
    by_lambda(),
    functools.partial(returns),
    by_durable_call,
]


def finish(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=1)


def start(event: Any, ctx: Any) -> Any:
    return OrderPaid(order_id="1")


def edges(function: Callable[..., Any]) -> set[str]:
    """Where the edges of an action lead that handles one of the events."""
    agent = Agent(name="a").add_action("start", InputEvent, start)
    agent.add_action("act", OrderPaid, function).add_action("end", "OrderPaid", finish)
    plan = compile_agent(agent)
    return {target for source, target in flow_of(plan).edges if source == "action:act"}


@each_case("function", [*NOTHING, *DECLARED])
def test_what_is_only_mentioned_is_no_edge(function: Callable[..., Any]) -> None:
    assert "event:OrderPaid" not in edges(function)


@each_case("function", NOTHING)
def test_what_a_helper_only_mentions_is_no_edge(function: Callable[..., Any]) -> None:
    def asks(event: Any, ctx: Any) -> Any:
        return function(event, ctx)

    assert "event:OrderPaid" not in edges(asks)


@each_case("function", EMITTED)
def test_what_is_emitted_is_an_edge(function: Callable[..., Any]) -> None:
    def asks(event: Any, ctx: Any) -> Any:
        return function(event, ctx)

    for emitter in (function, asks):
        assert "event:OrderPaid" in edges(emitter)


@each_case("function", [*NOTHING, *DECLARED])
def test_an_event_that_is_only_mentioned_may_still_be_waited_for(function: Callable[..., Any]) -> None:
    """Whether a trigger is an error is decided by what may be emitted, not by the picture."""
    agent = Agent(name="a").add_action("act", [InputEvent, OrderPaid], function, emits=[OrderPaid])
    plan = compile_agent(agent.add_action("end", OrderPaid, finish))
    assert "OrderPaid" in plan.actions[0].emits


def test_a_subclass_of_what_is_annotated_is_an_edge() -> None:
    def act(event: Any, ctx: Any) -> OrderPlaced:
        return make_big()

    def make_big() -> OrderPlaced:
        return BigOrderPlaced(order_id="1", total=1)

    assert edges(act) == {"event:OrderPlaced", "event:BigOrderPlaced"}


class Scored(Event):
    score: float
    make: str = ""


class Scores(Agent):
    """Names of fields are names of methods."""

    @action(InputEvent)
    def score(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return self.make(event.input)

    @action(Scored)
    def update(self, event, ctx):  # type: ignore[no-untyped-def]
        total = ctx.short_term_memory.get("score", 0) + event.score
        return OutputEvent(output=[total, event.make, describe(event)])

    @action(Scored)
    async def announce(self, event: Scored, ctx: RunnerContext) -> Any:
        return OutputEvent(output=describe(event))

    def make(self, score: float) -> Any:
        return Scored(score=score)


def describe(scored: Any) -> str:
    return f"{scored.score} {scored.make}"


class Derived(Scores):
    def make(self, score: float) -> Any:
        return super().make(score)


@each_case("agent", [Scores, Derived])
def test_a_field_is_no_method_of_the_agent(agent: type[Agent]) -> None:
    emits = {plan_action.name: plan_action.emits for plan_action in compile_agent(agent).actions}
    assert emits == {"score": ("Scored",), "update": ("_output_event",), "announce": ("_output_event",)}


class Handed(Agent):
    """The agent is given to a function, which calls a method of it."""

    @action(InputEvent)
    def read(self, event: Any, ctx: Any) -> Any:
        return ask(self)

    @action(Scored)
    def end(self, event: Any, ctx: Any) -> Any:
        return OutputEvent(output=1)

    def answer(self) -> Any:
        return Scored(score=1)


def ask(agent: Any) -> Any:
    return agent.answer()


def test_a_method_of_an_agent_that_is_passed_on_is_followed() -> None:
    assert compile_agent(Handed).actions[0].emits == ("Scored",)


def test_text_shows_what_is_emitted() -> None:
    agent = Agent(name="a").add_action("start", InputEvent, start).add_action("act", OrderPaid, checks)
    assert "act    OrderPaid -> OutputEvent" in to_text(compile_agent(agent))


def test_nothing_is_claimed_of_code_without_source() -> None:
    names: dict[str, Any] = {"OrderPaid": OrderPaid, "__name__": __name__}
    exec("def act(event, ctx):\n    return OrderPaid(order_id='1')", names)
    agent = Agent(name="a").add_action("act", InputEvent, names["act"]).add_action("end", OrderPaid, finish)
    first = compile_agent(agent).actions[0]
    assert (first.emits, first.opaque) == ((), True)
