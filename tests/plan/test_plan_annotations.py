"""Annotations of actions, and events that nobody takes: found when the plan is compiled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any, Protocol

import pytest
from pydantic import BaseModel

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, RunnerContext
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError
from flink_agents.plan import compile_agent
from tests.suite.tables import each_case


class Placed(Event):
    number: str


class BigPlaced(Placed):
    pass


class Paid(Event):
    number: str


class Order(BaseModel):
    number: str


class OwnContext(RunnerContext):
    pass


class HasInput(Protocol):
    input: Any


def begin(event: InputEvent, ctx: RunnerContext) -> Placed:
    return Placed(number="1")


def agent(function: Callable[..., Any], trigger: Any = Placed, **settings: Any) -> Agent:
    return (
        Agent(name="a", **settings)
        .add_action("begin", InputEvent, begin)
        .add_action("act", trigger, function)
    )


def swapped(event: RunnerContext, ctx: Placed) -> None: ...
def event_is_input(event: InputEvent, ctx: RunnerContext) -> None: ...
def event_is_another(event: Paid, ctx: Any) -> None: ...
def event_is_record(event: Order, ctx: Any) -> None: ...
def event_is_text(event: str, ctx: Any) -> None: ...
def event_is_none_of(event: InputEvent | Paid, ctx: Any) -> None: ...
def context_is_dict(event: Placed, ctx: dict[str, Any] | None) -> None: ...
def context_is_text(event: Placed, ctx: str) -> None: ...
def context_is_own(event: Placed, ctx: OwnContext) -> None: ...
def result_is_text(event: Placed, ctx: Any) -> str: ...  # type: ignore[empty-body]
def result_is_dict(event: Placed, ctx: Any) -> dict: ...  # type: ignore[type-arg, empty-body]
def result_is_model(event: Placed, ctx: Any) -> Order: ...  # type: ignore[empty-body]
def result_may_be_text(event: Placed, ctx: Any) -> OutputEvent | str: ...  # type: ignore[empty-body]
def result_is_list(event: Placed, ctx: Any) -> list[Order]: ...  # type: ignore[empty-body]
def result_is_flag(event: Placed, ctx: Any) -> bool | None: ...
async def result_is_awaited(event: Placed, ctx: Any) -> int: ...  # type: ignore[empty-body]
async def yields_texts(event: Placed, ctx: Any) -> AsyncIterator[str]:
    yield "a"


WRONG: dict[Callable[..., Any], str] = {
    swapped: "'ctx', the context, as Placed",
    event_is_input: "'event', the event, as InputEvent",
    event_is_another: "'event', the event, as Paid",
    event_is_record: "'event', the event, as Order",
    event_is_text: "'event', the event, as str",
    event_is_none_of: "'event', the event, as",
    context_is_text: "'ctx', the context, as str",
    context_is_own: "'ctx', the context, as OwnContext",
    result_is_text: "returns str",
    result_is_dict: "returns dict",
    result_is_model: "returns Order",
    result_may_be_text: "returns .*str",
    result_is_list: "returns .*Order",
    result_is_flag: "returns bool",
    result_is_awaited: "returns int",
    yields_texts: "returns .*str",
}


@each_case(("function", "text"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_annotation_that_is_certainly_wrong_is_refused(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(ActionSignatureError, match=text) as caught:
        compile_agent(agent(function))
    assert function.__name__ in str(caught.value).splitlines()[0]


def bare(event, ctx): ...  # type: ignore[no-untyped-def]
def exact(event: Placed, ctx: RunnerContext) -> OutputEvent: ...  # type: ignore[empty-body]
def wider(event: Event, ctx: object) -> Event | None: ...
def widest(event: BaseModel, ctx: Any) -> object: ...
def narrower(event: BigPlaced, ctx: Any) -> None: ...
def one_of(event: Placed | InputEvent, ctx: Any) -> None: ...
def noted(event: Annotated[Placed, "note"], ctx: Annotated[RunnerContext, 1]) -> Iterable[Event]: ...  # type: ignore[empty-body]
def protocol(event: HasInput, ctx: Any) -> None: ...
def unknown(event: Elsewhere, ctx: Missing) -> Nowhere: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable]
def lists(event: Placed, ctx: Any) -> list[OutputEvent | None]: ...  # type: ignore[empty-body]
def pairs(event: Placed, ctx: Any) -> tuple[OutputEvent, ...]: ...  # type: ignore[empty-body]
def plain_list(event: Placed, ctx: Any) -> list: ...  # type: ignore[type-arg, empty-body]
def yields(event: Placed, ctx: Any) -> Iterator[Event]:
    yield OutputEvent(output=1)


async def yields_later(event: Placed, ctx: Any) -> AsyncIterator[OutputEvent]:
    yield OutputEvent(output=1)


RIGHT = [
    bare, exact, wider, widest, narrower, one_of, noted, protocol, unknown, lists, pairs, plain_list, yields,
    yields_later, context_is_dict,
]  # fmt: skip


@each_case("function", RIGHT)
def test_what_may_be_right_is_compiled(function: Callable[..., Any]) -> None:
    compile_agent(agent(function))


def test_the_agents_own_context_class_is_what_actions_get() -> None:
    class Own(Agent):
        context_class = OwnContext

    for function in (context_is_own, exact):
        compile_agent(
            Own(name="a").add_action("begin", InputEvent, begin).add_action("act", Placed, function)
        )


# -- events that nobody takes --------------------------------------------------------


def returns(event: Any, ctx: Any) -> Any:
    return Paid(number="1")


def returns_one_of(event: Any, ctx: Any) -> Any:
    return OutputEvent(output=1) if event.number else Paid(number="1")


def returns_many(event: Any, ctx: Any) -> Any:
    return [OutputEvent(output=1), Paid(number="1")]


def sends(event: Any, ctx: RunnerContext) -> None:
    ctx.send_event(Paid(number="1"), delay=60)


def yields_it(event: Any, ctx: Any) -> Any:
    if event.number:
        yield Paid(number="1")


async def sends_later(event: Any, ctx: RunnerContext) -> None:
    ctx.send_event(Paid(number="1"))


EMITTING = [returns, returns_one_of, returns_many, sends, yields_it, sends_later]


@each_case("function", EMITTING)
def test_an_emitted_event_that_no_action_takes_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(
        AgentDefinitionError, match="emits 'Paid', which no action of the agent handles"
    ) as caught:
        compile_agent(agent(function))
    assert caught.value.fix
    for trigger in (Paid, "Paid", [Paid, Placed], Event):
        compile_agent(agent(function).add_action("pay", trigger, bare))


def mentions(event: Any, ctx: RunnerContext) -> Any:
    stored_event = Paid(number="1")
    ctx.short_term_memory.set("paid", Paid(number="2"))
    ctx.emit_to("paid", Paid(number="3"))

    def inner() -> Paid:
        return Paid(number="4")

    later = lambda: Paid(number="5")  # noqa: E731
    return OutputEvent(output=[stored_event, inner(), later(), Paid(number="6")])


def chooses(event: Any, ctx: RunnerContext) -> Any:
    return (Placed if event.number else Paid)(number="1")


def named(event: Any, ctx: RunnerContext) -> Any:
    return NamedEvent(type=event.number)


@each_case("function", [mentions, chooses, named])
def test_what_is_not_certainly_emitted_is_compiled(function: Callable[..., Any]) -> None:
    compile_agent(agent(function))
