"""Finds the events that an action emits by reading its source: the edges of a plan's graph.

``reading`` finds what *may* be emitted, so that the check of a plan misses no event. This module judges each
mention: a class that is only compared with is not emitted, nor is an event that is content of another
event; and an attribute is looked up only in classes that its object can have, not in every class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.util import resolve_name
from types import FunctionType, ModuleType
from typing import Any, get_args, get_origin

from flink_agents.api.agents.agent import Agent
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable
from flink_agents.api.events import Event, InputEvent, NamedEvent
from flink_agents.plan.analysis.functions import annotation_of
from flink_agents.plan.analysis.mentions import Mention, Mentions, mentions_of, parameters_of
from flink_agents.plan.analysis.reading import (
    EmittedEvents,
    Reader,
    attribute_of,
    closure_of,
    definitions_of,
    events_of_annotation,
    holder_of,
    plain_function,
)

_UNKNOWN = object()
"""A value that is only known when the code runs."""

_ANY_EVENT = (Event, InputEvent, NamedEvent)
"""Classes that do not identify the emitted event."""


def emitted_by(function: Callable[..., Any], owners: Iterable[Any] = ()) -> EmittedEvents:
    """Return the events that an action emits.

    Args:
        function: The action.
        owners: Classes and objects whose methods it may call: the agent's class, for example.
    """
    reader = _EmissionReader(function, (*owners, *holder_of(function)))
    plain = plain_function(function)
    if plain is None:
        reader.reading.opaque = True
        return reader.reading
    reader.follow(plain)
    reading = reader.reading
    if not any(issubclass(event_class, NamedEvent) for event_class in reading.events):
        reading.texts.clear()
    if not reader.sends and (declared := _declared(plain)) is not None:
        bases = tuple(declared)
        matching_events = (
            {event_class for event_class in reading.events if issubclass(event_class, bases)}
            if bases
            else set[type[Event]]()
        )
        reading.events = matching_events | declared | reader.returned
    return reading


def _declared(function: FunctionType) -> set[type[Event]] | None:
    """Return the event classes in the return annotation; None if other values or events are possible."""
    waiting = [annotation_of(function, "return")]
    event_classes: set[type[Event]] = set()
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, type) and issubclass(hint, Event) and hint not in _ANY_EVENT:
            event_classes.add(hint)
        elif get_origin(hint) is not None and get_args(hint):
            waiting.extend(get_args(hint))
        elif hint is not type(None) and hint is not None:
            # `Event` itself, which may be any event, or no event at all, such as `Any`.
            return None
    return event_classes


class _EmissionReader(Reader):
    """Follows an action as :class:`Reader` does, and judges each mention.

    Attributes:
        sends: True if the action may emit events other than by returning them.
        returned: Classes that the action instantiates in its return and yield statements.
    """

    def __init__(self, function: Callable[..., Any], owners: Iterable[Any]) -> None:
        super().__init__(function, owners)
        self.sends = False
        self.returned: set[type[Event]] = set()
        self._passed = False
        # Attributes of parameters, until each possible owner was searched for them.
        self._lookups: dict[tuple[str, str, FunctionType | None], None] = {}
        self._resolved: set[tuple[int, tuple[str, str, FunctionType | None]]] = set()
        self._root = plain_function(function)

    def _read_new(self, function: FunctionType) -> None:
        roles = self._roles(function)
        context = [name for name, role in roles.items() if role == "ctx"]
        scope = _Scope(function)
        mentions = mentions_of(function, context, scope.names_event)
        if mentions is None:
            self.sends = True
            super()._read_new(function)
            return
        scope.bind(mentions)
        self._note_ways_out(mentions, roles)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._take(value)
        self.reading.events.update(events_of_annotation(function))
        self.reading.texts.update(mentions.texts)
        self.reading.tags.update(mentions.tags)
        self._note_calls(mentions, scope)
        self._names.update(dict.fromkeys(mentions.unrooted))
        for mention in mentions.found:
            self._take_mention(mention, function, roles, scope)
        if function is self._root:
            values = (scope.event_of(mention) for mention in mentions.returned)
            self.returned.update(event_class for event_class in values if event_class is not None)
            values = (scope.event_of(mention) for mention in mentions.sent)
            self.reading.certain.update(event_class for event_class in values if event_class is not None)

    def _note_calls(self, mentions: Mentions, scope: _Scope) -> None:
        """Record the functions that are called as durable steps, and the clients that are used."""
        self.reading.clients.update(mentions.clients)
        self.reading.calls.update(f"model {name}" for name in mentions.models)
        for mention in mentions.durable:
            target = scope.found(mention)
            if isinstance(target, DurableCallable):
                self.reading.clients.update(target.clients)
                self.reading.calls.add(target.identity.rpartition(":")[2])
            else:
                self.reading.calls.add((mention.root, *mention.attributes)[-1])

    def _roles(self, function: FunctionType) -> dict[str, str]:
        """Return the parameters that are the instance, the event and the context."""
        names = parameters_of(function)
        roles = {name: name for name in names[:1] if name in ("self", "cls")}
        remaining_names = [name for name in names if name not in roles]
        if function is self._root:
            roles.update(zip(remaining_names, ("event", "ctx"), strict=False))
        roles.update({name: name for name in remaining_names if name in ("event", "ctx")})
        for name in remaining_names:
            kind = function.__annotations__.get(name)
            if isinstance(kind, str):
                kind = function.__globals__.get(kind)
            if isinstance(kind, type) and issubclass(kind, RunnerContext | Event):
                roles[name] = "ctx" if issubclass(kind, RunnerContext) else "event"
        return roles

    def _note_ways_out(self, mentions: Mentions, roles: dict[str, str]) -> None:
        if any("send_event" in mention.attributes for mention in mentions.found):
            self.sends = True
        for name in mentions.loose:
            if roles.get(name) == "ctx":
                self.sends = True
            elif roles.get(name) in ("self", "cls"):
                # From here on, the object may belong to anything.
                self._passed = True

    def _take_mention(
        self, mention: Mention, function: FunctionType, roles: dict[str, str], scope: _Scope
    ) -> None:
        role = "super" if mention.root == "super" else roles.get(mention.root)
        if role is not None:
            if mention.attributes:
                self._take_of_role("self" if role == "cls" else role, mention.attributes, function)
            return
        value = scope.value_of(mention.root)
        self._walk(value, mention)

    def _take_of_role(self, role: str, attributes: tuple[str, ...], function: FunctionType) -> None:
        self._lookups.setdefault((role, attributes[0], function if role in ("self", "super") else None))
        if role != "event":
            self._names.update(dict.fromkeys(attributes[1:]))

    def _try_attributes(self) -> bool:
        previous_count = len(self._resolved)
        for owner in list(self.owners.values()):
            for lookup in list(self._lookups):
                role, name, function = lookup
                if (id(owner), lookup) not in self._resolved and _plays(owner, role, function):
                    self._resolved.add((id(owner), lookup))
                    definitions = (
                        definitions_of(owner, name) if role == "super" else [attribute_of(owner, name)]
                    )
                    for definition in definitions:
                        self._take(definition)
        return super()._try_attributes() or len(self._resolved) > previous_count

    def _walk(self, value: Any, mention: Mention) -> None:
        """Read the object of a mention, as far as it can be found without running code."""
        for number, name in enumerate(mention.attributes):
            if value is _UNKNOWN or value is None:
                self._names.update(dict.fromkeys(mention.attributes[number:]))
                return
            if isinstance(value, type) and issubclass(value, Event) and mention.called:
                self._take(value)
            elif not isinstance(value, ModuleType):
                self._own(value)
            attribute = attribute_of(value, name)
            if not isinstance(value, ModuleType) and (
                plain_function(attribute) is not None or attribute is None
            ):
                self._take(attribute)
                self._names.update(dict.fromkeys(mention.attributes[number:]))
                return
            value = attribute
        if value is not _UNKNOWN:
            self._take(value)

    def _reaches(self, owner: Any) -> bool:
        """Return True if ``owner`` may be the class of an unknown object."""
        kind = owner if isinstance(owner, type) else type(owner)
        return self._passed or not issubclass(kind, Agent)


class _Scope:
    """The values of the names in a function.

    Args:
        function: The function.
    """

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        self._free = dict(closure_of(function))
        self._bound: set[str] = set()
        self._imports: dict[str, tuple[str, str | None, int]] = {}

    def bind(self, mentions: Mentions) -> None:
        """Add the names that the function assigns itself."""
        self._bound = mentions.bound - mentions.imports.keys()
        self._imports = mentions.imports

    def value_of(self, name: str) -> Any:
        """Return the value of a name, or ``_UNKNOWN``."""
        if name in self._imports:
            return self._imported(*self._imports[name])
        if name in self._bound:
            return _UNKNOWN
        if name in self._free:
            return self._free[name]
        return self._globals.get(name)

    def event_of(self, mention: Mention) -> type[Event] | None:
        """Return the event class that a mention names, or None."""
        value = self.found(mention)
        return value if isinstance(value, type) and issubclass(value, Event) else None

    def found(self, mention: Mention) -> Any:
        """Return the value of a mention; None or ``_UNKNOWN`` if it is only known when the code runs."""
        value = self.value_of(mention.root)
        for name in mention.attributes:
            value = None if value is _UNKNOWN or value is None else attribute_of(value, name)
        return value

    def names_event(self, mention: Mention) -> bool:
        """Return True if a mention is an event class, or a method of one."""
        return any(
            self.event_of(mention._replace(attributes=mention.attributes[:number])) is not None
            for number in range(len(mention.attributes) + 1)
        )

    def _imported(self, module: str, name: str | None, level: int) -> Any:
        if level:
            try:
                module = resolve_name("." * level + module, str(self._globals.get("__package__") or ""))
            except ImportError:
                return _UNKNOWN
        loaded_module = sys.modules.get(module)
        if loaded_module is None or name is None:
            return loaded_module if loaded_module is not None else _UNKNOWN
        inner = sys.modules.get(f"{module}.{name}")
        value = attribute_of(loaded_module, name)
        return inner if value is None else value


def _plays(owner: Any, role: str, function: FunctionType | None) -> bool:
    """Return True if a parameter in that role may be ``owner``; for ``self``, if ``owner`` has the method."""
    kind = owner if isinstance(owner, type) else type(owner)
    if role not in ("self", "super"):
        return issubclass(kind, RunnerContext if role == "ctx" else Event)
    home = "" if function is None else function.__qualname__.rpartition(".")[0]
    if function is None or not home or home.endswith("<locals>"):
        return True
    return any(base.__qualname__ == home and base.__module__ == function.__module__ for base in kind.__mro__)
