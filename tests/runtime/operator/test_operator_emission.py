"""What actions return, yield and send: in which order it leaves, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from core_agents import Other, Step, action_fails, outputs_of, probe

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, action
from flink_agents.api.errors import (
    ContextMisuseError,
    EventLimitError,
    NotAnEventError,
    UnknownEventError,
    UnknownSideOutputError,
    UnserializableValueError,
)
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


def out(value: Any) -> OutputEvent:
    return OutputEvent(output=value)


def harness_of(func: Any, **options: Any) -> OperatorHarness:
    """An agent whose only action is ``func``."""
    return OperatorHarness(Agent(name="one").add_action("act", [InputEvent], func), **options)


def returns_nothing(event: InputEvent, ctx: Any) -> None:
    pass


def returns_one(event: InputEvent, ctx: Any) -> Event:
    return out(1)


def returns_list(event: InputEvent, ctx: Any) -> Any:
    return [out(1), None, out(2)]


def returns_tuple(event: InputEvent, ctx: Any) -> Any:
    return (out(1), out(2))


def returns_empty_list(event: InputEvent, ctx: Any) -> Any:
    return []


def yields(event: InputEvent, ctx: Any) -> Iterator[Event | None]:
    yield out(1)
    yield None
    yield out(2)


def yields_nothing(event: InputEvent, ctx: Any) -> Iterator[Event]:
    yield from ()


def yields_and_sends(event: InputEvent, ctx: Any) -> Iterator[Event]:
    yield out(1)
    ctx.send_event(out(2))
    yield out(3)


def sends_and_returns(event: InputEvent, ctx: Any) -> Event:
    ctx.send_event(out(1))
    ctx.send_event(out(2))
    return out(3)


def returns_generator(event: InputEvent, ctx: Any) -> Any:
    return (out(n) for n in range(2))


async def is_async(event: InputEvent, ctx: Any) -> Event:
    await asyncio.sleep(0)
    return out(1)


async def async_returns_nothing(event: InputEvent, ctx: Any) -> None:
    await asyncio.sleep(0)


async def async_returns_list(event: InputEvent, ctx: Any) -> Any:
    return [out(await asyncio.sleep(0, n)) for n in range(2)]


async def async_yields(event: InputEvent, ctx: Any) -> AsyncIterator[Event | None]:
    yield out(1)
    await asyncio.sleep(0)
    yield None
    ctx.send_event(out(2))
    yield out(3)


async def async_gathers(event: InputEvent, ctx: Any) -> Any:
    async def part(n: int) -> int:
        await asyncio.sleep(0)
        return n

    return [out(n) for n in await asyncio.gather(part(1), part(2))]


def returns_coroutine(event: InputEvent, ctx: Any) -> Any:
    return is_async(event, ctx)


RESULTS: list[tuple[Any, list[Any]]] = [
    (returns_nothing, []),
    (returns_one, [1]),
    (returns_list, [1, 2]),
    (returns_tuple, [1, 2]),
    (returns_empty_list, []),
    (yields, [1, 2]),
    (yields_nothing, []),
    (yields_and_sends, [1, 2, 3]),
    (sends_and_returns, [1, 2, 3]),
    (returns_generator, [0, 1]),
    (is_async, [1]),
    (async_returns_nothing, []),
    (async_returns_list, [0, 1]),
    (async_yields, [1, 2, 3]),
    (async_gathers, [1, 2]),
    (returns_coroutine, [1]),
]


@pytest.mark.parametrize(("func", "expected"), RESULTS, ids=[func.__name__ for func, _ in RESULTS])
def test_what_an_action_gives_is_emitted_in_order(func: Any, expected: list[Any]) -> None:
    harness = harness_of(func)
    assert harness.push(None) == expected
    assert harness.push(None) == expected
    harness.close()


@pytest.mark.parametrize(("func", "expected"), RESULTS, ids=[func.__name__ for func, _ in RESULTS])
def test_methods_static_methods_and_functions_are_alike(func: Any, expected: list[Any]) -> None:
    class Method(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> Any:
            return func(event, ctx)

    class Static(Agent):
        act = action(InputEvent)(staticmethod(func))

    for agent in (Method, Static):
        harness = OperatorHarness(agent)
        assert harness.push(None) == expected
        harness.close()


BAD_RESULTS: dict[str, tuple[Any, str]] = {
    "number": (5, "int 5"),
    "zero": (0, "int 0"),
    "text": ("text", "str 'text'"),
    "empty text": ("", "str ''"),
    "false": (False, "bool False"),
    "dict": ({"a": 1}, "dict"),
    "set": (set(), "set set()"),
    "event class": (Step, "class"),
    "list with a number": ([OutputEvent(output=1), 5], "int 5"),
    "list in a list": ([[OutputEvent(output=1)]], "list"),
    "bare value in a tuple": ((OutputEvent(output=1), "x"), "str 'x'"),
    "iterator": (iter([1]), "list_iterator"),
}


@each_case("how", ["return", "async return", "yield", "async yield", "send"])
@each_case(("result", "text"), BAD_RESULTS.values(), ids=BAD_RESULTS.keys())
def test_what_is_no_event_is_a_named_error(how: str, result: Any, text: str) -> None:
    def returning(event: InputEvent, ctx: Any) -> Any:
        return result

    async def async_returning(event: InputEvent, ctx: Any) -> Any:
        return result

    def yielding(event: InputEvent, ctx: Any) -> Any:
        yield result

    async def async_yielding(event: InputEvent, ctx: Any) -> Any:
        yield result

    def sending(event: InputEvent, ctx: Any) -> None:
        ctx.send_event(result)

    func = {
        "return": returning,
        "async return": async_returning,
        "yield": yielding,
        "async yield": async_yielding,
        "send": sending,
    }[how]
    harness = harness_of(func, forced_serialization=False)
    expected = text if how.endswith("return") else type(result).__name__
    with action_fails(NotAnEventError, expected):
        harness.push(None)
    assert harness.outputs == []
    harness.close()


def test_sending_none_is_a_named_error() -> None:
    with action_fails(NotAnEventError, "NoneType None"):
        outputs_of(lambda record, ctx: ctx.send_event(None))


@pytest.mark.parametrize(
    "event", [Other(), Event(), NamedEvent(type="unknown"), NamedEvent(type="_output_event")]
)
def test_event_that_no_action_takes_is_a_named_error(event: Event) -> None:
    with action_fails(UnknownEventError, event.event_type):
        harness_of(lambda _, ctx: ctx.send_event(event)).push(None)


def test_output_that_flink_cannot_pass_on_is_a_named_error() -> None:
    with pytest.raises(UnserializableValueError, match="cannot be pickled"):
        outputs_of(lambda record, ctx: (n for n in [1]))


# -- order ---------------------------------------------------------------------------


class Ordered(Agent):
    """Breadth first: all that one action sent is handled before what those events cause."""

    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        yield Step(number=1)
        yield out("start")
        yield Step(number=2)

    @action(Step)
    def first(self, event: Step, ctx: Any) -> Iterator[Event]:
        yield out(f"first {event.number}")
        yield Other(value=event.number)

    @action(Step)
    def second(self, event: Step, ctx: Any) -> Event:
        return out(f"second {event.number}")

    @action(Other)
    def last(self, event: Other, ctx: Any) -> Event:
        return out(f"last {event.value}")


def test_events_are_handled_in_the_order_of_sending() -> None:
    expected = ["start", "first 1", "second 1", "first 2", "second 2", "last 1", "last 2"]
    harness = OperatorHarness(Ordered)
    assert harness.push(1) == expected
    assert harness.push(2) == expected


def test_inputs_of_a_key_keep_their_order_and_numbers() -> None:
    harness = probe(lambda record, ctx: (record, ctx.sequence_number), key_selector=lambda record: record % 3)
    harness.push_all(range(30))
    for key in range(3):
        of_key = [output for output in harness.outputs if output[0] % 3 == key]
        assert of_key == [(key + 3 * n, n) for n in range(10)]
        assert harness.sequence_number(key) == 10


# -- side outputs --------------------------------------------------------------------


class Sides(Agent):
    side_outputs = {"late": int, "audit": str}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        ctx.emit_to("late", event.input)
        yield out(event.input)
        ctx.emit_to("audit", f"saw {event.input}")
        ctx.emit_to("late", -event.input)


def test_side_outputs() -> None:
    harness = OperatorHarness(Sides)
    assert harness.push_all([1, 2]) == [1, 2]
    assert harness.side_output("late") == [1, -1, 2, -2]
    assert harness.side_output("audit") == ["saw 1", "saw 2"]
    assert harness.dead_letters == []


@pytest.mark.parametrize("tag", ["nope", "", "dead-letter", None])
def test_side_output_that_is_not_declared_is_a_named_error(tag: Any) -> None:
    with action_fails(UnknownSideOutputError, repr(tag)):
        outputs_of(lambda record, ctx: ctx.emit_to(tag, 1))


class NothingAside(Agent):
    side_outputs = {"late": int}

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.emit_to("late", event.input)
        return out(None)


def test_none_leaves_by_the_main_output_alone() -> None:
    """PyFlink's map behind a side output makes a null of it, and Flink does not say whose it is."""
    harness = OperatorHarness(NothingAside)
    assert harness.push(0) == [None]
    with action_fails(ContextMisuseError, "None to side output 'late'"):
        harness.push(None)


# -- limits --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "fails"), [(3, False), (4, True)])
def test_limit_counts_all_events_of_a_run(count: int, fails: bool) -> None:
    def act(event: InputEvent, ctx: Any) -> Any:
        return [out(n) for n in range(event.input)]

    harness = harness_of(act, config={"run.max-events": 3})
    if fails:
        with action_fails(EventLimitError, "run.max-events"):
            harness.push(count)
    assert harness.push_all([3, 3]) == [0, 1, 2, 0, 1, 2]


def test_records_may_be_anything_that_can_be_pickled() -> None:
    records = [None, 0, "", b"", [], {"a": (1,)}, Step(number=1), ValueError("x").args]
    assert outputs_of(lambda record, ctx: record, *records) == records
