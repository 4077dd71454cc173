"""``AgentPlan``: an agent as data.

A plan is frozen, names code instead of holding it, and survives a round trip through JSON. Workers create the
running agent from it (see ``binding``); recovery compares its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS
from flink_agents.api.common.policies import RetryPolicy, RetryTimes
from flink_agents.api.errors import FunctionReferenceError, PlanFormatError
from flink_agents.api.resources import Prompt, ResourceKind, ResourceRef, ResourceType
from flink_agents.api.settings import AgentSettings, PlainAgentSettings, PlainSettings, ToolLimits
from flink_agents.plan.references import Frozen, FunctionRef, import_named

_UNCOVERED = AgentSettings.model_fields.keys() - {"on_error", "on_unhandled"}
"""The settings of an agent that recovery does not depend on."""


def recovery_parts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a plan's JSON that recovery depends on, by name.

    These are: format version, agent name and class, configuration, context class, side outputs, output type,
    policies; of each action its name, triggers, function, conditions, policy and configuration; the classes
    of the events that trigger actions; of each resource its name, type, function and descriptor.

    Left out is everything that you can change freely: the position and the body of code, source texts,
    ``def`` or ``async def``, ``on_suspend``, retries, timeouts and limits, emitted events, the wording of
    prompts, descriptions and schemas of tools, and any order (of actions, triggers, resources, mapping keys).
    """
    triggers = {
        kind for action in plan["actions"] for kind in (*action["trigger_classes"], *action["trigger_types"])
    }
    return {
        **{name: value for name, value in plan.items() if name not in _UNCOVERED},
        "events": {
            event["type"]: _reference(event["event_class"])
            for event in plan["events"]
            if event["type"] in triggers
        },
        "actions": {action["name"]: _action_parts(action) for action in plan["actions"]},
        "resources": {
            f"{resource['type']}:{resource['name']}": {
                name: resource[name] for name in ("function", "descriptor")
            }
            for resource in plan["resources"]
        },
    }


def _action_parts(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an action's JSON that recovery depends on, by name."""
    when = action["when"]
    approved = action["needs_approval"]
    return {
        # Only if there is one: adding the setting to other actions changes nothing for them.
        **({"needs_approval": approved} if approved else {}),
        "trigger_classes": sorted(action["trigger_classes"]),
        "trigger_types": sorted(action["trigger_types"]),
        "function": _reference(action["function"]),
        "when": None if when is None else _reference(when["function"]),
        "on_error": action["on_error"],
        "config": action["config"],
    }


def _reference(reference: Mapping[str, str] | None) -> str | None:
    """Return a function reference in a plan's JSON as ``module:qualname``; None for None."""
    return None if reference is None else f"{reference['module']}:{reference['qualname']}"


FORMAT_VERSION = 1
"""Version of the JSON format that this package writes and reads."""

_STEP_RESOURCES = (
    ResourceType.CHAT_MODEL,
    ResourceType.EMBEDDING_MODEL,
    ResourceType.VECTOR_STORE,
    ResourceType.LONG_TERM_MEMORY,
    ResourceType.MCP_SERVER,
)
"""Kinds of resources whose use is a durable step."""

FUNCTIONS = (ResourceType.TOOL, ResourceType.CLIENT)
"""Kinds of resources that are functions of the user."""

Kind = Literal["instance", "static", "function"]
"""Relation of a function to the agent: a method, a static method, or added from outside."""


class RetryPlan(RetryTimes):
    """A retry policy, with exceptions as ``module:qualname``.

    Attributes:
        retry_on: Exceptions to retry; None for the default.
        non_retryable: Exceptions that are never retried.
    """

    retry_on: tuple[str, ...] | None = None
    non_retryable: tuple[str, ...] = ()

    @classmethod
    def from_policy(cls, policy: RetryPolicy) -> RetryPlan:
        """Return the plan of ``policy``."""
        times = {name: getattr(policy, name) for name in RetryTimes.model_fields}
        retry_on = None if policy.retry_on is None else tuple(map(_name_of, policy.retry_on))
        return cls(**times, retry_on=retry_on, non_retryable=tuple(map(_name_of, policy.non_retryable)))

    def policy(self) -> RetryPolicy:
        """Return the policy, with the exceptions imported.

        Raises:
            FunctionReferenceError: One cannot be imported, or is not an exception.
        """
        times = {name: getattr(self, name) for name in RetryTimes.model_fields}
        retry_on = None if self.retry_on is None else tuple(map(_import_exception, self.retry_on))
        return RetryPolicy(
            **times, retry_on=retry_on, non_retryable=tuple(map(_import_exception, self.non_retryable))
        )


def _name_of(error: type[BaseException]) -> str:
    """Return an exception class as ``module:qualname``."""
    return str(FunctionRef.from_object(error))


def _import_exception(name: str) -> type[BaseException]:
    """Import an exception class.

    Raises:
        FunctionReferenceError: The name is not that of an exception.
    """
    exception = import_named(name)
    if not (isinstance(exception, type) and issubclass(exception, BaseException)):
        raise FunctionReferenceError(
            f"{name} is not an exception",
            expected="an exception class as module:qualname, for example builtins:OSError",
            found=repr(exception),
            fix="name an exception in retry_on and non_retryable",
        )
    return exception


class EventPlan(Frozen):
    """An event type of the agent.

    Attributes:
        type: The type string.
        event_class: The class; None for a type that has only a name.
        bases: Type strings of the event classes it derives from, nearest first.
    """

    type: str
    event_class: FunctionRef | None = None
    bases: tuple[str, ...] = ()


class ConditionPlan(Frozen):
    """The condition of an action.

    Attributes:
        function: The name of its function.
        text: Its source if it is a lambda, for display.
    """

    function: FunctionRef
    text: str | None = None

    def __str__(self) -> str:
        return self.text or self.function.qualname


class Named(Frozen):
    """A part of a plan.

    Attributes:
        name: Its name, unique among parts of its kind.
    """

    name: str

    @field_validator("needs_approval", mode="before", check_fields=False)
    @classmethod
    def _name_function(cls, needs_approval: Any) -> Any:
        """Return the name of a function that decides about approvals; a bool or a name as it is."""
        is_function = callable(needs_approval)
        return str(FunctionRef.from_object(needs_approval)) if is_function else needs_approval


class ActionPlan(PlainSettings, Named):
    """An action, with its settings.

    Attributes:
        trigger_classes: Type strings of the event classes that trigger it, subclasses included.
        trigger_types: Type strings that trigger it by name: only events of exactly that type match.
        function: The name of its function.
        kind: How the function belongs to the agent.
        is_async: True if it is a coroutine function or an asynchronous generator.
        when: Condition on the event, or None.
        config: The value of ``ctx.action_config``, as JSON values by name.
        emits: Type strings of the events that its code names or ``emits=`` declares, sorted.
        tags: Tags of the side outputs that its code names, sorted.
        retry: Its retry policy; None for the agent's.
        calls: The durable steps of its code, as far as they have names, sorted; for display.
        clients: The clients that its code uses, as far as they have names, sorted; for display.
        opaque: True if its code may emit other events and make other durable steps.
    """

    trigger_classes: tuple[str, ...] = ()
    trigger_types: tuple[str, ...] = ()
    function: FunctionRef
    kind: Kind
    is_async: bool = False
    when: ConditionPlan | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    emits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    retry: RetryPlan | None = None
    calls: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    opaque: bool = False

    @property
    def triggers(self) -> tuple[str, ...]:
        """Type strings of all triggers, classes first, each once."""
        return tuple(dict.fromkeys((*self.trigger_classes, *self.trigger_types)))


class DescriptorPlan(Frozen):
    """A resource as a class and arguments.

    Attributes:
        clazz: The class as ``module:qualname``; empty if its provider needs none.
        arguments: Its constructor arguments; JSON.
    """

    clazz: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)


class ResourcePlan(ToolLimits, Named):
    """A resource; limits are a tool's. The plan also says if a source of tools may need approvals.

    Attributes:
        type: Its kind.
        function: The function of a tool, or the method that described the resource.
        kind: How that function belongs to the agent.
        descriptor: Class and arguments, for kinds that have them.
        prompt: The prompt, for prompts.
        description: The description of a tool.
        parameters: JSON schema of a tool's arguments.
        references: Resources that the arguments name.
    """

    type: ResourceKind
    function: FunctionRef | None = None
    kind: Kind | None = None
    descriptor: DescriptorPlan | None = None
    prompt: Prompt | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    references: tuple[ResourceRef, ...] = ()


class AgentPlan(PlainAgentSettings, Frozen):
    """An agent as data, with its settings; see the module.

    Attributes:
        format_version: Version of this format.
        name: Name of the agent; scopes its memory.
        agent_class: Its class; None for a builder.
        configuration: The passed constructor arguments; JSON.
        context_class: Its ``RunnerContext`` subclass, or None.
        side_outputs: Tags and the types of their values as strings.
        output_type: Type of the outputs as a string, or None for any.
        retry: Retry policy for actions that have none.
        events: Event types that the agent knows, sorted by type string.
        actions: Actions in the order of declaration.
        resources: Resources in the order of declaration.
    """

    format_version: int = FORMAT_VERSION
    name: str
    agent_class: FunctionRef | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    context_class: FunctionRef | None = None
    side_outputs: dict[str, str] = Field(default_factory=dict)
    output_type: str | None = None
    retry: RetryPlan | None = None
    events: tuple[EventPlan, ...] = ()
    actions: tuple[ActionPlan, ...]
    resources: tuple[ResourcePlan, ...] = ()

    @field_validator("format_version")
    @classmethod
    def _check_version(cls, value: int) -> int:
        if value != FORMAT_VERSION:
            raise ValueError(f"this package reads format_version {FORMAT_VERSION}")
        return value

    @model_validator(mode="after")
    def _check_names(self) -> AgentPlan:
        """Check that names are unique, and that references, triggers and functions are there."""
        event_types = {event.type for event in self.events if event.event_class is not None}
        actions: set[str] = set()
        for action in self.actions:
            if action.name in actions:
                raise ValueError(f"two actions have the name {action.name!r}")
            actions.add(action.name)
            for trigger in action.trigger_classes:
                if trigger not in event_types:
                    raise ValueError(f"events has no class {trigger!r}, which triggers {action.name!r}")
        resources = [(resource_plan.type, resource_plan.name) for resource_plan in self.resources]
        for resource in self.resources:
            if resource.type in FUNCTIONS and resource.function is None:
                raise ValueError(f"the {resource.type.value} {resource.name!r} names no function")
            if resources.count((resource.type, resource.name)) > 1:
                raise ValueError(f"two resources are the {resource.type.value} {resource.name!r}")
            for reference in resource.references:
                if (reference.type, reference.name) not in resources:
                    raise ValueError(f"unknown {reference.type.value} {reference.name!r}")
        return self

    @property
    def makes_steps(self) -> bool:
        """True if the plan shows that the agent makes durable steps, with its code or its resources."""
        built_in = {action.function for action in BUILT_IN_ACTIONS}
        return any(action.calls or str(action.function) in built_in for action in self.actions) or any(
            resource.type in _STEP_RESOURCES for resource in self.resources
        )

    @property
    def may_make_steps(self) -> bool:
        """True if the plan does not exclude that the agent makes durable steps."""
        asks = any(resource.needs_approval for resource in self.resources)
        return self.makes_steps or asks or any(action.opaque for action in self.actions)

    @property
    def needs_approvals(self) -> bool:
        """True if an action or a tool needs an approval, as far as the plan shows."""
        return any(plan_part.needs_approval for plan_part in (*self.actions, *self.resources))

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as JSON; :meth:`from_json` returns an equal plan."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "the plan") -> AgentPlan:
        """Return the plan in a JSON string.

        Args:
            text: The result of :meth:`to_json`.
            source: The origin of ``text``, for errors.

        Raises:
            PlanFormatError: ``text`` is not a plan of a known version.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            problem = first["msg"].removeprefix("Value error, ")
            raise PlanFormatError(
                f"{source} is not an agent plan",
                expected=f"the format of version {FORMAT_VERSION} (plan.schema.json)",
                found=f"{place}: {problem}" if place else problem,
                fix="write it with AgentPlan.to_json() of this version of the package",
                where=source if source != "the plan" else None,
            ) from error

    @classmethod
    def schema(cls) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the JSON schema of plans, as in ``plan.schema.json``."""
        return cls.model_json_schema()

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits; if two plans have the same, one can continue the work of the other.

        It covers the parts that the function :func:`recovery_parts` lists.
        """
        covered = json.dumps(self.recovery_parts(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(covered.encode("ascii")).hexdigest()

    def recovery_parts(self) -> dict[str, Any]:
        """Return the parts that :attr:`fingerprint` covers, as JSON by name: compare two to see a change."""
        return recovery_parts(self.model_dump(mode="json"))
