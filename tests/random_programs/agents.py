"""The agent of all programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from flink_agents import Agent, ApprovalDeniedEvent, InputEvent, OutputEvent
from tests.random_programs.calls import AT_ONCE
from tests.random_programs.events import Nested
from tests.random_programs.execution import Execution, name_of
from tests.random_programs.programs import APPROVED


class RandomAgent(Agent):
    """Executes programs; what fails becomes a dead letter."""

    side_outputs = {"audit": tuple, "began": tuple}
    on_error = "dead-letter"


class Overtaken(RandomAgent):
    """The same, with inputs that overtake its suspended runs."""

    on_suspend = "interleave"


def _begin(event: Any, ctx: Any) -> tuple[Execution, str, list[Any]]:
    _, name, _, ops = event.input
    ctx.emit_to("began", (ctx.key, ctx.sequence_number, name))
    return Execution(ctx, event, name, name), name, ops


async def begin(event: InputEvent, ctx: Any) -> list[Any]:
    """Take an input."""
    x, place, ops = _begin(event, ctx)
    return await _whole(x, place, ops)


async def begin_yielding(event: InputEvent, ctx: Any) -> AsyncIterator[Any]:
    """Take an input, and put out events while it goes on."""
    x, place, ops = _begin(event, ctx)
    seen: list[Any] = []
    try:
        for number, (kind, *args) in enumerate(ops):
            seen.append(await x.operation(f"{place}.{number}", kind, args, seen))
            while x.sent:
                yield x.sent.pop(0)
    except Exception as error:
        x.note("raised", name_of(error))
        raise
    x.note("end")


def begin_plainly(event: InputEvent, ctx: Any) -> list[Any]:
    """Take an input in a thread."""
    x, place, ops = _begin(event, ctx)
    try:
        x.plain_block(place, ops)
    except Exception as error:
        x.note("raised", name_of(error))
        raise
    x.note("end")
    return x.sent


async def refuse(event: ApprovalDeniedEvent, ctx: Any) -> list[Any]:
    """Take an input that nobody has approved."""
    x, _, _ = _begin(event.event, ctx)
    x.note("denied", str(event.outcome.decision), event.outcome.reason)
    x.note("end")
    return [OutputEvent(output=(ctx.key, x.name, "denied", event.outcome.reason))]


async def go_on(event: Nested, ctx: Any) -> list[Any]:
    """Take an event that an action sent."""
    x = Execution(ctx, event, event.name, event.place)
    x.note("data", dict(event.data))
    return await _whole(x, event.place, event.ops)


async def look_on(event: Nested, ctx: Any) -> OutputEvent:
    """Take the same event, behind the action that may change it."""
    return OutputEvent(output=(ctx.key, event.name, f"{event.place} data", sorted(event.data.items())))


async def _whole(x: Execution, place: str, ops: list[Any]) -> list[Any]:
    try:
        await x.block(place, ops)
    except Exception as error:
        x.note("raised", name_of(error))
        raise
    x.note("end")
    return x.sent


def agent(waits: bool = False, overtakes: bool = False) -> Agent:
    """The agent of all programs.

    Args:
        waits: Whether it has an action that somebody has to approve.
        overtakes: Whether inputs overtake its suspended runs.
    """
    random_agent = (Overtaken if overtakes else RandomAgent)(name="random")
    random_agent.add_action("begin", [InputEvent], begin, when=_is("async"))
    random_agent.add_action("begin_retried", [InputEvent], begin, when=_is("retried"), retry=AT_ONCE)
    random_agent.add_action("begin_yielding", [InputEvent], begin_yielding, when=_is("yields"))
    random_agent.add_action("begin_plainly", [InputEvent], begin_plainly, when=_is("def"), emits=[Nested])
    random_agent.add_action(
        "begin_plainly_retried", [InputEvent], begin_plainly, when=_is("def retried"), retry=AT_ONCE
    )
    if waits:
        random_agent.add_action(
            "begin_approved", [InputEvent], begin, when=_is(APPROVED), needs_approval=True
        )
        random_agent.add_action("refuse", [ApprovalDeniedEvent], refuse)
    random_agent.add_action("go_on", [Nested], go_on)
    return random_agent.add_action("look_on", [Nested], look_on)


def _is(form: str) -> Any:
    return lambda event: event.input[2] == form
