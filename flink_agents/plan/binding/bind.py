"""Makes a running agent from a plan: finds functions, creates the instance, and binds actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import is_users_code, place_of, place_of_class, unwrap
from flink_agents.api.common.policies import OnError, OnSuspend, RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import (
    AgentDefinitionError,
    FunctionReferenceError,
    ResourceNotFoundError,
    ResourceUnavailableError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.events import Event
from flink_agents.api.events.approvals import ApprovalDeniedEvent
from flink_agents.api.resources import RESOURCE_PROVIDERS, ResourceType, check_resource_type
from flink_agents.api.resources.providers import DeclaredResource, NamedCode, provider_of
from flink_agents.api.settings import ActionSettings
from flink_agents.api.settings.options import Configuration
from flink_agents.plan.analysis.functions import has_async_code, is_async_generator, is_generator
from flink_agents.plan.binding.approvals import with_approval
from flink_agents.plan.compile.code import AgentCode
from flink_agents.plan.compile.configuration import make_instance
from flink_agents.plan.compile.declarations import actions_of, resources_of
from flink_agents.plan.compile.events import BUILT_IN
from flink_agents.plan.compile.literal_secrets import check_plan
from flink_agents.plan.model import (
    ActionPlan,
    AgentPlan,
    ConditionPlan,
    DescriptorPlan,
    Kind,
    ResourcePlan,
    RetryPlan,
)
from flink_agents.plan.references import FunctionRef, type_from_text

ResourceKey = tuple[ResourceType, str]


@dataclass(slots=True)
class BoundAction:
    """An action that can be called.

    Attributes:
        name: Its name.
        call: Takes the event and the context; it is bound to the instance.
        is_async: True for a coroutine function or an asynchronous generator.
        is_generator: True for a generator, which yields events.
        is_async_generator: True for an asynchronous generator.
        trigger_classes: Classes whose instances, subclasses included, trigger it.
        trigger_types: Type strings that trigger it if ``event.event_type`` equals one.
        settings: Its declared settings.
        config: The value of ``ctx.action_config``.
        where: Its position, ``file:line in name``.
        function: The plain function, for error displays.
        off_thread: True if it must not even start on Flink's thread: a ``def`` action that blocks, has a
            timeout, has limits or makes durable steps.
        journalled: True if it makes durable steps, or may make some, as far as is known.
    """

    name: str
    call: Callable[[Event, RunnerContext], Any]
    is_async: bool
    is_generator: bool
    is_async_generator: bool
    trigger_classes: tuple[type[Event], ...]
    trigger_types: frozenset[str]
    settings: ActionSettings
    config: Mapping[str, Any]
    where: str
    function: Callable[..., Any]
    off_thread: bool = False
    journalled: bool = False

    @property
    def may_be_recorded(self) -> bool:
        """True if a replay may take the action's effects from a record."""
        return self.journalled or self.is_async or self.off_thread

    def make_calls(self) -> None:
        """Declare that the action makes durable steps."""
        self.journalled = True
        self.off_thread = self.off_thread or not self.is_async


@dataclass
class BoundAgent:
    """An agent that can run.

    Attributes:
        plan: Its plan.
        instance: The agent object, made from the plan's configuration.
        actions: Its actions in the order of declaration.
        context_class: Its ``RunnerContext`` subclass, or None.
        side_outputs: Tags and the Python types of their values.
        output_type: Python type of its outputs; None for any.
        on_error: Policy for failed actions that have no policy.
        on_unhandled: Policy for events that no action accepts.
        event_types: Event classes that the agent knows, by type string.
        retry: Retry policy for actions that have none, or None.
        on_suspend: Policy for inputs after a suspended run of their key.
        clients: Functions without arguments that open clients, by name.
    """

    plan: AgentPlan
    instance: Agent
    actions: tuple[BoundAction, ...]
    context_class: type[RunnerContext] | None
    side_outputs: Mapping[str, Any]
    output_type: Any
    on_error: OnError | None
    on_unhandled: OnError | None
    event_types: Mapping[str, type[Event]]
    retry: RetryPolicy | None = None
    on_suspend: OnSuspend | None = None
    clients: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    _functions: Mapping[ResourceKey, Callable[..., Any]] = field(default_factory=dict, repr=False)
    _approvals: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _named: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _made: dict[ResourceKey, Any] = field(default_factory=dict, repr=False)

    @property
    def asks(self) -> bool:
        """True if an action or a tool needs an approval, as far as the plan shows."""
        return any(plan_part.needs_approval for plan_part in (*self.plan.actions, *self.plan.resources))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the agent's tools and clients, including those that its class does not name."""
        return tuple(self._functions.values())

    def modules(self) -> set[str]:
        """Return the names of the modules in which the agent's own code and types are defined."""
        types = (*self.side_outputs.values(), self.output_type, self.context_class, type(self.instance))
        functions = (*(action.function for action in self.actions), *self.clients.values())
        defined = (*types, *functions, *self.event_types.values())
        named = {action.function.module for action in self.plan.actions}
        named |= {
            resource.function.module for resource in self.plan.resources if resource.function is not None
        }
        return named | {
            name for definition in defined if isinstance(name := getattr(definition, "__module__", None), str)
        }

    def resource(self, name: str, type: ResourceType | str) -> Any:
        """Return the resource with that name, from its provider.

        Raises:
            ResourceNotFoundError: The agent has no resource of that name and type.
            ResourceUnavailableError: No installed provider supports its kind.
        """
        try:
            kind = check_resource_type(type)
        except AgentDefinitionError as error:
            raise ResourceNotFoundError(
                error.message, expected=error.expected, found=error.found, fix=error.fix
            ) from None
        resource_plan = next(
            (resource for resource in self.plan.resources if (resource.name, resource.type) == (name, kind)),
            None,
        )
        if resource_plan is None:
            raise self._not_found(name, kind)
        if (kind, name) not in self._made:
            self._made[kind, name] = self._provide(resource_plan)
        return self._made[kind, name]

    def check_cluster(self, config: Configuration) -> None:
        """Let the providers of resources reject resources that cannot work on a real cluster.

        Args:
            config: The options of the job.

        Raises:
            AgentsError: A provider rejects one.
        """
        for resource in self.plan.resources:
            provider = provider_of(resource.type)
            if provider is not None and resource.descriptor is not None and not resource.descriptor.clazz:
                provider.check_cluster(resource.name, resource.descriptor.arguments, config)

    def check_worker(self, config: Configuration) -> None:
        """Check that this process has the requirements of the resources: providers, modules, secrets.

        Args:
            config: The options of the job.

        Raises:
            AgentsError: Something is missing.
        """
        for resource in self.plan.resources:
            provider = provider_of(resource.type)
            if provider is None:
                raise _unprovided(resource)
            provider.check_worker(self.declared(resource), config)

    def _provide(self, resource: ResourcePlan) -> Any:
        provider = provider_of(resource.type)
        if provider is None:
            raise _unprovided(resource)
        return provider.provide(self.declared(resource))

    def declared(self, resource: ResourcePlan) -> DeclaredResource:
        """Return a resource of the plan in the form for its provider."""
        descriptor = resource.descriptor or DescriptorPlan()
        return DeclaredResource(
            name=resource.name,
            get=self.resource,
            clazz=self._named_code(descriptor.clazz),
            arguments=self._named_code(descriptor.arguments),
            function=self._functions.get((resource.type, resource.name)),
            description=resource.description,
            prompt=resource.prompt,
            limits=resource.model_copy(update={"needs_approval": self._approvals.get(resource.name, False)}),
        )

    def _named_code(self, value: Any) -> Any:
        """Return a name, or arguments with names, resolved to the objects that came with the job."""
        if isinstance(value, str):
            return NamedCode(value, self._named[value]) if value in self._named else value
        if isinstance(value, dict) and self._named:
            return {name: self._named_code(member) for name, member in cast("dict[str, Any]", value).items()}
        return value

    def load_providers(self) -> None:
        """Let the providers of the agent's resources import their libraries.

        Raises:
            MissingExtraError: A package is missing.
        """
        for kind in dict.fromkeys(resource.type for resource in self.plan.resources):
            try:
                provider = provider_of(kind)
            except ResourceUnavailableError:
                # The action that uses such a resource gets the error.
                continue
            if provider is not None:
                provider.load()

    def made_resources(self) -> list[Any]:
        """The resources that were made, the newest first."""
        return list(reversed(self._made.values()))

    def client(self, name: str) -> Callable[[], Any]:
        """Return the function that opens the client ``name``.

        Raises:
            ResourceNotFoundError: The agent has no client of that name.
        """
        if name not in self.clients:
            raise self._not_found(name, ResourceType.CLIENT)
        return self.clients[name]

    def _not_found(self, name: str, kind: ResourceType) -> ResourceNotFoundError:
        names = [resource.name for resource in self.plan.resources if resource.type is kind]
        elsewhere = [resource.type.value for resource in self.plan.resources if resource.name == name]
        fix = f"declare it in the agent, with @{kind.value} or add_resource"
        if elsewhere:
            fix = f"{name!r} is a {elsewhere[0]}: ask for that type"
        return ResourceNotFoundError(
            f"the agent {self.plan.name!r} has no {kind.value} {name!r}",
            expected=", ".join(map(repr, names)) or f"an agent with a {kind.value}",
            found=repr(name),
            fix=suggest(name, names, fix),
        )


def _unprovided(resource: ResourcePlan) -> ResourceUnavailableError:
    return ResourceUnavailableError(
        f"no installed package provides the {resource.type.value} {resource.name!r}",
        expected=f"a distribution with an entry point {resource.type.value!r} in {RESOURCE_PROVIDERS}",
        found=(resource.descriptor and resource.descriptor.clazz) or resource.type.value,
        fix="install one, on the workers as well, or call the service from the action itself",
    )


def bind(plan: AgentPlan, code: AgentCode | None = None) -> BoundAgent:
    """Create the agent that ``plan`` describes.

    Args:
        plan: The plan.
        code: Its code. Default: everything is imported by the names in the plan.

    Raises:
        FunctionReferenceError: A function or class of the plan cannot be found.
        AgentConfigurationError: The constructor does not accept the plan's configuration.
        LiteralSecretError: A loaded plan holds a secret.
    """
    if code is None:
        # The plan was loaded from a file: compile_agent has not checked it.
        check_plan(plan)
    agent_class = _agent_class(plan, code)
    instance = make_instance(agent_class, plan.configuration, code.parameter_types if code else None)
    instance.agent_name = plan.name
    events = _event_types(plan, code)
    functions = {
        (resource.type, resource.name): _function_of(resource, instance, code)
        for resource in plan.resources
        if resource.type in (ResourceType.TOOL, ResourceType.CLIENT)
    }
    context_class, side_outputs, output_type = _types_of(plan, code)
    denied = ApprovalDeniedEvent.EVENT_TYPE
    tells = any(denied in action.triggers for action in plan.actions)
    # The constructor may have received it as an argument, which no plan holds.
    instance.output_type = output_type
    tools = code.tools.values() if code is not None else resources_of(instance)
    declared = {tool.name: tool.settings.needs_approval for tool in tools if tool.type is ResourceType.TOOL}
    return BoundAgent(
        plan=plan,
        instance=instance,
        actions=tuple(_bind_action(action, instance, code, events, tells) for action in plan.actions),
        context_class=context_class,
        side_outputs=side_outputs,
        output_type=output_type,
        on_error=plan.on_error,
        on_unhandled=plan.on_unhandled,
        event_types=events,
        retry=_retry(plan.retry, code.retry if code is not None else None),
        on_suspend=plan.on_suspend,
        clients={
            name: function for (kind, name), function in functions.items() if kind is ResourceType.CLIENT
        },
        _functions=functions,
        _named=code.named if code is not None else {},
        _approvals={
            resource.name: _needs(resource, declared)
            for resource in plan.resources
            if resource.type is ResourceType.TOOL
        },
    )


def _types_of(plan: AgentPlan, code: AgentCode | None) -> tuple[Any, Mapping[str, Any], Any]:
    """Return the context class, the types of side outputs, and the output type."""
    if code is not None:
        return code.context_class, code.side_outputs, code.output_type
    context_class = plan.context_class.resolve() if plan.context_class else None
    side_outputs = {tag: type_from_text(text) for tag, text in plan.side_outputs.items()}
    return context_class, side_outputs, type_from_text(plan.output_type) if plan.output_type else None


def _agent_class(plan: AgentPlan, code: AgentCode | None) -> type[Agent]:
    if code is not None:
        return code.agent_class
    return plan.agent_class.resolve() if plan.agent_class else Agent


def _event_types(plan: AgentPlan, code: AgentCode | None) -> dict[str, type[Event]]:
    event_classes: dict[str, type[Event]] = {}
    for event in plan.events:
        if event.type in BUILT_IN:
            event_classes[event.type] = BUILT_IN[event.type]
        elif code is not None and event.type in code.events:
            event_classes[event.type] = code.events[event.type]
        elif event.event_class is not None:
            event_classes[event.type] = event.event_class.resolve()
    return event_classes


def _bind_action(
    action: ActionPlan,
    instance: Agent,
    code: AgentCode | None,
    events: Mapping[str, type[Event]],
    tells: bool,
) -> BoundAction:
    function, settings = _code_of(action, instance, code)
    is_async = has_async_code(function)
    waits = settings.blocking or any((settings.timeout, settings.max_concurrency, settings.rate_limit))
    call = _bound(function, action.kind, instance)
    if settings.needs_approval:
        call = with_approval(action.name, call, settings, tells)
    return BoundAction(
        name=action.name,
        call=call,
        is_async=is_async,
        is_generator=is_generator(function),
        is_async_generator=is_async_generator(function),
        trigger_classes=tuple(events[event_type] for event_type in action.trigger_classes),
        trigger_types=frozenset(action.trigger_types),
        settings=settings,
        config=dict(action.config),
        where=_where(function, instance),
        function=function,
        off_thread=waits and not is_async,
    )


def _retry(planned: RetryPlan | None, policy: RetryPolicy | None) -> RetryPolicy | None:
    """Return the policy of the code, whose exceptions may have no name; else the policy of the plan."""
    return policy or (planned.policy() if planned is not None else None)


def _where(function: Any, instance: Agent) -> str:
    """Return the user's line of an action; for an action of this package, the user's class."""
    code = getattr(inspect.unwrap(unwrap(function)), "__code__", None)
    kind = type(instance)
    if code is None or is_users_code(code) or kind.__module__.startswith("flink_agents."):
        return place_of(function)
    return place_of_class(kind)


def _code_of(
    action: ActionPlan, instance: Agent, code: AgentCode | None
) -> tuple[Callable[..., Any], ActionSettings]:
    """Return the plain function of an action, and its plan settings with the agent's code."""
    if code is not None:
        for declared in code.actions:
            if declared.name == action.name:
                mark = declared.mark.settings
                return declared.function, _settings(action, mark.retry, mark.when, mark.needs_approval)
        raise FunctionReferenceError(
            f"the code of the agent has no action {action.name!r}",
            expected=f"the code that the plan was compiled from: {action.function}",
            found=", ".join(declared.name for declared in code.actions) or "no action",
            fix="pass bind() the plan and the code of the same agent",
        )
    condition = _condition(action.when, action.name, instance)
    declared = {
        declaration.name: declaration.mark.settings.needs_approval for declaration in actions_of(instance)
    }
    needs = _needs(action, declared)
    return unwrap(action.function.resolve()), _settings(action, None, condition, needs)


def _settings(
    action: ActionPlan, retry: RetryPolicy | None, when: Callable[[Event], bool] | None, needs: Any
) -> ActionSettings:
    values = {**action.plain(), "needs_approval": needs}
    return ActionSettings(**values, retry=_retry(action.retry, retry), when=when)


def _needs(action_or_tool: ActionPlan | ResourcePlan, declared: Mapping[str, Any]) -> Any:
    """Return True if an approval is needed, or the function that decides.

    Args:
        action_or_tool: The action or tool.
        declared: The setting in the code, by name, if it is available.
    """
    if not isinstance(action_or_tool.needs_approval, str):
        return action_or_tool.needs_approval
    if action_or_tool.name in declared:
        return declared[action_or_tool.name]
    return FunctionRef.parse(action_or_tool.needs_approval).resolve()


def _condition(when: ConditionPlan | None, name: str, instance: Agent) -> Callable[[Event], bool] | None:
    if when is None:
        return None
    if not when.function.importable:
        # A lambda has no name, but the class that declares the action still holds it.
        for declared in actions_of(instance):
            if declared.name == name:
                return declared.mark.settings.when
    return when.function.resolve()


def _bound(function: Callable[..., Any], kind: Kind | None, instance: Agent) -> Callable[..., Any]:
    if kind != "instance":
        return function
    binder: Any = function
    return binder.__get__(instance, type(instance))


def _function_of(resource: ResourcePlan, instance: Agent, code: AgentCode | None) -> Callable[..., Any]:
    """Return the function of a tool or a client, bound to the agent."""
    function = None
    hints = None
    if code is not None:
        is_tool = resource.type is ResourceType.TOOL
        declared = (code.tools if is_tool else code.clients).get(resource.name)
        function = declared.function if declared is not None else None
        hints = code.annotations.get(resource.name) if is_tool else None
    if function is None:
        if resource.function is None:
            raise FunctionReferenceError(
                f"the plan names no function for the {resource.type.value} {resource.name!r}",
                expected="module and qualname of a function",
                fix="compile the plan again",
            )
        function = unwrap(resource.function.resolve())
    return _bound(_with_annotations(function, hints) if hints else function, resource.kind, instance)


def _with_annotations(function: Callable[..., Any], hints: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a copy of ``function`` whose annotations are types, not names that may be unknown there."""
    if not isinstance(function, FunctionType) or inspect.unwrap(function) is not function:
        return function
    code = function.__code__
    names = function.__globals__
    name = function.__name__
    copy = FunctionType(code, names, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__annotations__ = dict(hints)
    copy.__qualname__ = function.__qualname__
    copy.__doc__ = function.__doc__
    copy.__module__ = function.__module__
    return copy
