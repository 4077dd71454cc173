"""``Agent``: the base class of your agents, and a builder for agents without a class.

As a class::

    class Greeter(Agent):
        @action(InputEvent)
        def greet(self, event, ctx):
            return OutputEvent(output=f"hello {event.input}")

As a builder::

    def greet(event, ctx):
        return OutputEvent(output=f"hello {event.input}")

    agent = Agent(name="Greeter").add_action("greet", [InputEvent], greet)

Constructor arguments of a subclass are its configuration: they are written into the plan, and each subtask
creates its own instance from them. So attributes of an instance are constants; store values that must be
remembered in ``ctx.short_term_memory``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack, overload

from flink_agents.api.agents.decorators import ActionMark, ClassAttribute, Trigger, tool
from flink_agents.api.common.places import caller_place, place_of
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import DuplicateNameError
from flink_agents.api.events import InputEvent
from flink_agents.api.resources import ResourceType, check_resource_type
from flink_agents.api.settings import ActionOptions, ActionSettings, AgentAttributes, check_near


def _copy_argument(argument: Any) -> Any:
    """Return a deep copy, which the constructor cannot change; ``argument`` itself if it has no copy."""
    try:
        return copy.deepcopy(argument)
    except Exception:  # foreign classes can raise anything; the plan rejects live objects with a named error
        return argument


class Agent(AgentAttributes):
    """The base class of agents: derive a class from it, or add actions to an instance.

    Its settings are also class attributes: those of :class:`AgentAttributes`.

    Attributes:
        agent_name: Name of the agent; scopes its memory and names its operator, so it must
            not change while state is to be kept. Default: the class name.
        context_class: A ``RunnerContext`` subclass with a project's own methods.
        side_outputs: Tags for ``ctx.emit_to`` and the Python type of their values.
        output_type: Python type of the values in ``OutputEvent``; None for any.
    """

    agent_name: str | None = None
    context_class: ClassVar[type[RunnerContext] | None] = None
    side_outputs: ClassVar[Mapping[str, Any]] = {}
    output_type: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments as they are now: they are the configuration in the plan."""
        self = object.__new__(cls)
        self.__dict__["__arguments__"] = (
            tuple(map(_copy_argument, args)),
            {name: _copy_argument(value) for name, value in kwargs.items()},
        )
        self.__dict__["__actions__"] = {}
        self.__dict__["__resources__"] = {}
        # Places of declarations that have no code, for error texts.
        self.__dict__["__places__"] = {"agent": caller_place(0)} if cls is Agent else {}
        return self

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            self.agent_name = name

    def as_tool(self, description: str | None = None, *, input_type: Any = str) -> Any:
        """Make a tool of the agent, with which a model calls it as ``ctx.call_agent`` does.

        In the body of another agent's class: ``check = Checker().as_tool("Checks an order.")``; or
        ``agent.add_resource("check", "tool", Checker().as_tool())``. The model gets the value of the agent's
        ``OutputEvent``. Each durable step of the agent is recorded, as a step of the action that holds the
        conversation.

        Args:
            description: Description of the tool for the model. Default: the first paragraph of the class's
                docstring.
            input_type: Type of the argument ``request``, which becomes the input: a pydantic model, a
                dataclass, or another type that pydantic supports.
        """

        async def ask_agent(request: Any, ctx: RunnerContext) -> Any:
            return await ctx.call_agent(self, InputEvent(input=request))

        ask_agent.__annotations__ = {"request": input_type, "ctx": RunnerContext, "return": Any}
        name = self.agent_name or type(self).__name__
        docstring = inspect.getdoc(type(self)) if type(self) is not Agent else None
        default = docstring or f"Hands a request over to {name}, and returns the answer."
        ask_agent.__doc__ = description or default
        return ClassAttribute(tool(ask_agent))

    @overload
    def add_action(
        self,
        name: str,
        triggers: Sequence[Trigger] | Trigger,
        func: Callable[..., Any],
        *,
        emits: Sequence[Trigger] = (),
        **settings: Unpack[ActionOptions],
    ) -> Self: ...
    @overload
    def add_action(
        self,
        name: str,
        triggers: Sequence[Trigger] | Trigger,
        func: Callable[..., Any],
        *,
        emits: Sequence[Trigger] = (),
        **settings_and_config: Any,
    ) -> Self: ...
    def add_action(
        self,
        name: str,
        triggers: Sequence[Trigger] | Trigger,
        func: Callable[..., Any],
        *,
        emits: Sequence[Trigger] = (),
        **settings_and_config: Any,
    ) -> Self:
        """Add an action, and return the agent.

        Args:
            name: Name of the action, unique in the agent.
            triggers: Event classes or type strings.
            func: ``(event, ctx)``, ``def`` or ``async def``.
            emits: Event classes or type strings that the action emits and that its code does not name.
            **settings_and_config: Settings of its execution (see ``ActionOptions``); all others are JSON
                values that the action reads as ``ctx.action_config``.

        Raises:
            DuplicateNameError: The agent already has an action of that name.
            UnknownTriggerError: A trigger is neither an event class nor a type string.
            AgentDefinitionError: A setting is invalid, or the name of a config value is almost that of a
                setting.
        """
        config = settings_and_config
        settings = {key: config.pop(key) for key in ActionSettings.model_fields if key in config}
        setting_names = (*ActionSettings.model_fields, "emits")
        check_near(f"action {name!r}", place_of(func), config, setting_names, "rename the value")
        return self._add(name, triggers, func, emits, settings, config)

    def _add(
        self,
        name: str,
        triggers: Sequence[Trigger] | Trigger,
        func: Callable[..., Any],
        emits: Sequence[Trigger],
        settings: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> Self:
        where = place_of(func)
        actions = self.__dict__["__actions__"]
        if name in actions:
            raise DuplicateNameError(
                f"the agent already has an action {name!r}",
                fix="give each action its own name",
                where=where,
            )
        mark = ActionMark.from_arguments(f"action {name!r}", where, triggers, emits, settings, config, name)
        actions[name] = (mark, func)
        return self

    def add_resource(self, name: str, resource_type: ResourceType | str, resource: Any) -> Self:
        """Add a resource, and return the agent.

        Args:
            name: Name of the resource, unique in its type.
            resource_type: Its kind: a ``ResourceType`` or its value, such as ``"tool"``.
            resource: A function (for a tool), a ``Tool``, a ``Prompt`` or a
                ``ResourceDescriptor``.

        Raises:
            AgentDefinitionError: The type is unknown.
            DuplicateNameError: The agent already has a resource of that type and name.
        """
        where = caller_place(0)
        key = (check_resource_type(resource_type, where), name)
        resources = self.__dict__["__resources__"]
        if key in resources:
            raise DuplicateNameError(
                f"the agent already has a {key[0].value} {name!r}",
                fix="give each resource its own name",
                where=where,
            )
        resources[key] = resource
        self.__dict__["__places__"][key] = where
        return self
