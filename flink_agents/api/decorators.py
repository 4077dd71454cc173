"""Decorators that mark the methods of an agent class.

They only attach what was said to the function; ``flink_agents.plan`` reads and checks it.
Methods may be static or take ``self``; ``@staticmethod`` may stand above or below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from flink_agents.api.errors import UnknownTriggerError
from flink_agents.api.events import Event
from flink_agents.api.policies import OnError
from flink_agents.api.resources import ResourceType

F = TypeVar("F", bound=Callable[..., Any])
Trigger = type[Event] | str
Condition = Callable[[Any], bool]

ACTION_MARK = "__flink_agents_action__"
RESOURCE_MARK = "__flink_agents_resource__"


@dataclass(frozen=True)
class ActionMark:
    """What ``@action`` or ``add_action`` said about a function.

    Attributes:
        triggers: Event classes or type strings.
        when: Condition on the event, or None.
        on_error: Policy where it raises; None for the agent's.
        config: What the action can read as ``ctx.action_config``; JSON values.
        name: Name of the action; None for the function's.
    """

    triggers: tuple[Trigger, ...]
    when: Condition | None = None
    on_error: OnError | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True)
class ResourceMark:
    """What a resource decorator said about a function."""

    type: ResourceType
    name: str | None = None


def check_triggers(triggers: tuple[Any, ...], where: str) -> tuple[Trigger, ...]:
    """``triggers`` if each is an event class or a type string.

    Raises:
        UnknownTriggerError: One is not, or there is none.
    """
    for trigger in triggers:
        is_event = isinstance(trigger, type) and issubclass(trigger, Event)
        if not is_event and not (isinstance(trigger, str) and trigger):
            raise UnknownTriggerError(
                f"{where} has a trigger that is no event type",
                expected="an Event class or a type string",
                found=repr(trigger),
                fix="write @action(InputEvent) or @action('OrderPlaced')",
            )
    if not triggers:
        raise UnknownTriggerError(
            f"{where} has no trigger", fix="write @action(InputEvent), with parentheses and an event"
        )
    return triggers


def action(
    *triggers: Trigger,
    when: Condition | None = None,
    on_error: OnError | str | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Mark a method as an action: it runs for each event that matches a trigger.

    The method takes ``(event, ctx)``, after ``self`` where it is no static method, and is
    ``def`` or ``async def``. Events that it returns, yields or gives to ``ctx.send_event``
    are emitted.

    Args:
        *triggers: Event classes (subclasses match too) or type strings; any of them.
        when: Called with the event; the action runs where it returns true.
        on_error: Policy where the action raises. Default: the agent's.
        name: Name of the action. Default: the method's.
        config: JSON values that the action reads as ``ctx.action_config``.

    Raises:
        UnknownTriggerError: A trigger is neither.
    """
    mark = ActionMark(
        triggers=check_triggers(triggers, "@action"),
        when=when,
        on_error=None if on_error is None else OnError(on_error),
        config=dict(config or {}),
        name=name,
    )

    def decorate(func: F) -> F:
        setattr(unwrap(func), ACTION_MARK, mark)
        return func

    return decorate


def unwrap(func: Any) -> Any:
    """The plain function inside a static method, or ``func`` itself."""
    return func.__func__ if isinstance(func, staticmethod) else func


def _resource(resource_type: ResourceType) -> Any:
    @overload
    def decorator(func: F, /) -> F: ...
    @overload
    def decorator(*, name: str | None = None) -> Callable[[F], F]: ...
    def decorator(func: Any = None, /, *, name: str | None = None) -> Any:
        def decorate(target: Any) -> Any:
            setattr(unwrap(target), RESOURCE_MARK, ResourceMark(resource_type, name))
            return target

        return decorate if func is None else decorate(func)

    decorator.__name__ = decorator.__qualname__ = resource_type.value
    return decorator


tool = _resource(ResourceType.TOOL)
"""Mark a method as a tool: the function itself, its schema from annotations and docstring."""

prompt = _resource(ResourceType.PROMPT)
"""Mark a method without arguments that returns a ``Prompt``."""

chat_model_connection = _resource(ResourceType.CHAT_MODEL_CONNECTION)
"""Mark a method that returns the ``ResourceDescriptor`` of a connection to chat models."""

chat_model_setup = _resource(ResourceType.CHAT_MODEL_SETUP)
"""Mark a method that returns the ``ResourceDescriptor`` of a chat model with its settings."""

embedding_model_connection = _resource(ResourceType.EMBEDDING_MODEL_CONNECTION)
"""Mark a method that returns the ``ResourceDescriptor`` of a connection to embedding models."""

embedding_model_setup = _resource(ResourceType.EMBEDDING_MODEL_SETUP)
"""Mark a method that returns the ``ResourceDescriptor`` of an embedding model."""

vector_store = _resource(ResourceType.VECTOR_STORE)
"""Mark a method that returns the ``ResourceDescriptor`` of a vector store."""

mcp_server = _resource(ResourceType.MCP_SERVER)
"""Mark a method that returns the ``ResourceDescriptor`` of an MCP server."""
