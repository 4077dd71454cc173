"""A job with a run in every phase, and edits of its code: the row of ``docs/upgrades.md`` for each.

Each input names a phase. The former code brings its run there and no further; then a changed agent is
restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from flink_agents import Agent, Event, InputEvent, OutputEvent, ResourceType, upgrades

CALLS: list[str] = []
"""What durable calls did, in order; nothing takes it back."""

STOPPED = [False]
"""Whether the former code runs, which comes to no end."""


@dataclass
class Order:
    """An input."""

    phase: str


class Step(Event):
    """Begins the second action of a run."""

    phase: str


class Later(Event):
    """Begins a run when its time has come."""

    phase: str


class StepAgain(Event):
    """``Step`` under a new name."""

    phase: str


class LaterAgain(Event):
    """``Later`` under a new name."""

    phase: str


class LaterMore(Event):
    """``Later`` with a field that has a default."""

    EVENT_TYPE = "Later"
    phase: str
    more: int = 1


class LaterNeeds(Event):
    """``Later`` with a field that has none."""

    EVENT_TYPE = "Later"
    phase: str
    more: int


class StepMore(Event):
    """``Step`` with a field that has a default."""

    EVENT_TYPE = "Step"
    phase: str
    more: int = 1


class StepNeeds(Event):
    """``Step`` with a field that has none."""

    EVENT_TYPE = "Step"
    phase: str
    more: int


@dataclass
class Item:
    """An argument."""

    phase: str


@upgrades("upgrade_edits:Item")
@dataclass
class Goods:
    """``Item`` under a new name."""

    phase: str
    number: int = 1


@dataclass
class Tag:
    """An argument whose successor a function makes."""

    text: str


@dataclass
class Label:
    """The successor of ``Tag``."""

    words: list[str]


def label_of(text: str) -> Label:
    return Label(text.split())


@upgrades("upgrade_edits:Tag")
def label(fields: dict[str, Any]) -> Label:
    """Make a ``Label`` of a stored ``Tag``."""
    return Label(fields["text"].split())


class Parcel(BaseModel):
    """An argument whose class changes, and keeps its name."""

    phase: str
    weight: int = 1


class ParcelMore(BaseModel):
    """``Parcel`` with a field that has a default."""

    phase: str
    weight: int = 1
    sizes: list[int] = [1]


class ParcelNeeds(BaseModel):
    """``Parcel`` with a field that has none."""

    phase: str
    weight: int = 1
    sizes: int


class ParcelLess(BaseModel):
    """``Parcel`` without a field."""

    phase: str


for parcel in (ParcelMore, ParcelNeeds, ParcelLess):
    parcel.__name__ = parcel.__qualname__ = "Parcel"


def parcel_of(phase: str) -> Any:
    """Return a parcel, with whatever fields its class needs."""
    needed = [name for name, field in Parcel.model_fields.items() if field.is_required()]
    return Parcel(**{**dict.fromkeys(needed, 1), "phase": phase})


def charge(phase: str, item: Any, parcels: list[Any], tag: Any) -> str:
    CALLS.append(f"charge {phase}")
    return f"charged {phase}"


def ship(phase: str) -> str:
    CALLS.append(f"ship {phase}")
    return f"shipped {phase}"


def price() -> int:
    """Return the price."""
    return 3


async def stop() -> None:
    """Wait for ever in the former code."""
    if not STOPPED[0]:
        await asyncio.Event().wait()


def weigh(phase: str) -> str:
    CALLS.append(f"weigh {phase}")
    return f"weighed {phase}"


def checker(name: str, action: str = "check") -> Agent:
    """The sub-agent, which waits for a signal in some phases."""

    async def check(event: Any, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(weigh, event.input)
        if event.input in ("suspended", "signalled"):
            await ctx.wait_for_signal("go")
        return OutputEvent(output=event.input)

    sub_agent = Agent(name=name)
    sub_agent.add_action(action, [InputEvent], check)
    return sub_agent


def make_take(
    step: type[Event],
    later: type[Event],
    tool: str,
    ending: str,
    asked: Agent | None,
    item: type[Item | Goods],
    tag: Any,
    by_name: bool,
) -> Callable[..., Any]:
    """The first action: what it does depends on the phase that its input names."""

    async def take(event: Any, ctx: Any) -> Any:
        phase = event.input.phase
        named = {"phase": phase, "item": item(phase)} if by_name else {}
        passed = () if by_name else (phase, item(phase))
        charged = await ctx.durable_execute_async(
            charge, *passed, parcels=[parcel_of(phase)], tag=tag(phase), **named
        )
        if asked is not None and phase != "delayed event":
            assert await ctx.call_agent(asked, phase) == phase
        if phase == "delayed event":
            ctx.send_event(make(later, phase), delay=3600)
            return None
        if phase == "recorded event":
            return make(step, phase)
        if phase in ("suspended", "signalled"):
            await ctx.wait_for_signal("more")
        else:
            await stop()
        tool_result = ctx.get_resource(tool, ResourceType.TOOL).func()
        return OutputEvent(output=(phase, charged, tool_result, ending))

    return take


def make_finish(tool: str, ending: str, asked: Agent | None) -> Callable[..., Any]:
    """The second action, of runs that have come so far."""

    async def finish(event: Any, ctx: Any) -> Any:
        if asked is not None and event.phase == "delayed event":
            assert await ctx.call_agent(asked, event.phase) == event.phase
        shipped = await ctx.durable_execute_async(ship, event.phase)
        if event.phase == "recorded event":
            await stop()
        tool_result = ctx.get_resource(tool, ResourceType.TOOL).func()
        return OutputEvent(output=(event.phase, shipped, tool_result, ending))

    return finish


def make(kind: type[Event], phase: str) -> Event:
    """An event, with whatever fields its class has."""
    fields = {name: 1 for name in kind.model_fields if name != "phase"}
    return cast("Event", kind(**{**fields, "phase": phase}))


def also(event: Any, ctx: Any) -> None:
    """An action that nothing depends on."""


def agent(
    *,
    step: type[Event] = Step,
    later: type[Event] = Later,
    tool: str = "price",
    has_tool: bool = True,
    ending: str = "",
    take: str = "take",
    finish: str | None = "finish",
    deliver: str | None = "deliver",
    adds: bool = False,
    moved: bool = False,
    policy: str = "fail",
    asked: str | None = "checker",
    checks: str = "check",
    item: type[Item | Goods] | None = None,
    tag: Any = None,
    by_name: bool = False,
) -> Agent:
    """The agent of the job; without arguments, the former one.

    Args:
        step: The class of the event within a run.
        later: The class of the delayed event.
        tool: The name of its resource.
        has_tool: Whether it has that resource.
        ending: What its actions put out besides.
        take: The name of its first action.
        finish: The name of its second action; None for none.
        deliver: The name of the action for delayed events; None for none.
        adds: Whether it has one more action.
        moved: Whether another action takes the inputs, and the first one takes other events.
        policy: What happens to events that it cannot handle.
        asked: The name of the sub-agent that its actions call; None for none.
        checks: The name of the action of the sub-agent.
        item: The class of an argument of a call.
        tag: Makes another argument of it.
        by_name: Whether arguments are passed by name.
    """
    sub_agent = None if asked is None else checker(asked, checks)
    orders_agent = Agent(name="orders")
    orders_agent.on_error = orders_agent.on_unhandled = policy
    if has_tool:
        orders_agent.add_resource(tool, "tool", price)
    if adds:
        orders_agent.add_action("also", [InputEvent], also)
    if moved:
        orders_agent.add_action(take, [step], also)
        take = "receive"
    orders_agent.add_action(
        take, [InputEvent], make_take(step, later, tool, ending, sub_agent, item or Item, tag or Tag, by_name)
    )
    if finish is not None:
        orders_agent.add_action(finish, [step], make_finish(tool, ending, sub_agent))
    if deliver is not None:
        orders_agent.add_action(deliver, [later], make_finish(tool, ending, sub_agent))
    return orders_agent


PHASES = ("recorded call", "recorded event", "delayed event", "suspended", "signalled")
"""What a run is doing when the job is stopped, by the word of the page."""

EDITS: dict[str, dict[str, Any]] = {
    "change what an action does with results": {"ending": "new"},
    "add an action": {"adds": True},
    "rename a resource and its uses": {"tool": "cost"},
    "add a field with a default to an event class": {"later": LaterMore, "step": StepMore},
    "add a field without a default to an event class": {"later": LaterNeeds, "step": StepNeeds},
    "rename the event class that actions of a run exchange": {"step": StepAgain},
    "rename the event class of delayed events": {"later": LaterAgain},
    "remove the event class that actions of a run exchange": {"step": StepAgain, "gone": "Step"},
    "remove the event class of delayed events": {"later": LaterAgain, "gone": "Later"},
    "rename an action that has recorded something": {"take": "receive", "finish": "end"},
    "let another action take the events of an action that has recorded something": {"moved": True},
    "rename an action that delayed events begin with": {"deliver": "bring"},
    "remove the action that takes an event within a run": {"finish": None},
    "remove the action that takes delayed events": {"deliver": None},
    "remove a resource that actions use": {"has_tool": False},
    "rename or remove the class of inputs": {"gone": "Order"},
    "rename a sub-agent that actions call": {"asked": "inspector"},
    "rename an action of a sub-agent": {"checks": "inspect"},
    "no longer call a sub-agent": {"asked": None},
    "add a field with a default to an argument's class": {"became": {"Parcel": "ParcelMore"}},
    "add a field without a default to an argument's class": {"became": {"Parcel": "ParcelNeeds"}},
    "remove a field of an argument's class": {"became": {"Parcel": "ParcelLess"}},
    "rename an argument's class, with `@upgrades` above the new one": {"item": Goods, "gone": "Item"},
    "rename an argument's class, with `@upgrades` above a function": {
        "tag": label_of,
        "gone": "Tag",
    },
    "pass an argument by name, or by position": {"by_name": True},
}
"""Edits of the code, by the words of the page; with what the agent is made of, or names that go."""
