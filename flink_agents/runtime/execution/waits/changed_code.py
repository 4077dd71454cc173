"""Decides if the present code can continue runs of earlier code, and what remains of those that it cannot.

If an action, event class or input class of a run was renamed or removed, the run ends as ``on_error`` of the
agent says. Only outputs that have left already remain of it, and the key continues. An event that no action
handles any longer follows ``on_unhandled``, like any other event that no action accepts.
"""

from __future__ import annotations

from collections.abc import Iterable

from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import (
    PlanChangedError,
    StateError,
    StateFormatError,
    UnknownTypeNameError,
    UpgradeFailedError,
)
from flink_agents.api.events import Event, InputEvent, NamedEvent
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.plans import check_actions
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.pending import UnreadableInput, read_input
from flink_agents.runtime.state.suspended import Suspension

CHANGES = (PlanChangedError, StateFormatError, UnknownTypeNameError, UpgradeFailedError)
"""The errors that reading a run raises if the code has changed since the run was written."""

LETTER_PATH = "changed-code"
"""The path under which the dead letter of such a run is counted. No output has left under it before."""


def check_run(run: Run, suspension: Suspension | None, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions that a run has records of, before the run starts.

    Raises:
        PlanChangedError: It lacks some.
    """
    journal = run.journal
    if journal is not None and journal.replayed:
        _check_steps(journal.steps, run.queue[0], shared)
    if suspension is not None:
        check_suspended(suspension, run.queue[0], shared)


def check_suspended(suspension: Suspension, event: Event, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions of a suspended run that started with ``event``.

    Raises:
        PlanChangedError: It lacks some.
    """
    recorded = {task_of(record.step)[0] for record in suspension.records if record.kind is not RecordKind.RUN}
    _check_steps(recorded | {wait.step for wait in suspension.waits}, event, shared)


def _check_steps(steps: Iterable[str], event: Event, shared: RunEnvironment) -> None:
    route = shared.routes.find_route(event)
    if route is not None and not route.actions:
        # The event follows on_unhandled.
        return
    first = {action.name for action in route.actions} if route is not None else set[str]()
    check_actions(shared.agent.name, {action.name for action in shared.agent.actions}, first, steps)


def given_up_event(run: Run, record: object, shared: RunEnvironment) -> Event:
    """Return the event for the dead letter of a run that the present code cannot continue."""
    if type(record) is UnreadableInput:
        return InputEvent(input=record.packed)
    if type(record) is not DelayedInput:
        return InputEvent(input=record)
    try:
        return shared.events.decode(record.event)
    except StateError:
        pass
    try:
        kind, content, *_ = shared.codec.decode(record.event)
        return NamedEvent(type=kind, attributes=content)
    except StateError:
        return NamedEvent(type="unreadable", attributes={"event": record.event, "sent by": record.action})


def event_of_input(packed: bytes, shared: RunEnvironment) -> Event:
    """Return the event that a run starts with, from the bytes of its input.

    Raises:
        StateError: The code has changed, so that the event cannot be created.
    """
    record, _ = read_input(shared.codec, packed)
    if type(record) is UnreadableInput:
        raise record.error
    return shared.events.decode(record.event) if type(record) is DelayedInput else InputEvent(input=record)


def no_action_takes(event: Event, shared: RunEnvironment) -> PlanChangedError:
    """Return the error of an event that was sent before the code changed, and that no action handles now."""
    return PlanChangedError(
        f"no action of agent {shared.agent.name!r} takes the event {event.event_type!r}, which was sent "
        "before the code changed",
        expected=f"one of {', '.join(sorted(shared.routes.known_types()))}",
        found=event.event_type,
        fix="give the event class its former name and an action, or let these events come with the former "
        "code; with on_unhandled = 'dead-letter' on the agent, the job continues without it",
    )
