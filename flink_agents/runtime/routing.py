"""Which actions an event triggers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flink_agents.api.events import Event, NamedEvent

if TYPE_CHECKING:
    from flink_agents.plan import BoundAction


class Routes:
    """Finds the actions of an event by its class and type string; remembers each answer.

    Args:
        actions: The agent's actions, in the order in which they run.
    """

    def __init__(self, actions: Sequence[BoundAction]) -> None:
        self._actions = actions
        self._by_class: dict[type[Event], tuple[BoundAction, ...]] = {}
        self._by_name: dict[str, tuple[BoundAction, ...]] = {}

    def candidates(self, event: Event) -> tuple[BoundAction, ...]:
        """The actions with a trigger for ``event``, whatever their conditions say."""
        kind = type(event)
        found = self._by_class.get(kind)
        if found is not None:
            return found
        if isinstance(event, NamedEvent):
            # The type string of such an event is data: it is no property of the class.
            name = event.event_type
            if name not in self._by_name:
                self._by_name[name] = tuple(self._matching(kind, name))
            return self._by_name[name]
        found = self._by_class[kind] = tuple(self._matching(kind, event.event_type))
        return found

    def known_types(self) -> Iterable[str]:
        """All type strings that actions are triggered by."""
        for action in self._actions:
            yield from action.trigger_types
            yield from (cls.EVENT_TYPE for cls in action.trigger_classes)

    def _matching(self, kind: type[Event], name: str) -> Iterable[BoundAction]:
        for action in self._actions:
            if name in action.trigger_types or issubclass(kind, action.trigger_classes):
                yield action
