"""Routes events that actions emit, and checks outputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import (
    AgentConfigurationError,
    ContextMisuseError,
    EventLimitError,
    MissingAwaitError,
    NotAnEventError,
    OutputTypeError,
    RunError,
    UnhandledEventError,
    UnknownEventError,
)
from flink_agents.api.events import Event, NamedEvent, OutputEvent
from flink_agents.plan.references import type_text
from flink_agents.runtime.serde.declared_types import Carry, NotCarriedError, carry_of, check_of
from flink_agents.runtime.serde.raised_texts import AWAIT_IT, awaitable_text, close_unawaited, is_awaitable
from flink_agents.runtime.serde.typenames import shorten

if TYPE_CHECKING:
    from flink_agents.plan import BoundAction


class Route:
    """The destination of events of one type.

    Attributes:
        actions: The actions with a trigger for the type, whatever their conditions are.
        leaves: True if such events leave the agent instead.
        types: The type, as an action that sent one such event reports it.
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
    """Return a function that compares values with a type and returns them as they are."""
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
