"""Converts events to records and back, and copies the events that records describe.

If an action made durable calls, a replay takes the events that it sent from its record. So they go through
the codec the first time as well. Otherwise two actions could share one object: one could change it, and the
other would see the change, but not after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.api.durable.upgrades import place_of_upgrade, upgrade_of
from flink_agents.api.errors import PlanChangedError, StateError, UpgradeFailedError
from flink_agents.api.events import Event, NamedEvent, OutputEvent, lineage_of_sent, stamp
from flink_agents.plan.references import FunctionRef
from flink_agents.runtime.journal.plans import give_back
from flink_agents.runtime.serde.changed import Stored, read_changed, shape_of
from flink_agents.runtime.serde.codec import UNCHANGING, ValueCodec, are_unchanging
from flink_agents.runtime.serde.typenames import Kind, shorten
from flink_agents.runtime.serde.values import own_fields


class EventRecords:
    """Converts events to the form that records have, and back.

    Args:
        codec: Encodes the fields of events.
        types: The event classes that the agent knows, by type string.
    """

    def __init__(self, codec: ValueCodec, types: Mapping[str, type[Event]]) -> None:
        self._codec = codec
        self._types = types
        # The model as a whole knows the forms of such fields.
        self._whole = frozenset(kind for kind in types.values() if own_fields(kind))

    def packed(self, event: Event) -> list[Any]:
        """Return type, content and class shape of an event; the whole event if it cannot be split so."""
        if type(event) is OutputEvent:
            return [OutputEvent.EVENT_TYPE, event.output]
        kind = type(event)
        if self._types.get(event.event_type) is kind and kind not in self._whole:
            content = {name: getattr(event, name) for name in kind.model_fields}
            return [event.event_type, content, shape_of(kind)]
        return [None, event]

    def unpacked(self, kind: str | None, content: Any, shape: int | None = None) -> Event:
        """Return the event that :meth:`packed` converted. If its class is gone, a ``NamedEvent`` replaces it.

        Args:
            kind: Its type.
            content: Its fields.
            shape: The shape of its class; None if that is unchanged, or if an earlier version recorded it.

        Raises:
            PlanChangedError: Its class has a new field without a default.
            ValueChangedError: Its fields no longer fit its class.
            UpgradeFailedError: The upgrade function raised.
        """
        if kind is None:
            return content
        if kind == OutputEvent.EVENT_TYPE:
            return OutputEvent(output=content)
        event_class = self._types.get(kind)
        if event_class is None:
            return NamedEvent(type=kind, attributes=content)
        if shape is not None and shape != shape_of(event_class):
            return _changed(event_class, kind, content)
        return self._constructed(event_class, kind, content)

    @staticmethod
    def _constructed(event_class: type[Event], kind: str, content: dict[str, Any]) -> Event:
        for name, field in event_class.model_fields.items():
            if field.is_required() and name not in content:
                raise _event_changed(kind, name)
        return event_class.model_construct(**content)

    def copy(self, event: Event) -> Event:
        """Return the event as a replay would read it from its record, with its place in the run.

        Raises:
            UnserializableValueError: It has a value that cannot be recorded.
        """
        return self._copied(event)[0]

    def _copied(self, event: Event) -> tuple[Event, list[Any]]:
        """Return a copy of an event with its packed form; the event itself if its values are immutable."""
        kind, content, *shape = self.packed(event)
        if are_unchanging(event.__dict__.values()):
            return event, [kind, content, *shape]
        content = self._codec.copy(content)
        copied_event = self.unpacked(kind, content)
        stamp(copied_event, lineage_of_sent(event))
        return copied_event, [kind, content, *shape]

    def copy_for_attempt(self, event: Event) -> Event:
        """Return a copy for one attempt of an action; the event itself if all of its values are immutable."""
        values = event.__dict__.values()
        if UNCHANGING.issuperset(map(type, values)) or are_unchanging(values):
            return event
        try:
            return self.copy(event)
        except StateError:
            return event

    def record_sent(self, step: Any) -> list[list[Any]]:
        """Replace the events that an action sent by copies from the codec.

        Return them in the form of records.

        The copies share their values with the returned list. Encode that before an action gets the copies.

        Args:
            step: The execution, an ``action_run.ActionRun``.

        Raises:
            UnserializableValueError: An event or a value of a side output cannot be recorded.
        """
        sent: list[Event] = []
        records: list[list[Any]] = []
        for event in step.sent:
            copied_event, packed = self._copied(event)
            sent.append(copied_event)
            records.append(packed)
        step.sent = sent
        if step.side is not None:
            values = self._codec.copy([value for _, value in step.side])
            step.side = [(tag, value) for (tag, _), value in zip(step.side, values, strict=True)]
        return records


def _changed(event_class: type[Event], kind: str, content: dict[str, Any]) -> Event:
    name = str(FunctionRef.of(event_class))
    upgrade = upgrade_of(name)
    if upgrade is None:
        for new, field in event_class.model_fields.items():
            if field.is_required() and new not in content:
                raise _event_changed(kind, new, name)
    result = read_changed(Stored(name, Kind.MODEL, content), event_class)
    if not isinstance(result, Event):
        raise UpgradeFailedError(
            f"the upgrade of a recorded event {kind!r} returned no event",
            expected=f"{event_class.__qualname__}, or another event",
            found=shorten(result),
            fix="return the event",
            where=None if upgrade is None else place_of_upgrade(upgrade),
        )
    return result


def _event_changed(kind: str, field: str, name: str = "") -> PlanChangedError:
    upgrade = f", or make the event in a function with @upgrades({name!r})" if name else ""
    return PlanChangedError(
        f"an unfinished run has a recorded event {kind!r}, whose class has a new field {field!r} without a "
        "default",
        expected="the class with the fields that it had, and others that have defaults",
        fix=give_back(f"the field {field!r} a default{upgrade}"),
    )
