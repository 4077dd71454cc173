"""Finds the event types that an agent knows, and those that its actions can emit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.agents.decorators import ActionMark, Trigger
from flink_agents.api.durable.type_texts import is_open, parameters_of
from flink_agents.api.events import Event, InputEvent, NamedEvent, OutputEvent
from flink_agents.plan.analysis.reading import EmittedEvents, read
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


class Emissions:
    """The events that an agent's actions can emit.

    Args:
        agent: The agent.

    Attributes:
        by_action: The events that each action names or declares, and so may emit.
        shown: The events that each action's code shows it to emit, and those it declares.
    """

    def __init__(self, agent: Agent) -> None:
        self.by_action: dict[str, EmittedEvents] = {}
        self.shown: dict[str, EmittedEvents] = {}
        self._agent = agent
        self._context_class = agent.context_class if isinstance(agent.context_class, type) else None

    def add(self, actions: Sequence[ActionDeclaration]) -> None:
        """Read the code of actions of the agent."""
        for action in actions:
            holder = self._agent if action.kind == "instance" else None
            shown, possible = read(action.function, holder, self._context_class)
            self.shown[action.name] = shown
            self.by_action[action.name] = possible
            for reading in (shown, possible):
                reading.events.update(event for event in action.mark.emits if isinstance(event, type))
                reading.texts.update(event for event in action.mark.emits if isinstance(event, str))
        for reading in (*self.by_action.values(), *self.shown.values()):
            _add_parametrized(reading, [trigger for action in actions for trigger in action.mark.triggers])

    def together(self) -> EmittedEvents:
        """Return the events that all actions together can emit."""
        emitted_events = EmittedEvents()
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


def needed_actions(declared: Sequence[ActionDeclaration], emissions: Emissions) -> list[ActionDeclaration]:
    """Return the actions of this package that an agent needs in addition to its own.

    Args:
        declared: The actions that the user declared.
        emissions: The events that these can emit.

    Raises:
        FunctionReferenceError: A package that such an action needs is not installed.
    """
    triggers = {type_of(trigger) for action in declared for trigger in action.mark.triggers}
    emitted = emissions.together()
    return [_declaration(action) for action in BUILT_IN_ACTIONS if _is_needed(action, triggers, emitted)]


def _is_needed(action: BuiltInAction, triggers: set[str], emitted: EmittedEvents) -> bool:
    request = action.request.EVENT_TYPE
    response = action.response.EVENT_TYPE
    if request in triggers:
        return False
    return action.request in emitted.events or request in emitted.texts or response in triggers


def _declaration(action: BuiltInAction) -> ActionDeclaration:
    function = FunctionRef.parse(action.function).resolve()
    mark = ActionMark((action.request,), (action.response,), name=action.name)
    return ActionDeclaration(action.name, mark, function, "function")


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
    return EventPlan(type=event.EVENT_TYPE, event_class=FunctionRef.from_object(event), bases=bases)
