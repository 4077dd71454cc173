"""Which actions an event triggers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flink_agents.api.events import Event, NamedEvent, OutputEvent

if TYPE_CHECKING:
    from flink_agents.plan import BoundAction


class Route:
    """Where events of one type go.

    Attributes:
        actions: The actions with a trigger for them, whatever their conditions say.
        leaves: They leave the agent instead.
    """

    __slots__ = ("actions", "leaves")

    def __init__(self, actions: tuple[BoundAction, ...], leaves: bool) -> None:
        self.actions = actions
        self.leaves = leaves


class Routes:
    """Finds the route of an event by its class and type string; remembers each answer.

    Args:
        actions: The agent's actions, in the order in which they run.
    """

    def __init__(self, actions: Sequence[BoundAction]) -> None:
        self._actions = actions
        self._by_class: dict[Any, Route] = {}
        self._by_name: dict[Any, Route] = {}

    def of(self, event: object) -> Route | None:
        """The route of ``event``; None if it is no event."""
        # isinstance of a pydantic class costs as much as all the rest of this.
        return self._by_class.get(type(event)) or self._find(event)

    def known_types(self) -> Iterable[str]:
        """All type strings that actions are triggered by."""
        for action in self._actions:
            yield from action.trigger_types
            yield from (cls.EVENT_TYPE for cls in action.trigger_classes)

    def _find(self, event: object) -> Route | None:
        if not isinstance(event, Event):
            return None
        if isinstance(event, NamedEvent):
            # The type string of such an event is data: it is no property of the class.
            table, key = self._by_name, (type(event), event.event_type)
        else:
            table, key = self._by_class, type(event)
        if key not in table:
            leaves = isinstance(event, OutputEvent)
            table[key] = Route(() if leaves else tuple(self._matching(event)), leaves)
        return table[key]

    def _matching(self, event: Event) -> Iterable[BoundAction]:
        for action in self._actions:
            if event.event_type in action.trigger_types or isinstance(event, action.trigger_classes):
                yield action
