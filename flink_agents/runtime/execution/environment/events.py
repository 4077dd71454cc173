"""Events of an agent: their routes, their records and copies, and the values in them.

If an action made durable calls, a replay takes the events that it sent from its record. So they go through
the codec the first time as well. Otherwise two actions could share one object: one could change it, and the
other would see the change, but not after a crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import modules
from typing import TYPE_CHECKING, Any

from flink_agents.api.durable.upgrades import place_of_upgrade, upgrade_of
from flink_agents.api.errors import (
    AgentConfigurationError,
    ContextMisuseError,
    EventLimitError,
    MissingAwaitError,
    NotAnEventError,
    OutputTypeError,
    PlanChangedError,
    RunError,
    StateError,
    UnhandledEventError,
    UnknownEventError,
    UpgradeFailedError,
)
from flink_agents.api.events import Event, NamedEvent, OutputEvent, lineage_of_sent, stamp
from flink_agents.api.resources.provenance import LIBRARY, as_data
from flink_agents.plan.references import FunctionRef, type_text
from flink_agents.runtime.journal.plans import give_back
from flink_agents.runtime.serde.changed import Stored, read_changed, shape_of
from flink_agents.runtime.serde.codec import UNCHANGING, ValueCodec, are_unchanging
from flink_agents.runtime.serde.declared_types import Carry, NotCarriedError, carry_of, check_of
from flink_agents.runtime.serde.raised_texts import AWAIT_IT, awaitable_text, close_unawaited, is_awaitable
from flink_agents.runtime.serde.typenames import Kind, shorten
from flink_agents.runtime.serde.values import own_fields

if TYPE_CHECKING:
    from flink_agents.plan import BoundAction


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

    def encode(self, event: Event) -> bytes:
        """Return the bytes of an event, without its place in the run."""
        return self._codec.encode(self.packed(event))

    def decode(self, data: bytes) -> Event:
        """Return the event that :meth:`encode` encoded; for errors see :meth:`unpacked`."""
        return self.unpacked(*self._codec.decode(data))

    def unpacked(self, kind: str | None, content: Any, shape: int | None = None) -> Event:
        """Return the event that :meth:`packed` converted. If its class is gone, a ``NamedEvent`` replaces it.

        Args:
            kind: Its type string; None if ``content`` is the event itself.
            content: Its fields by name; the value of an output.
            shape: The shape of its class; None if that is unchanged.

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
        return self._construct(event_class, kind, content)

    @staticmethod
    def _construct(event_class: type[Event], kind: str, content: dict[str, Any]) -> Event:
        """Return an event of a class that has not changed, from its recorded fields, without validation."""
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
            if type(event) is OutputEvent and type(event.output) in UNCHANGING:
                # Most events, and there is nothing to copy.
                sent.append(event)
                records.append([OutputEvent.EVENT_TYPE, event.output])
                continue
            copied_event, packed = self._copied(event)
            sent.append(copied_event)
            records.append(packed)
        step.sent = sent
        if step.side is not None:
            values = self._codec.copy([value for _, value in step.side])
            step.side = [(tag, value) for (tag, _), value in zip(step.side, values, strict=True)]
        return records


def _changed(event_class: type[Event], kind: str, content: dict[str, Any]) -> Event:
    """Return an event that was recorded when its class had other fields.

    Raises:
        PlanChangedError: The class has a new field without a default, and no upgrade function.
        UpgradeFailedError: The upgrade function returned no event, or raised.
    """
    name = str(FunctionRef.from_object(event_class))
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
    """Return the error of a recorded event whose class ``name`` has a new required field."""
    upgrade = f", or make the event in a function with @upgrades({name!r})" if name else ""
    return PlanChangedError(
        f"an unfinished run has a recorded event {kind!r}, whose class has a new field {field!r} without a "
        "default",
        expected="the class with the fields that it had, and others that have defaults",
        fix=give_back(f"the field {field!r} a default{upgrade}"),
    )


class ReceivedValues:
    """Converts values from outside before an action gets them: messages in them are data, not commands.

    Only chat models and agents of the model library need the origin of a message. An action may import
    the library when it runs, after its input has come, so each conversion checks if it is loaded.

    Args:
        codec: Copies values by encoding and decoding them.
        has_chat_models: True if the agent has chat models.

    Attributes:
        convert: Converts a value; None if nothing is converted yet.
    """

    def __init__(self, codec: ValueCodec, has_chat_models: bool) -> None:
        self._codec = codec
        self.convert: Callable[[Any], Any] | None = self._as_data if has_chat_models else None

    def as_received(self, value: Any) -> Any:
        """Return a value from outside in the form that actions get."""
        if self.convert is None:
            if LIBRARY not in modules:
                return value
            self.convert = self._as_data
        return self.convert(value)

    def _as_data(self, value: Any) -> Any:
        return as_data(value, self._copied)

    def _copied(self, value: Any) -> Any:
        """Return a copy of a value; the value itself if it cannot be encoded."""
        try:
            return self._codec.copy(value)
        except StateError:
            # State cannot hold it, so no other run can get this object.
            return value


class Route:
    """The destination of events of one type.

    Attributes:
        actions: The actions with a trigger for the type, whatever their conditions are.
        leaves: True if such events leave the agent instead.
        types: The type string alone in a tuple: what observers get if an action sends one such event.
    """

    __slots__ = ("actions", "leaves", "types")

    def __init__(self, actions: tuple[BoundAction, ...], leaves: bool, types: tuple[str]) -> None:
        self.actions = actions
        self.leaves = leaves
        self.types = types


class Routes:
    """Finds the route of an event by its class and type string, and caches it.

    Args:
        actions: The agent's actions, in the order in which they run.

    Attributes:
        by_class: The cached routes that depend on the class alone. Look here before you call
            :meth:`find_route`.
    """

    def __init__(self, actions: Sequence[BoundAction]) -> None:
        self._actions = actions
        self.by_class: dict[Any, Route] = {}
        self._by_name: dict[Any, Route] = {}

    def find_route(self, event: object) -> Route | None:
        """Return the route of ``event``; None if it is not an event."""
        # isinstance of a Pydantic class costs as much as the rest of this function.
        return self.by_class.get(type(event)) or self._find(event)

    def known_types(self) -> Iterable[str]:
        """Return all type strings that trigger actions."""
        for action in self._actions:
            yield from action.trigger_types
            yield from (cls.EVENT_TYPE for cls in action.trigger_classes)

    def _find(self, event: object) -> Route | None:
        """Return the route of an event, and cache it; None if it is not an event."""
        if not isinstance(event, Event):
            return None
        if isinstance(event, NamedEvent):
            # The type string of such an event is data, not a property of the class.
            table = self._by_name
            key = (type(event), event.event_type)
        else:
            table = self.by_class
            key = type(event)
        if key not in table:
            leaves = isinstance(event, OutputEvent)
            actions = () if leaves else tuple(self._matching(event))
            table[key] = Route(actions, leaves, (event.event_type,))
        return table[key]

    def _matching(self, event: Event) -> Iterable[BoundAction]:
        """Yield the actions with a trigger for an event."""
        for action in self._actions:
            if event.event_type in action.trigger_types or isinstance(event, action.trigger_classes):
                yield action


class OutputChecks:
    """Checks the values that an action emits as outputs.

    Args:
        output_type: The declared type of outputs; None for any.
        side_outputs: The declared types of side outputs, by tag.

    Attributes:
        any: True if any type is declared. If not, only values that should have been awaited are rejected.
    """

    __slots__ = ("_carries", "_types", "any")

    def __init__(self, output_type: Any, side_outputs: Mapping[str, Any]) -> None:
        self._types: dict[str | None, Any] = {None: output_type, **side_outputs}
        carries = {tag: carry_of(kind) or _checked(kind) for tag, kind in self._types.items()}
        self._carries: dict[str | None, Carry] = {tag: carry for tag, carry in carries.items() if carry}
        self.any = bool(self._carries)

    def check(self, action: str, value: Any, tag: str | None = None) -> Any:
        """Return a value of the main output, or of the side output ``tag``, as Flink carries it.

        Raises:
            MissingAwaitError: It is a coroutine.
            ContextMisuseError: It is None, which a side output cannot carry.
            OutputTypeError: It does not have the declared type.
        """
        if is_awaitable(value):
            raise not_awaited(action, value)
        if value is None and tag is not None:
            # PyFlink adds a map after each side output, and Flink accepts no null from it.
            raise ContextMisuseError(
                f"action {action!r} emits None to side output {tag!r}, which cannot carry it",
                expected="a value",
                found="None",
                fix="emit a value that says that there is none, such as False or {}",
            )
        carry = self._carries.get(tag) if self._carries else None
        if carry is None:
            return value
        try:
            return carry(value)
        except NotCarriedError as error:
            declared = "output_type" if tag is None else f"side_outputs[{tag!r}]"
            raise OutputTypeError(
                f"action {action!r} emits a value that is not of the agent's {declared}",
                expected=f"a value of the type {type_text(self._types[tag])}, as declared",
                found=str(error),
                fix=f"make the value of that type, or correct {declared}",
            ) from None


def _checked(kind: Any) -> Carry | None:
    """Return a function that checks a value against a type, and returns it; None if any value fits."""
    compare = check_of(kind)
    if compare is None:
        return None

    def carry(value: Any) -> Any:
        problem = compare(value)
        if problem is not None:
            raise NotCarriedError(problem)
        return value

    return carry


def too_many_events(limit: int) -> EventLimitError:
    """Return the error of a run that emitted more than ``limit`` events."""
    return EventLimitError(
        f"a run emitted more than {limit} events",
        fix="end the loop between the actions, or raise the option run.max-events",
    )


def no_event(action: str, value: object) -> RunError:
    """Return the error of an action that emits ``value``, which is not an event."""
    if is_awaitable(value):
        return not_awaited(action, value)
    return NotAnEventError(
        f"action {action!r} emits something that is no event",
        expected="an instance of an Event class, or None",
        found=f"{type(value).__qualname__} {value!r}"[:300],
        fix="wrap it: OutputEvent(output=...) leaves the agent",
    )


def not_awaited(action: str, value: object) -> MissingAwaitError:
    """Return the error of an action that emits something that it should have awaited.

    Args:
        action: Its name.
        value: The awaitable. A coroutine is closed with its arguments, so that Python does not warn as well.
    """
    error = MissingAwaitError(
        f"action {action!r} emits something that was not awaited",
        expected="its result",
        found=awaitable_text(value),
        fix=AWAIT_IT,
    )
    if inspect.iscoroutine(value):
        close_unawaited(value)
    return error


def given_client(function: str, name: str) -> AgentConfigurationError:
    """Return the error of an action that passes the client ``name`` to ``function`` as an argument."""
    return AgentConfigurationError(
        f"a durable call of {function} has the argument {name!r}, which is a client",
        expected="the other arguments of the function: the runtime gives it the open client",
        found=f"durable_execute(..., {name}=...)",
        fix=f"leave {name}=... out",
    )


def unknown_event(action: str, event: Event, routes: Routes) -> UnknownEventError:
    """Return the error of an action that emits an event that no action handles."""
    return UnknownEventError(
        f"action {action!r} emits {event.event_type!r}, which no action takes",
        expected="one of " + ", ".join(sorted(routes.known_types())),
        found=event.event_type,
        fix="add an action with that trigger, or emit an OutputEvent",
    )


def not_accepted(agent: str, event: Event, actions: Iterable[BoundAction], place: str) -> UnhandledEventError:
    """Return the error of an event whose actions all have conditions that do not hold.

    Args:
        agent: The name of the agent.
        event: The event.
        actions: The actions that handle events of its type.
        place: Its key and run, for people.
    """
    return UnhandledEventError(
        f"no action of {agent} accepts this {event.event_type!r}: {place}",
        expected="the condition of one of these actions to hold: "
        + ", ".join(action.name for action in actions),
        found=shorten(event),
        fix="add an action for it, or set on_unhandled = 'ignore' or 'dead-letter' on the agent",
    )
