"""``LoadedAgent``: a running agent, made from a plan and its code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, cast

from typing_extensions import override

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.awaited import truth_of
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import is_users_code, place_of, place_of_class, unwrap
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import (
    AgentDefinitionError,
    FunctionReferenceError,
    ResourceNotFoundError,
    ResourceUnavailableError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.events import Event, lineage_of_sent, stamp
from flink_agents.api.events.approvals import ApprovalDeniedEvent, arguments_of, changed_event
from flink_agents.api.resources import (
    RESOURCE_PROVIDERS,
    ChatMessage,
    Prompt,
    ResourceType,
    Tool,
    check_resource_type,
)
from flink_agents.api.resources.providers import DeclaredResource, NamedCode, ResourceProvider, provider_of
from flink_agents.api.settings import ActionSettings
from flink_agents.api.settings.options import Configuration
from flink_agents.plan.analysis.functions import has_async_code, is_async_generator, is_generator
from flink_agents.plan.compile.code import ActionCode, AgentCode, ResourceCode, ResourceKey
from flink_agents.plan.compile.configuration import make_instance
from flink_agents.plan.compile.events import BUILT_IN
from flink_agents.plan.compile.literal_secrets import check_plan
from flink_agents.plan.model import ActionPlan, AgentPlan, DescriptorPlan, Kind, ResourcePlan

_log = bounded_logger("flink_agents.resources")


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


class LoadedAgent:
    """An agent that can run. Any thread may use it.

    Args:
        plan: The plan.
        code: Its code. Default: everything is imported by the names in the plan.

    Attributes:
        plan: Its plan.
        name: Its name in the job.
        instance: The agent object, made from the plan's configuration.
        actions: Its actions in the order of declaration.
        settings: Its settings, as declared.
        context_class: Its ``RunnerContext`` subclass, or None.
        side_outputs: Tags and the Python types of their values.
        output_type: Python type of its outputs; None for any.
        event_types: Event classes that the agent knows, by type string.
        clients: Functions without arguments that open clients, by name.

    Raises:
        FunctionReferenceError: A function or class of the plan cannot be found.
        AgentConfigurationError: The constructor does not accept the plan's configuration.
        LiteralSecretError: A loaded plan holds a secret.
    """

    def __init__(self, plan: AgentPlan, code: AgentCode | None = None) -> None:
        if code is None:
            # The plan was loaded from a file: compile_agent has not checked it.
            check_plan(plan)
            code = AgentCode.imported(plan)
        self.plan = plan
        self.name = plan.name
        self.instance: Agent = make_instance(code.agent_class, plan.configuration, code.parameter_types)
        self.instance.agent_name = plan.name
        # The constructor may have received it as an argument, which no plan holds.
        self.instance.output_type = code.output_type
        self.settings = code.settings
        self.context_class: type[RunnerContext] | None = code.context_class
        self.side_outputs = code.side_outputs
        self.output_type = code.output_type
        event_classes = {**code.events, **BUILT_IN}
        self.event_types: Mapping[str, type[Event]] = {
            event.type: event_classes[event.type] for event in plan.events if event.type in event_classes
        }
        self._code = code
        self._functions: dict[ResourceKey, Callable[..., Any]] = {
            (resource.type, resource.name): _bound(
                _with_annotations(code.resources[resource.type, resource.name]), resource.kind, self.instance
            )
            for resource in plan.resources
            if (resource.type, resource.name) in code.resources
        }
        self.clients: Mapping[str, Callable[[], Any]] = {
            name: function
            for (kind, name), function in self._functions.items()
            if kind is ResourceType.CLIENT
        }
        self.actions = tuple(self._bind_action(action) for action in plan.actions)
        self._resources: dict[ResourceKey, Any] = {}

    def leave_thread(self) -> None:
        """Mark ``def`` actions that make durable steps, or may: none of them starts on Flink's task thread.

        It could not end there, and its code up to the first step would run twice.
        """
        for plan, action in zip(self.plan.actions, self.actions, strict=True):
            if not plan.is_async and (plan.calls or plan.opaque):
                action.off_thread = True

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the agent's tools and clients, including those that its class does not name."""
        return tuple(self._functions.values())

    def modules(self) -> set[str]:
        """Return the names of the modules in which the agent's own code and types are defined."""
        types = (*self.side_outputs.values(), self.output_type, self.context_class, type(self.instance))
        functions = (*(action.function for action in self.actions), *self.clients.values())
        defined = (*types, *functions, *self.event_types.values())
        planned = (part.function for part in (*self.plan.actions, *self.plan.resources))
        return {function.module for function in planned if function is not None} | {
            name for definition in defined if isinstance(name := getattr(definition, "__module__", None), str)
        }

    def _bind_action(self, action: ActionPlan) -> BoundAction:
        """Return an action with its code bound to the agent, and asking for an approval if it needs one."""
        code = self._action_code(action)
        function = code.function
        settings = code.settings
        is_async = has_async_code(function)
        may_wait = settings.blocking or any((settings.timeout, settings.max_concurrency, settings.rate_limit))
        call = _bound(function, action.kind, self.instance)
        if settings.needs_approval:
            denied = ApprovalDeniedEvent.EVENT_TYPE
            reports_denial = any(denied in other_action.triggers for other_action in self.plan.actions)
            call = _with_approval(action.name, call, settings, reports_denial)
        return BoundAction(
            name=action.name,
            call=call,
            is_async=is_async,
            is_generator=is_generator(function),
            is_async_generator=is_async_generator(function),
            trigger_classes=tuple(self.event_types[event_type] for event_type in action.trigger_classes),
            trigger_types=frozenset(action.trigger_types),
            settings=settings,
            config=dict(action.config),
            where=_where(function, type(self.instance)),
            function=function,
            off_thread=may_wait and not is_async,
        )

    def _action_code(self, action: ActionPlan) -> ActionCode:
        """Return the code of an action.

        Raises:
            FunctionReferenceError: The code is of another agent than the plan.
        """
        if action.name not in self._code.actions:
            raise FunctionReferenceError(
                f"the code of the agent has no action {action.name!r}",
                expected=f"the code that the plan was compiled from: {action.function}",
                found=", ".join(self._code.actions) or "no action",
                fix="pass the plan and the code of the same agent",
            )
        return self._code.actions[action.name]

    def resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return the resource with that name, from its provider. It is created at its first use.

        Raises:
            ResourceNotFoundError: The agent has no resource of that name and type.
            ResourceUnavailableError: No installed provider supports its kind.
        """
        try:
            kind = check_resource_type(resource_type)
        except AgentDefinitionError as error:
            raise ResourceNotFoundError(
                error.message, expected=error.expected, found=error.found, fix=error.fix
            ) from None
        if (kind, name) not in self._resources:
            for resource in self.plan.resources:
                if (resource.name, resource.type) == (name, kind):
                    # Without the context of the first caller: the resource outlives it.
                    self._resources[kind, name] = Context().run(self._provide, resource)
                    break
            else:
                raise self._not_found(name, kind)
        return self._resources[kind, name]

    def _provide(self, resource: ResourcePlan) -> Any:
        """Create a resource of the plan, by the provider for its kind."""
        return _provider(resource).provide(self.declared(resource))

    async def close_resources(self, seconds: float) -> None:
        """Close the created resources, the newest first. An exception from one of them is logged.

        Args:
            seconds: Maximum duration for each.
        """
        for resource in reversed(self._resources.values()):
            close = getattr(resource, "aclose", None)
            if close is None:
                continue
            try:
                await asyncio.wait_for(close(), seconds)
            except Exception as error:  # whatever a foreign resource raises
                _log.warning("a resource, %s, was not closed: %r", type(resource).__qualname__, error)

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
            _provider(resource).check_worker(self.declared(resource), config)

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

    def declared(self, resource: ResourcePlan) -> DeclaredResource:
        """Return a resource of the plan as its provider gets it: with its code, bound to the agent."""
        descriptor = resource.descriptor or DescriptorPlan()
        code = self._code.resources.get((resource.type, resource.name))
        return DeclaredResource(
            name=resource.name,
            get=self.resource,
            clazz=self._named_code(descriptor.clazz),
            arguments=self._named_code(descriptor.arguments),
            function=self._functions.get((resource.type, resource.name)),
            description=resource.description,
            prompt=resource.prompt,
            limits=resource.model_copy(update={"needs_approval": code is not None and code.needs_approval}),
        )

    def _named_code(self, value: Any) -> Any:
        """Return a name, or arguments with names, resolved to the objects that came with the job."""
        named = self._code.named
        if isinstance(value, str):
            return NamedCode(value, named[value]) if value in named else value
        if isinstance(value, dict) and named:
            return {name: self._named_code(member) for name, member in cast("dict[str, Any]", value).items()}
        return value

    def client(self, name: str) -> Callable[[], Any]:
        """Return the function that opens the client ``name``.

        Raises:
            ResourceNotFoundError: The agent has no client of that name.
        """
        if name not in self.clients:
            raise self._not_found(name, ResourceType.CLIENT)
        return self.clients[name]

    def _not_found(self, name: str, kind: ResourceType) -> ResourceNotFoundError:
        """Return the error of a request for a resource that the agent does not have."""
        names = [resource.name for resource in self.plan.resources if resource.type is kind]
        elsewhere = [resource.type.value for resource in self.plan.resources if resource.name == name]
        fix = f"declare it in the agent, with @{kind.value} or add_resource"
        if elsewhere:
            fix = f"{name!r} is a {elsewhere[0]}: ask for that type"
        return ResourceNotFoundError(
            f"the agent {self.name!r} has no {kind.value} {name!r}",
            expected=", ".join(map(repr, names)) or f"an agent with a {kind.value}",
            found=repr(name),
            fix=suggest(name, names, fix),
        )


def _provider(resource: ResourcePlan) -> ResourceProvider:
    """Return the provider of a resource.

    Raises:
        ResourceUnavailableError: No installed package has one for its kind.
    """
    provider = provider_of(resource.type)
    if provider is None:
        raise ResourceUnavailableError(
            f"no installed package provides the {resource.type.value} {resource.name!r}",
            expected=f"a distribution with an entry point {resource.type.value!r} in {RESOURCE_PROVIDERS}",
            found=(resource.descriptor and resource.descriptor.clazz) or resource.type.value,
            fix="install one, on the workers as well, or call the service from the action itself",
        )
    return provider


def _where(function: Any, agent_class: type[Agent]) -> str:
    """Return the user's line of an action; for an action of this package, the user's class."""
    code = getattr(inspect.unwrap(unwrap(function)), "__code__", None)
    if code is None or is_users_code(code) or agent_class.__module__.startswith("flink_agents."):
        return place_of(function)
    return place_of_class(agent_class)


def _bound(function: Callable[..., Any], kind: Kind | None, instance: Agent) -> Callable[..., Any]:
    """Return a function bound to the agent if it is a method; else the function."""
    if kind != "instance":
        return function
    binder: Any = function
    return binder.__get__(instance, type(instance))


def _with_annotations(code: ResourceCode) -> Callable[..., Any]:
    """Return a copy of a function whose annotations are types, not names that may be unknown there."""
    function = code.function
    if not code.annotations or not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return function
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        argdefs=function.__defaults__,
        closure=function.__closure__,
    )
    update_wrapper(copy, function)
    del copy.__dict__["__wrapped__"]
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = dict(code.annotations)
    return copy


def _with_approval(
    name: str, call: Callable[..., Any], settings: ActionSettings, reports_denial: bool
) -> Callable[..., Any]:
    """Return a function that waits for an approval, and then calls an action.

    Args:
        name: Name of the action.
        call: The action, an ``async def`` function.
        settings: Its settings.
        reports_denial: True to emit an event if it is denied: an action of the agent handles that.
    """
    needed = settings.needs_approval
    seconds = settings.approval_timeout

    async def approved(event: Event, ctx: RunnerContext) -> Any:
        if truth_of(needed(event), f"needs_approval of action {name!r}") if callable(needed) else needed:
            outcome = await ctx.request_approval(
                f"action {name}", arguments_of(event), timeout=seconds, check=partial(changed_event, event)
            )
            if not outcome.approved:
                return ApprovalDeniedEvent(outcome=outcome, event=event) if reports_denial else None
            if outcome.changed:
                event = _with_arguments(event, outcome.arguments)
        result = call(event, ctx)
        return result if inspect.isasyncgen(result) else await result

    return approved


def _with_arguments(event: Event, arguments: Mapping[str, Any]) -> Event:
    """Return an event with approved ``arguments`` in place of its fields, at the same place in the run."""
    changed = changed_event(event, arguments)
    stamp(changed, lineage_of_sent(event))
    return changed


class ToolProvider(ResourceProvider):
    """Provides tools: creates them from functions."""

    @override
    def provide(self, declared: DeclaredResource) -> Tool:
        assert declared.function is not None
        options = declared.limits.options()
        return Tool(declared.function, declared.name, declared.description, **options)


class PromptProvider(ResourceProvider):
    """Provides prompts, as they were declared."""

    @override
    def provide(self, declared: DeclaredResource) -> Prompt | None:
        prompt = declared.prompt
        if prompt is None:
            return None
        # The plan is the user's own, but values that Pydantic reads from its JSON count as data.
        messages = [ChatMessage(role=message.role, content=message.content) for message in prompt.messages]
        return Prompt(messages=tuple(messages), mcp=prompt.mcp)


class ClientProvider(ResourceProvider):
    """Rejects requests for clients as resources: actions get them from ``ctx.client``."""

    @override
    def provide(self, declared: DeclaredResource) -> Any:
        raise ResourceUnavailableError(
            f"the client {declared.name!r} has to be awaited",
            expected=f"await ctx.client({declared.name!r}) in an async def action",
            found=f"get_resource({declared.name!r}, 'client')",
            fix="call ctx.client",
        )
