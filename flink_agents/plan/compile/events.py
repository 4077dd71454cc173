"""Finds the event types that an agent knows and emits, and checks that each trigger can occur."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.agents.decorators import ActionMark, Trigger
from flink_agents.api.common.places import place_of_class
from flink_agents.api.common.policies import OnError
from flink_agents.api.durable.type_texts import is_open, parameters_of
from flink_agents.api.errors import (
    AgentDefinitionError,
    DuplicateNameError,
    EventNeverEmittedError,
    PlanFormatError,
    UnknownTriggerError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.events import AgentCallEvent, Event, InputEvent, NamedEvent, OutputEvent
from flink_agents.plan.analysis.reading import EmittedEvents, SourceReading, read
from flink_agents.plan.compile.declarations import ActionDeclaration
from flink_agents.plan.model import AgentPlan, EventPlan
from flink_agents.plan.references import FunctionRef, import_named

BUILT_IN: Mapping[str, type[Event]] = {
    event_class.EVENT_TYPE: event_class for event_class in (Event, InputEvent, NamedEvent, OutputEvent)
}
"""The event classes of this package that every agent knows, by type string."""


Readings = Mapping[str, SourceReading]
"""Source readings of actions, by the names of the actions."""


def type_of(trigger: Trigger) -> str:
    """Return the type string of a trigger: the string itself, or that of the event class."""
    return trigger if isinstance(trigger, str) else trigger.EVENT_TYPE


def is_exact(trigger: Trigger) -> bool:
    """Return True if the trigger is a type string that only matches events of exactly that type."""
    return isinstance(trigger, str) and trigger not in BUILT_IN


def read_actions(actions: Sequence[ActionDeclaration], agent: Agent) -> dict[str, SourceReading]:
    """Return the events that an agent's actions emit, by action: those of their code, and declared ones."""
    context_class = agent.context_class if isinstance(agent.context_class, type) else None
    triggers = [trigger for action in actions for trigger in action.mark.triggers]
    readings: dict[str, SourceReading] = {}
    for action in actions:
        holder = agent if action.kind == "instance" else None
        readings[action.name] = read(action.function, holder, context_class)
        for reading in readings[action.name]:
            reading.events.update(event for event in action.mark.emits if isinstance(event, type))
            reading.texts.update(event for event in action.mark.emits if isinstance(event, str))
            _add_parametrized(reading, triggers)
    return readings


def possible_events(readings: Readings) -> EmittedEvents:
    """Return the events that all actions together can emit."""
    events = EmittedEvents()
    for reading in readings.values():
        events.update(reading.possible)
    return events


def _add_parametrized(reading: EmittedEvents, triggers: Iterable[Trigger]) -> None:
    """Add the triggers that are parametrizations of a generic event which the code names, and so may emit."""
    generic = {event for event in reading.events if is_open(event)}
    types = {event.EVENT_TYPE for event in generic}
    for trigger in triggers if generic else ():
        if isinstance(trigger, str):
            reading.texts |= {trigger} if trigger.partition("[")[0] in types else set()
        elif (parameters_of(trigger) or [None])[0] in generic:
            reading.events.add(trigger)


def needed_actions(declared: Sequence[ActionDeclaration], readings: Readings) -> list[ActionDeclaration]:
    """Return the actions of this package that an agent needs in addition to its own.

    Args:
        declared: The actions that the user declared.
        readings: What their code does.

    Raises:
        FunctionReferenceError: A package that such an action needs is not installed.
    """
    triggers = {type_of(trigger) for action in declared for trigger in action.mark.triggers}
    emitted = possible_events(readings)
    return [_declare(action) for action in BUILT_IN_ACTIONS if _is_needed(action, triggers, emitted)]


def _is_needed(action: BuiltInAction, triggers: set[str], emitted: EmittedEvents) -> bool:
    """Return True if an agent emits the request of a built-in action, or waits for its response.

    Args:
        action: The built-in action.
        triggers: Type strings of the agent's own triggers: one of them may replace the action.
        emitted: The events that the agent's actions may emit.
    """
    request = action.request.EVENT_TYPE
    response = action.response.EVENT_TYPE
    if request in triggers:
        return False
    return action.request in emitted.events or request in emitted.texts or response in triggers


def _declare(action: BuiltInAction) -> ActionDeclaration:
    """Return the declaration of a built-in action."""
    function = import_named(action.function)
    mark = ActionMark((action.request,), (action.response,), name=action.name)
    return ActionDeclaration(action.name, mark, function, "function")


def known_events(actions: Iterable[ActionDeclaration], readings: Readings) -> list[type[Event]]:
    """Return every event class that triggers an action or that one can emit, without duplicates."""
    event_classes: dict[type[Event], None] = {InputEvent: None}
    for action in actions:
        for trigger in (*action.mark.triggers, *action.mark.emits):
            event = BUILT_IN.get(trigger) if isinstance(trigger, str) else trigger
            if event is not None:
                event_classes[event] = None
    emitted = possible_events(readings).events
    event_classes.update(
        dict.fromkeys(
            sorted(emitted, key=lambda event_class: (event_class.__module__, event_class.__qualname__))
        )
    )
    return list(event_classes)


def event_plans(
    event_classes: Iterable[type[Event]], actions: Iterable[ActionDeclaration]
) -> tuple[EventPlan, ...]:
    """Return the events of a plan, sorted by type string."""
    plans = {event_class.EVENT_TYPE: _event_plan(event_class) for event_class in event_classes}
    for action in actions:
        for trigger in (*action.mark.triggers, *action.mark.emits):
            plans.setdefault(type_of(trigger), EventPlan(type=type_of(trigger)))
    return tuple(plans[name] for name in sorted(plans))


def emitted_types(reading: EmittedEvents, interesting: Iterable[str]) -> tuple[str, ...]:
    """Return the type strings of the classes that ``reading`` shows, and its ``interesting`` strings."""
    classes = {
        event_class.EVENT_TYPE
        for event_class in reading.events
        if event_class not in (Event, InputEvent, NamedEvent)
    }
    return tuple(sorted(classes | (reading.texts & set(interesting) - set(BUILT_IN))))


def _event_plan(event: type[Event]) -> EventPlan:
    """Return an event class as a part of a plan."""
    bases = tuple(
        base.EVENT_TYPE for base in event.__mro__[1:] if issubclass(base, Event) and base is not Event
    )
    return EventPlan(type=event.EVENT_TYPE, event_class=FunctionRef.from_object(event), bases=bases)


class AgentPlanWarning(UserWarning):
    """An agent is valid, but probably does not do what you intend."""


def check_event_classes(event_classes: Iterable[type[Event]]) -> None:
    """Check that no two event classes have the same type string.

    Raises:
        PlanFormatError: A type string is not a string.
        DuplicateNameError: Two classes have the same one.
    """
    first: dict[str, type[Event]] = dict(BUILT_IN)
    for event in event_classes:
        kind: object = event.EVENT_TYPE
        if not isinstance(kind, str) or not kind:
            raise PlanFormatError(
                f"the event class {event.__name__} has no usable EVENT_TYPE",
                expected="a string that no other event class has",
                found=repr(kind),
                fix="set EVENT_TYPE to a string, or remove it: then it is the name of the class",
                where=place_of_class(event),
            )
        other_class = first.setdefault(event.EVENT_TYPE, event)
        if other_class is not event:
            is_built_in = other_class in BUILT_IN.values()
            name = f"{other_class.__module__}.{other_class.__qualname__}"
            raise DuplicateNameError(
                f"two event classes have the type {event.EVENT_TYPE!r}",
                expected="one class for each type string",
                found=f"the other one at {name if is_built_in else place_of_class(other_class)}",
                fix="set EVENT_TYPE in one of them",
                where=place_of_class(event),
            )


def check_flow(
    plan: AgentPlan,
    actions: Sequence[ActionDeclaration],
    readings: Readings,
    event_classes: Sequence[type[Event]],
    where: str,
) -> None:
    """Check that inputs reach an action, and that each trigger can occur.

    Raises:
        AgentDefinitionError: No action takes inputs, or no action takes an emitted event.
        UnknownTriggerError: A type string is neither a class's nor emitted.
        EventNeverEmittedError: No action can emit the type of a trigger.
    """
    if not any(_takes(action, EmittedEvents(events={InputEvent})) for action in actions):
        raise AgentDefinitionError(
            f"no action of the agent {plan.name!r} handles inputs",
            expected="an action that is triggered by InputEvent",
            found=", ".join(f"{action.name}: {', '.join(action.triggers)}" for action in plan.actions),
            fix="mark the first action with @action(InputEvent)",
            where=where,
        )
    # They come from outside: inputs, and calls of other agents.
    entries = {InputEvent, *(event for event in event_classes if issubclass(event, AgentCallEvent))}
    everything = possible_events(readings)
    everything.events |= entries
    for action in actions:
        for trigger in action.mark.triggers:
            if not everything.opaque and not _accepts(trigger, everything):
                raise _never_emitted(action, trigger, everything, event_classes)
    if plan.on_unhandled in (None, OnError.FAIL):
        _check_handled(actions, readings)
    _warn_unreachable(actions, readings, entries)


def _check_handled(actions: Sequence[ActionDeclaration], readings: Readings) -> None:
    """Check that some action takes each event that an action certainly emits."""
    types = sorted({type_of(trigger) for action in actions for trigger in action.mark.triggers})
    for action in actions:
        for event_class in sorted(readings[action.name].shown.certain, key=type_of):
            if event_class in (Event, InputEvent) or issubclass(event_class, OutputEvent | NamedEvent):
                continue
            if not any(_takes(handler, EmittedEvents(events={event_class})) for handler in actions):
                name = event_class.EVENT_TYPE
                raise AgentDefinitionError(
                    f"{action.label} emits {name!r}, which no action of the agent handles",
                    expected=f"an event that an action handles: {', '.join(types)}; or an OutputEvent",
                    found=name,
                    fix=f"add an action that is triggered by {name}, or emit the value with "
                    "OutputEvent(output=...)",
                    where=action.where,
                )


def _takes(action: ActionDeclaration, events: EmittedEvents) -> bool:
    """Return True if an action can be triggered by one of the events."""
    return any(_accepts(trigger, events) for trigger in action.mark.triggers)


def _accepts(trigger: Trigger, reading: EmittedEvents) -> bool:
    """Return True if ``trigger`` can match an event in ``reading``."""
    if isinstance(trigger, str) and is_exact(trigger):
        return trigger in reading.texts or trigger in map(type_of, reading.events)
    wanted = BUILT_IN[trigger] if isinstance(trigger, str) else trigger
    return any(issubclass(event_class, wanted) for event_class in reading.events)


def _never_emitted(
    action: ActionDeclaration, trigger: Trigger, reading: EmittedEvents, event_classes: Sequence[type[Event]]
) -> AgentDefinitionError:
    """Return the error of an action with a trigger that cannot occur."""
    name = type_of(trigger)
    types = sorted(set(map(type_of, event_classes)) - set(BUILT_IN) | {InputEvent.EVENT_TYPE})
    if isinstance(trigger, str) and name not in types:
        return UnknownTriggerError(
            f"{action.label} waits for {name!r}, which no event class and no action knows",
            expected=f"an event class, or one of {', '.join(types)}",
            found=repr(name),
            fix=suggest(name, types, f"emit it, or declare it with emits=[{name!r}] in the action that does"),
            where=action.where,
        )
    emitted = sorted(map(type_of, reading.events - {Event, OutputEvent}))
    return EventNeverEmittedError(
        f"{action.label} waits for {name!r}, which no action emits",
        expected="an action of the agent that emits it",
        found=f"actions and inputs emit {', '.join(emitted)}",
        fix=f"emit it, remove the action, or declare emits=[{name}] if a library emits it",
        where=action.where,
    )


def _warn_unreachable(
    actions: Sequence[ActionDeclaration], readings: Readings, entries: set[type[Event]]
) -> None:
    """Warn of actions that no chain of events from the ``entries`` reaches."""
    flowing = EmittedEvents(events=set(entries))
    unreached = list(actions)
    while reached := [action for action in unreached if _takes(action, flowing)]:
        for action in reached:
            flowing.update(readings[action.name].possible)
            unreached.remove(action)
    for action in () if flowing.opaque else unreached:
        warnings.warn(
            f"{action.where}: {action.label} is never reached from InputEvent: "
            f"{', '.join(map(type_of, action.mark.triggers))} is emitted only by actions that are not "
            "reached, too",
            AgentPlanWarning,
            stacklevel=5,
        )
