"""Decorators that mark the methods of an agent class.

They only attach their arguments to the function; ``flink_agents.plan`` reads and checks them. Methods may be
static or take ``self``; ``@staticmethod`` may be above or below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from flink_agents.api.common.places import describe, place_of, unwrap
from flink_agents.api.errors import AgentDefinitionError, UnknownTriggerError
from flink_agents.api.events import Event
from flink_agents.api.events.approvals import ApprovalDeniedEvent
from flink_agents.api.resources import ResourceType, check_resource_type
from flink_agents.api.settings import (
    ActionOptions,
    ActionSettings,
    ToolOptions,
    ToolSettings,
    check_asks,
    check_settings,
)

F = TypeVar("F", bound=Callable[..., Any])
Trigger = type[Event] | str

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})

ACTION_MARK = "__flink_agents_action__"
RESOURCE_MARK = "__flink_agents_resource__"


@dataclass(frozen=True)
class ActionMark:
    """The arguments of ``@action`` or ``add_action`` for a function.

    Attributes:
        triggers: Event classes or type strings.
        emits: Event classes or type strings that the action emits and that its code does not name.
        settings: Settings of its execution.
        config: JSON values that the action reads as ``ctx.action_config``.
        name: Name of the action; None for the function's.
    """

    triggers: tuple[Trigger, ...]
    emits: tuple[Trigger, ...] = ()
    settings: ActionSettings = ActionSettings()
    config: Mapping[str, Any] = field(default_factory=lambda: _NO_CONFIG)
    name: str | None = None

    @classmethod
    def from_arguments(
        cls,
        what: str,
        where: str | None,
        triggers: object,
        emits: object,
        settings: Mapping[str, Any],
        config: Mapping[str, Any],
        name: str | None,
    ) -> ActionMark:
        """Check the author's arguments of an action, and return them as a mark.

        An action that needs approvals also emits ``ApprovalDeniedEvent``.

        Args:
            what: The declaration, such as ``"@action"``, for the error.
            where: Its place in the author's code, for the error; None if unknown.
            triggers: One or several event classes or type strings.
            emits: The same, for events that its code does not name.
            settings: Settings by name.
            config: JSON values that the action reads as ``ctx.action_config``.
            name: Name of the action; None for the function's.

        Raises:
            UnknownTriggerError: A trigger is neither an event class nor a type string.
            AgentDefinitionError: A setting is unknown or invalid.
        """
        emitted = check_event_types(emits, what, "an entry of emits", where)
        action_settings = check_settings(ActionSettings, what, where, settings, ("name", "config", "emits"))
        check_asks(what, where, settings)
        if action_settings.needs_approval and ApprovalDeniedEvent not in emitted:
            emitted = (*emitted, ApprovalDeniedEvent)
        return cls(check_triggers(triggers, what, where), emitted, action_settings, dict(config), name)


@dataclass(frozen=True)
class ResourceMark:
    """The arguments of a resource decorator for a function.

    Attributes:
        type: The kind of resource that the function declares.
        name: Name of the resource; None for the function's.
        settings: Limits and approvals of a tool; the default for other kinds.
    """

    type: ResourceType
    name: str | None = None
    settings: ToolSettings = ToolSettings()


def check_triggers(triggers: object, what: str, where: str | None = None) -> tuple[Trigger, ...]:
    """Return ``triggers`` if there is at least one, and each is an event class or a type string.

    Args:
        triggers: One trigger, or an iterable of them, as the author wrote it.
        what: The declaration, such as ``"@action"``, for the error.
        where: Its place in the author's code, for the error; None if unknown.

    Raises:
        UnknownTriggerError: A trigger is invalid, or there is none.
    """
    sequence = _as_sequence(triggers)
    if not sequence:
        raise UnknownTriggerError(
            f"{what} has no trigger",
            fix="write @action(InputEvent), with parentheses and an event",
            where=where,
        )
    return check_event_types(sequence, what, "a trigger", where)


def check_event_types(values: object, what: str, role: str, where: str | None = None) -> tuple[Trigger, ...]:
    """Return a tuple of one or several event types, if each is an event class or a type string.

    Args:
        values: One event type, or an iterable of them, as the author wrote it.
        what: The declaration, such as ``"@action"``, for the error.
        role: The argument of the declaration, such as ``"a trigger"``, for the error.
        where: Its place in the author's code, for the error; None if unknown.

    Raises:
        UnknownTriggerError: A value is neither, or an empty string.
    """
    event_types: list[Trigger] = []
    for value in _as_sequence(values):
        is_event_class = isinstance(value, type) and issubclass(value, Event)
        is_type_string = isinstance(value, str) and value != ""
        if not (is_event_class or is_type_string):
            raise UnknownTriggerError(
                f"{what} has {role} that is not an event type",
                expected="an Event class or a type string",
                found=describe(cast(object, value)),
                fix="write @action(InputEvent) or @action('OrderPlaced')",
                where=where,
            )
        event_types.append(cast(Trigger, value))
    return tuple(event_types)


def _as_sequence(values: object) -> tuple[object, ...]:
    """Return the author's values as a sequence; a single value becomes a sequence of one."""
    if isinstance(values, str | type | Event) or not isinstance(values, Iterable):
        return (cast(object, values),)
    return tuple(cast("Iterable[object]", values))


def action(
    *triggers: Trigger,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    emits: Sequence[Trigger] = (),
    **settings: Unpack[ActionOptions],
) -> Callable[[F], F]:
    """Mark a method as an action, which runs for each event that matches a trigger.

    The method has the parameters ``(event, ctx)``, after ``self`` if it is not a static method, and is
    ``def`` or ``async def``. It emits events by returning or yielding them, or with ``ctx.send_event``.

    Args:
        *triggers: Event classes (subclasses match too) or type strings; any of them.
        name: Name of the action. Default: the method's.
        config: JSON values that the action reads as ``ctx.action_config``.
        emits: Event classes or type strings that the action emits and that its code does not name, for
            example because a library creates them. Events that the code names are found without this.
        **settings: Settings of its execution: ``when``, ``on_error``, ``retry``, ``timeout``,
            ``max_concurrency``, ``rate_limit``, ``blocking``, ``needs_approval``, ``approval_timeout``, as
            ``ActionOptions`` describes them.

    Raises:
        UnknownTriggerError: A trigger is neither an event class nor a type string.
        AgentDefinitionError: A setting is unknown or invalid, or the method is marked already.
    """
    if len(triggers) == 1 and inspect.isroutine(unwrap(triggers[0])):
        check_triggers((), "@action", place_of(triggers[0]))

    def decorate(func: F) -> F:
        where = place_of(func)
        _check_unmarked(func, triggers, where)
        mark = ActionMark.from_arguments("@action", where, triggers, emits, settings, config or {}, name)
        setattr(unwrap(func), ACTION_MARK, mark)
        return func

    return decorate


def _check_unmarked(func: Any, triggers: Sequence[object], where: str) -> None:
    """Raise an error if another ``@action`` is below this one, which would replace it."""
    lower_mark = getattr(unwrap(func), ACTION_MARK, None)
    if not isinstance(lower_mark, ActionMark):
        return
    upper = [_trigger_text(trigger) for trigger in triggers]
    lower = [_trigger_text(trigger) for trigger in lower_mark.triggers]
    raise AgentDefinitionError(
        "two @action mark one function",
        expected="one @action with all triggers of the function",
        found=f"@action({', '.join(upper)}) above @action({', '.join(lower)})",
        fix=f"write @action({', '.join(dict.fromkeys(upper + lower))}); for other options than these, write "
        "a second method",
        where=where,
    )


def _trigger_text(trigger: object) -> str:
    return trigger.__name__ if isinstance(trigger, type) else repr(trigger)


class ResourceDecorator(Protocol):
    """A decorator of methods that declare a resource, with or without parentheses."""

    @overload
    def __call__(self, func: F, /) -> F: ...
    @overload
    def __call__(self, *, name: str | None = None) -> Callable[[F], F]: ...


def _resource_decorator(resource_type: ResourceType) -> ResourceDecorator:
    """Return the decorator of methods that declare a resource of this type; it is named after the type."""

    def decorator(func: Any = None, /, *, name: str | None = None) -> Any:
        def decorate(target: Any) -> Any:
            setattr(unwrap(target), RESOURCE_MARK, ResourceMark(resource_type, name))
            return target

        return decorate if func is None else decorate(func)

    decorator.__name__ = decorator.__qualname__ = resource_type.value
    return decorator


@overload
def tool(func: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, **limits: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(func: Any = None, /, *, name: str | None = None, **limits: Unpack[ToolOptions]) -> Any:
    """Mark a method as a tool, with a schema from its annotations and docstring.

    Args:
        func: The method, if the decorator has no parentheses; None if it has them.
        name: Name of the tool. Default: the method's.
        **limits: ``max_concurrency`` and ``rate_limit`` of the tool that ``ctx.get_resource`` returns;
            ``needs_approval``, ``approval_timeout`` and ``idempotent``.

    Raises:
        AgentDefinitionError: A limit is invalid, or there is an approval timeout without an approval.
    """

    def decorate(target: Any) -> Any:
        settings = check_settings(ToolSettings, "@tool", place_of(target), limits, ("name",))
        check_asks("@tool", place_of(target), limits)
        setattr(unwrap(target), RESOURCE_MARK, ResourceMark(ResourceType.TOOL, name, settings))
        return target

    return decorate if func is None else decorate(func)


def resource(kind: ResourceType | str, *, name: str | None = None) -> Callable[[F], F]:
    """Mark a method that returns the ``ResourceDescriptor`` of a resource that a distribution provides.

    Args:
        kind: The kind: a ``ResourceType``, or the name under which its provider is installed.
        name: Name of the resource. Default: the method's.

    Raises:
        AgentDefinitionError: No installed provider supports that kind.
    """

    def decorate(target: F) -> F:
        mark = ResourceMark(check_resource_type(kind, place_of(target)), name)
        setattr(unwrap(target), RESOURCE_MARK, mark)
        return target

    return decorate


prompt = _resource_decorator(ResourceType.PROMPT)
"""Mark a method without arguments that returns a ``Prompt``."""

chat_model = _resource_decorator(ResourceType.CHAT_MODEL)
"""Mark a method that returns the ``ResourceDescriptor`` of a chat model with its settings."""

chat_model_connection = _resource_decorator(ResourceType.CHAT_MODEL_CONNECTION)
"""Mark a method that returns the ``ResourceDescriptor`` of an endpoint of models: address, key, headers."""

embedding_model = _resource_decorator(ResourceType.EMBEDDING_MODEL)
"""Mark a method that returns the ``ResourceDescriptor`` of an embedding model."""

vector_store = _resource_decorator(ResourceType.VECTOR_STORE)
"""Mark a method that returns the ``ResourceDescriptor`` of a vector store."""

long_term_memory = _resource_decorator(ResourceType.LONG_TERM_MEMORY)
"""Mark a method that returns the ``ResourceDescriptor`` of a long-term memory."""

client = _resource_decorator(ResourceType.CLIENT)
"""Mark a method that opens a client for a subtask; actions get it with ``await ctx.client(name)``.

The method is a generator function with one ``yield``, or returns a context manager. Both may be asynchronous.
"""

mcp_server = _resource_decorator(ResourceType.MCP_SERVER)
"""Mark a method that returns an ``MCPServer``."""

skills = _resource_decorator(ResourceType.SKILLS)
"""Mark a method that returns ``Skills``, or another ``ResourceDescriptor`` of them."""


class ClassAttribute(staticmethod):  # type: ignore[type-arg]
    """A function that workers find by the class whose attribute it is, like a method in the class body.

    Classes of agents are sent to the workers of a job by their names, which must lead to their actions and
    tools.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        function = self.__func__
        function.__module__ = owner.__module__
        function.__name__ = name
        function.__qualname__ = f"{owner.__qualname__}.{name}"

    def __reduce__(self) -> tuple[type[ClassAttribute], tuple[Any]]:
        # Classes of a script are sent by value: a static method can be pickled, but not its subclass.
        return type(self), (self.__func__,)
