"""Delayed events: an action sends them now, and they start separate runs later.

An execution stores them among its side outputs, under a reserved tag. So they are recorded, replayed and
rolled back like side outputs, and cost nothing if there are none. They do not leave the operator: the commit
puts them into state (``operator.waits.delayed``).
"""

from __future__ import annotations

import math
from typing import Any, cast

from flink_agents.api.common.durations import LONGEST, seconds_of
from flink_agents.api.errors import ContextMisuseError, InvalidDurationError
from flink_agents.api.events import DELAYED_TAG, Event, OutputEvent
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment.events import no_event, too_many_events, unknown_event
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.sub_agents.sub_agent_run import root_of
from flink_agents.runtime.state.delayed import DelayedInput


def send_later(step: ActionRun, event: Event, delay: object) -> None:
    """Send an event that is delivered after a delay.

    Args:
        step: The execution of the action.
        event: The event. Later changes to it do not count.
        delay: The delay, in seconds or as a timedelta.

    Raises:
        InvalidDurationError: The delay is invalid.
        ContextMisuseError: The action belongs to a sub-agent.
        NotAnEventError: It is not an event.
        UnknownEventError: No action of the agent handles events of that type.
        OutputTypeError: It is an output that does not have the declared type.
        UnserializableValueError: State cannot hold it.
    """
    step.guard()
    milliseconds = _milliseconds(step.action.name, delay)
    event = _checked(step, event)
    shared = step.shared
    side = step.side if step.side is not None else []
    number = sum(tag == DELAYED_TAG for tag, _ in side)
    if step.run.emitted + len(step.sent) + number >= shared.max_events:
        raise too_many_events(shared.max_events)
    packed = shared.events.encode(event)
    upstream = step.event.id
    side.append((DELAYED_TAG, [shared.clock() + milliseconds, packed, step.action.name, upstream]))
    step.side = side


def _checked(step: ActionRun, event: Event) -> Event:
    """Return an event that can be delivered when its time comes; reject others."""
    if root_of(step) is not step:
        raise ContextMisuseError(
            f"action {step.action.name!r} of the sub-agent {step.shared.agent.name!r} sends an event "
            "with a delay",
            expected="delay=None: a sub-agent has answered before the time comes",
            found="delay=...",
            fix="return what is to be sent, and let the agent that asks send it",
        )
    route = step.shared.routes.find_route(event)
    if route is None:
        raise no_event(step.action.name, event)
    if route.leaves:
        value = cast("OutputEvent", event).output
        carried = step.shared.output_checks.check(step.action.name, value)
        return event if carried is value else event.model_copy(update={"output": carried})
    if not route.actions:
        raise unknown_event(step.action.name, event, step.shared.routes)
    return event


def _milliseconds(action: str, delay: object) -> int:
    """Return a delay in milliseconds, rounded up so that no event comes early."""

    def refuse(found: str) -> InvalidDurationError:
        return InvalidDurationError(
            f"action {action!r} sends an event with an invalid delay",
            expected=f"seconds or a timedelta, from 0 to {LONGEST.days} days",
            found=found,
            fix="give the time from now on, such as delay=60 or delay=timedelta(hours=1); "
            "delay=None delivers the event in this run",
        )

    return math.ceil(seconds_of(delay, refuse, least=0) * 1000)


def delayed_input(run: Run, sent: list[Any]) -> DelayedInput:
    """Return the input that a delayed event will be.

    Args:
        run: The run that sent it.
        sent: The event, the action that sent it, and the id of the event that this action handled.
    """
    event, action, upstream = sent
    return DelayedInput(event, action, upstream, run.lineage.id, run.sequence_number)
