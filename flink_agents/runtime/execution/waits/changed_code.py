"""Runs that began with other code: whether this code can continue them, and what is left of those it cannot.

A run whose action, event class or input class was renamed or removed ends as ``on_error`` of the agent says:
nothing of it is committed besides what has left, and the key continues. An event that no action takes any
more follows ``on_unhandled``, as any other event that no action accepts.
"""

from __future__ import annotations

from collections.abc import Iterable

from flink_agents.api.action_state import RecordKind
from flink_agents.api.common.policies import OnError
from flink_agents.api.errors import (
    PlanChangedError,
    StateError,
    StateFormatError,
    UnknownTypeNameError,
    UpgradeFailedError,
)
from flink_agents.api.events import Event, InputEvent, NamedEvent
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.delayed import begin_with, event_of
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.plans import check_actions
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.pending import UnreadableInput, read_input
from flink_agents.runtime.state.suspended import Suspension

CHANGES = (PlanChangedError, StateFormatError, UnknownTypeNameError, UpgradeFailedError)
"""What reading a run raises if the code has changed since it was written."""

LETTER_PATH = "changed-code"
"""Stands for the path of an execution: what leaves under it has not left before."""


def agent_policy(shared: RunEnvironment) -> OnError:
    """Return ``on_error`` of the agent as a whole."""
    return OnError(shared.agent.on_error or shared.config.get(AgentOptions.ON_ERROR))


def unhandled_policy(shared: RunEnvironment) -> OnError:
    """Return ``on_unhandled`` of the agent."""
    return OnError(shared.agent.on_unhandled or shared.config.get(AgentOptions.ON_UNHANDLED))


def begin_event(run: Run, record: object, shared: RunEnvironment) -> Event:
    """Return the event that a run begins with.

    Raises:
        StateError: The code has changed, so that it cannot be made.
    """
    if type(record) is DelayedInput:
        return begin_with(run, record, shared)
    if type(record) is UnreadableInput:
        raise record.error
    return run.input_event(record)


def check_run(run: Run, suspension: Suspension | None, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions that a run, which is to begin, recorded something of.

    Raises:
        PlanChangedError: It lacks some.
    """
    journal = run.journal
    if journal is not None and journal.replayed:
        _check_steps(journal.steps, run.queue[0], shared)
    if suspension is not None:
        check_suspended(suspension, run.queue[0], shared)


def check_suspended(suspension: Suspension, event: Event, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions of a suspended run, which began with ``event``.

    Raises:
        PlanChangedError: It lacks some.
    """
    recorded = {task_of(one.step)[0] for one in suspension.records if one.kind is not RecordKind.RUN}
    _check_steps(recorded | {wait.step for wait in suspension.waits}, event, shared)


def _check_steps(steps: Iterable[str], event: Event, shared: RunEnvironment) -> None:
    route = shared.routes.of(event)
    if route is not None and not route.actions:
        # The event follows on_unhandled.
        return
    first = {action.name for action in route.actions} if route is not None else set[str]()
    check_actions(shared.agent_name, shared.action_names, first, steps)


def given_up_event(run: Run, record: object, shared: RunEnvironment) -> Event:
    """Return the event of the dead letter of a run that this code cannot continue."""
    if type(record) is UnreadableInput:
        return InputEvent(input=record.packed)
    if type(record) is not DelayedInput:
        return InputEvent(input=record)
    try:
        return event_of(record, shared)
    except StateError:
        pass
    try:
        kind, content, *_ = shared.codec.decode(record.event)
        return NamedEvent(type=kind, attributes=content)
    except StateError:
        return NamedEvent(type="unreadable", attributes={"event": record.event, "sent by": record.action})


def event_of_input(packed: bytes, shared: RunEnvironment) -> Event:
    """Return the event that a run begins with, of the bytes of its input.

    Raises:
        StateError: The code has changed, so that the event cannot be made.
    """
    record, _ = read_input(shared.codec, packed)
    if type(record) is UnreadableInput:
        raise record.error
    return event_of(record, shared) if type(record) is DelayedInput else InputEvent(input=record)


def no_action_takes(event: Event, shared: RunEnvironment) -> PlanChangedError:
    """Return the error of an event that was sent before the code changed."""
    return PlanChangedError(
        f"no action of agent {shared.agent_name!r} takes the event {event.event_type!r}, which was sent "
        "before the code changed",
        expected=f"one of {', '.join(sorted(shared.routes.known_types()))}",
        found=event.event_type,
        fix="give the event class its former name and an action, or let these events come with the former "
        "code; with on_unhandled = 'dead-letter' on the agent, the job continues without it",
    )
