"""An agent meets values whose class was edited: in memory, in the journal, in signals, in delayed events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from changing_classes import CHANGES, KINDS, MODULE, OLD, define, edit, plain, versions

from flink_agents import Agent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import AgentsError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults
from tests.runtime.serde.test_serde_changed_classes import FITS, WRONG_FIELD
from tests.suite.factors import factors
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}


@pytest.fixture(autouse=True)
def edited() -> Iterator[None]:
    with versions():
        yield


def make() -> Any:
    # The analysis of plans would follow `sys.modules` into all modules of the process.
    return import_module(MODULE).make()


class Later(Event):
    value: Any


class Memory(Agent):
    @action(InputEvent)
    def remember(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent | None:
        if event.input == "keep":
            ctx.short_term_memory.set("kept", [make()])
            return None
        return OutputEvent(output=plain(ctx.short_term_memory.get("kept")[0]))


class Journal(Agent):
    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        value = await ctx.durable_execute_async(make)
        await ctx.wait_for_signal("go")
        return OutputEvent(output=plain(value))


class Signals(Agent):
    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await ctx.wait_for_signal("go")
        return OutputEvent(output=plain(await ctx.wait_for_signal("value")))


class Delayed(Agent):
    @action(InputEvent)
    def send(self, event: InputEvent, ctx: RunnerContext) -> None:
        ctx.send_event(Later(value=make()), delay=60)

    @action(Later)
    def take(self, event: Later, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=plain(event.value))


def begin_signals(harness: OperatorHarness) -> None:
    harness.push("x")
    harness.signal(0, "value", make())


PLACES: dict[str, tuple[type[Agent], Callable[[OperatorHarness], Any], Callable[[OperatorHarness], Any]]] = {
    "memory": (Memory, lambda harness: harness.push("keep"), lambda harness: harness.push("read")),
    "journal": (Journal, lambda harness: harness.push("x"), lambda harness: harness.signal(0, "go", 1)),
    "signals": (Signals, begin_signals, lambda harness: harness.signal(0, "go", 1)),
    "delayed events": (
        Delayed,
        lambda harness: harness.push("x"),
        lambda harness: harness.advance_time(61_000),
    ),
}


def outputs_after(place: str, kind: str, change: str, upgrade: str = "") -> list[Any]:
    """Let a program store a value, edit the class, and let the new program go on with the state."""
    agent, begin, resume = PLACES[place]
    define(MODULE, OLD[kind])
    with OperatorHarness(agent, **PLAIN) as harness:
        begin(harness)
        assert harness.outputs == []
        snapshot = harness.snapshot()
        edit(kind, change, upgrade)
        harness.restore(snapshot)
        resume(harness)
        if harness.unmatched_signals:
            # A signal that does not fit ends no wait: it leaves as a stray, with the reason.
            raise AgentsError(harness.unmatched_signals[0].detail or "")
        return list(harness.outputs)


@factors(kind=KINDS, change=CHANGES, place=PLACES)
def test_values_of_an_edited_class_fit_or_are_named(kind: str, change: str, place: str) -> None:
    if (kind, change) in FITS:
        assert outputs_after(place, kind, change) == [FITS[kind, change]]
        return
    with pytest.raises(AgentsError) as caught:
        outputs_after(place, kind, change)
    text = str(caught.value)
    assert f"{MODULE}:Thing" in text
    assert "upgrades" in text
    if kind != "enum" and change in WRONG_FIELD:
        assert WRONG_FIELD[change] in text


def upgrade_of(kind: str, change: str) -> tuple[str, Any]:
    """Return the source of an upgrade from the old class to the new one, and what a value of it is then."""
    if change == "moved":
        return f"@upgrades('{MODULE}:Thing')\n", "TEA" if kind == "enum" else {"name": "tea", "count": 3}
    body, expected = _UPGRADED[("enum" if kind == "enum" else "fields", change)]
    return f"@upgrades('{MODULE}:Thing')\ndef upgrade(old):\n    return {body}\n\n", expected


_UPGRADED: dict[tuple[str, str], tuple[str, Any]] = {
    ("fields", "added required"): (
        "Thing(**old, price=2.5)",
        {"name": "tea", "count": 3, "price": 2.5},
    ),
    ("fields", "added with default"): (
        "Thing(**old, price=2.5)",
        {"name": "tea", "count": 3, "price": 2.5},
    ),
    ("fields", "removed"): ("Thing(name=old['name'].upper())", {"name": "TEA"}),
    ("fields", "renamed"): ("Thing(name=old['name'], number=old['count'])", {"name": "tea", "number": 3}),
    ("fields", "renamed with default"): (
        "Thing(name=old['name'], number=old['count'])",
        {"name": "tea", "number": 3},
    ),
    ("fields", "retyped"): (
        "Thing(name=old['name'], count=str(old['count']))",
        {"name": "tea", "count": "3"},
    ),
    ("fields", "retyped so that it fits"): (
        "Thing(name=old['name'], count=4.5)",
        {"name": "tea", "count": 4.5},
    ),
    ("fields", "became another kind"): ("Thing[f'BLACK_{old[\"name\"].upper()}']", "BLACK_TEA"),
    ("enum", "added required"): ("Thing.GIN", "TEA"),
    ("enum", "added with default"): ("Thing.GIN", "TEA"),
    ("enum", "removed"): ("Thing.RUM", "RUM"),
    ("enum", "renamed"): ("Thing[f'BLACK_{old}']", "BLACK_TEA"),
    ("enum", "renamed with default"): ("Thing.RUM", "BLACK_TEA"),
    ("enum", "retyped"): ("Thing.RUM", "TEA"),
    ("enum", "retyped so that it fits"): ("Thing.RUM", "TEA"),
    ("enum", "became another kind"): ("Thing(name=old, count=1)", {"name": "TEA", "count": 1}),
}
"""Functions that upgrade old values, and what these are then; a member that is still there fits as it is."""


@factors(kind=KINDS, change=CHANGES, place=PLACES)
def test_an_upgrade_carries_values_over(kind: str, change: str, place: str) -> None:
    upgrade, expected = upgrade_of(kind, change)
    assert outputs_after(place, kind, change, upgrade) == [expected]


# -- fields of events themselves -----------------------------------------------------

EVENT = """
from flink_agents import Event

class Thing(Event):
    EVENT_TYPE = "Thing"
"""


def price() -> int:
    return 1


def agent_of_events(delay: float | None) -> Agent:
    """An agent whose event class is what the module has now."""
    thing = sys.modules[MODULE].Thing

    async def send(event: InputEvent, ctx: RunnerContext) -> None:
        await ctx.durable_execute_async(price)
        ctx.send_event(thing(name="tea", count=3), delay=delay)

    async def take(event: Any, ctx: RunnerContext) -> OutputEvent:
        if delay is None:
            await ctx.wait_for_signal("go")
        return OutputEvent(output=plain(event))

    return Agent(name="Events").add_action("send", [InputEvent], send).add_action("take", [thing], take)


EVENT_CHANGES: dict[str, tuple[str, Any]] = {
    "added required": ("    name: str\n    count: int\n    price: float", "price"),
    "added with default": (
        "    name: str\n    count: int\n    price: float = 1.5",
        {"name": "tea", "count": 3, "price": 1.5},
    ),
    "removed": ("    name: str", "count"),
    "renamed": ("    name: str\n    number: int = 0", "count"),
    "retyped": ("    name: str\n    count: list[str]", "count"),
    "retyped so that it fits": ("    name: str\n    count: float", {"name": "tea", "count": 3.0}),
}

EVENT_UPGRADES = {
    "added required": "Thing(**fields, price=2.5)",
    "removed": "Thing(name=fields['name'])",
    "renamed": "Thing(name=fields['name'], number=fields['count'])",
    "retyped": "Thing(name=fields['name'], count=[str(fields['count'])])",
}


def events_after(change: str, delayed: bool, upgrade: str = "") -> list[Any]:
    define(MODULE, EVENT + "    name: str\n    count: int\n")
    delay = 60 if delayed else None
    store = Faults().store
    with OperatorHarness(agent_of_events(delay), store=store, **PLAIN) as former:
        former.push("x")
        snapshot = former.snapshot()
        define(MODULE, EVENT + EVENT_CHANGES[change][0] + "\n" + upgrade)
        with OperatorHarness(agent_of_events(delay), store=store, **PLAIN) as harness:
            harness.restore(snapshot)
            if delayed:
                harness.advance_time(61_000)
            else:
                harness.signal(0, "go")
            return list(harness.outputs)


@each_case("change", EVENT_CHANGES)
@each_case("delayed", [False, True])
def test_recorded_events_of_an_edited_class_fit_or_are_named(change: str, delayed: bool) -> None:
    expected = EVENT_CHANGES[change][1]
    if isinstance(expected, dict):
        assert events_after(change, delayed) == [expected]
        return
    with pytest.raises(AgentsError) as caught:
        events_after(change, delayed)
    text = str(caught.value)
    assert "Thing" in text and expected in text and "upgrades" in text


@each_case("change", EVENT_UPGRADES)
@each_case("delayed", [False, True])
def test_recorded_events_are_upgraded(change: str, delayed: bool) -> None:
    body = EVENT_UPGRADES[change]
    upgrade = f"@upgrades('{MODULE}:Thing')\ndef upgrade(fields):\n    return {body}\n"
    outputs = events_after(change, delayed, upgrade)
    assert outputs == [
        plain(eval(body, {**vars(sys.modules[MODULE]), "fields": {"name": "tea", "count": 3}}))
    ]
