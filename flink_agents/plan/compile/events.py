"""Finds the event types that an agent knows, and those that its actions can emit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import Trigger
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable.type_texts import is_open, parameters_of
from flink_agents.api.events import Event, InputEvent, NamedEvent, OutputEvent
from flink_agents.plan.analysis.emitted import emitted_by
from flink_agents.plan.analysis.reading import EmittedEvents, owners_named_by, read
from flink_agents.plan.compile.declarations import ActionDeclaration
from flink_agents.plan.model import EventPlan
from flink_agents.plan.references import FunctionRef

BUILT_IN: Mapping[str, type[Event]] = {
    event_class.EVENT_TYPE: event_class for event_class in (Event, InputEvent, NamedEvent, OutputEvent)
}


def type_of(trigger: Trigger) -> str:
    """Return the type string of a trigger."""
    return trigger if isinstance(trigger, str) else trigger.EVENT_TYPE


def is_exact(trigger: Trigger) -> bool:
    """Return True if the trigger is a type string that only matches events of exactly that type."""
    return isinstance(trigger, str) and trigger not in BUILT_IN


@dataclass(frozen=True)
class Emissions:
    """The events that an agent's actions can emit.

    Attributes:
        by_action: The events that each action names or declares, and so may emit.
        shown: The events that each action's code shows it to emit, and those it declares.
        anywhere: The events that the agent's constructor names; any action may emit them.
        declared: Type strings and classes in ``emits=``, by action.
        owners: Classes and objects whose methods any action may call.
    """

    by_action: Mapping[str, EmittedEvents]
    shown: Mapping[str, EmittedEvents]
    anywhere: EmittedEvents
    declared: Mapping[str, tuple[Trigger, ...]]
    owners: Sequence[Any] = ()

    def with_actions(self, actions: Sequence[ActionDeclaration]) -> Emissions:
        """Read the code of more actions of the agent, and return the emissions including theirs."""
        by_action = dict(self.by_action)
        shown = dict(self.shown)
        declared = dict(self.declared)
        for action in actions:
            by_action[action.name] = read(action.function, self.owners)
            shown[action.name] = emitted_by(action.function, self.owners)
            declared[action.name] = action.mark.emits
            for reading in (by_action[action.name], shown[action.name]):
                reading.events |= {
                    event_class for event_class in action.mark.emits if isinstance(event_class, type)
                }
                reading.texts |= {
                    event_type for event_type in action.mark.emits if isinstance(event_type, str)
                }
        for reading in (self.anywhere, *by_action.values(), *shown.values()):
            _add_parametrized(reading, [trigger for action in actions for trigger in action.mark.triggers])
        return replace(self, by_action=by_action, shown=shown, declared=declared)

    def together(self) -> EmittedEvents:
        """Return the events that all actions together can emit."""
        emitted_events = EmittedEvents()
        emitted_events.update(self.anywhere)
        for reading in self.by_action.values():
            emitted_events.update(reading)
        return emitted_events


def _add_parametrized(reading: EmittedEvents, triggers: Iterable[Trigger]) -> None:
    """Add the triggers that are parametrizations of a generic event which the code names, and so may emit."""
    generic = {event for event in reading.events if is_open(event)}
    types = {event.EVENT_TYPE for event in generic}
    for trigger in triggers if generic else ():
        if isinstance(trigger, str):
            reading.texts |= {trigger} if trigger.partition("[")[0] in types else set()
        elif (parameters_of(trigger) or [None])[0] in generic:
            reading.events.add(trigger)


def emissions_of(
    agent_class: type[Agent],
    actions: Sequence[ActionDeclaration],
    context_class: type[RunnerContext] | None = None,
) -> Emissions:
    """Read the code of all actions."""
    owners: list[Any] = [agent_class, *([context_class] if isinstance(context_class, type) else [])]
    anywhere = EmittedEvents()
    if agent_class.__init__ is not Agent.__init__:
        anywhere = read(agent_class.__init__, owners)
        owners += owners_named_by(agent_class.__init__, owners)
    return Emissions({}, {}, anywhere, {}, owners).with_actions(actions)


def known_events(actions: Iterable[ActionDeclaration], emissions: Emissions) -> list[type[Event]]:
    """Return every event class that triggers an action or that one can emit, without duplicates."""
    event_classes: dict[type[Event], None] = {InputEvent: None}
    for action in actions:
        for trigger in (*action.mark.triggers, *action.mark.emits):
            event = BUILT_IN.get(trigger) if isinstance(trigger, str) else trigger
            if event is not None:
                event_classes[event] = None
    emitted = emissions.together().events
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
    bases = tuple(
        base.EVENT_TYPE for base in event.__mro__[1:] if issubclass(base, Event) and base is not Event
    )
    return EventPlan(type=event.EVENT_TYPE, event_class=FunctionRef.of(event), bases=bases)
