"""Agents described in YAML files.

::

    agents:
      - name: Greeter
        actions:
          - name: greet
            triggers: [_input_event]
            function: shop.greetings:greet
      - name: Orders
        class: shop.orders:OrderAgent
        configuration: {limit: 100}

A trigger is a type string, or an event class as ``module:Class``; ``_input_event`` is
``InputEvent``. ``agents.schema.json`` describes the format to editors.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import Trigger
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.errors import AgentConfigurationError, PlanFormatError
from flink_agents.api.errors.base import suggest
from flink_agents.api.models.chat import ChatModelSpec, Endpoint
from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.api.models.retrieval_specs import EmbeddingModelSpec, LongTermMemorySpec, VectorStoreSpec
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.resources import (
    ChatMessage,
    MCPPromptSource,
    Prompt,
    ResourceDescriptor,
    ResourceKind,
    ResourceType,
    Tool,
)
from flink_agents.api.settings import PlainAgentSettings, PlainSettings, ToolLimits
from flink_agents.api.settings.yaml_source import Location
from flink_agents.plan.compile.configuration import make_instance
from flink_agents.plan.files.yaml_source import AgentsSource
from flink_agents.plan.model import RetryPlan
from flink_agents.plan.references import Frozen, FunctionRef, type_from_text

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's error types for an unknown key, of a model and of a dataclass."""

_REFERENCE = r"^[^:\s]+:[^:\s]+$"


class _Named(Frozen):
    name: str = Field(min_length=1, description="Name, unique within its section.")


class _Function(_Named):
    function: str = Field(pattern=_REFERENCE, description="The function as module:qualname.")


class _OfClass(_Named):
    clazz: str = Field("", alias="class", description="Class or function that creates it: module:qualname.")


class ActionEntry(PlainSettings, _Named):
    """An action: the arguments of ``add_action``."""

    triggers: list[str] = Field(min_length=1, description="Type strings, or classes as module:Class.")
    function: str = Field(pattern=_REFERENCE, description="The function as module:qualname.")
    when: str | None = Field(None, pattern=_REFERENCE, description="Condition as module:qualname.")
    config: dict[str, Any] = Field(default_factory=dict, description="Values of ctx.action_config.")
    emits: list[str] = Field(default_factory=list, description="Events that its code does not name.")
    retry: RetryPlan | None = Field(None, description="Retry policy.")


class ClientEntry(_Function):
    """A client: a function that opens it."""


class ToolEntry(ToolLimits, _Function):
    """A tool: a Python function."""

    description: str | None = Field(None, description="Default: the function's docstring.")


class PromptEntry(_Named):
    """A prompt: one string, messages with roles, a file with them, or a prompt of an MCP server."""

    text: str | None = Field(None, description="The template, with {variables}.")
    messages: list[ChatMessage] | None = Field(None, description="Templates with roles.")
    file: str | None = Field(None, description="A text or YAML file; relative to this one.")
    mcp: MCPPromptSource | None = Field(None, description="A prompt of an MCP server, after the messages.")

    @model_validator(mode="after")
    def _check_one(self) -> PromptEntry:
        source_count = sum(source is not None for source in (self.text, self.messages, self.file))
        if source_count > 1 or not source_count and self.mcp is None:
            raise ValueError("a prompt has either text or messages, or a file or mcp instead of them")
        return self

    def prompt(self, directory: Path) -> Prompt:
        """Return the prompt.

        Args:
            directory: The folder that a relative path starts from.

        Raises:
            AgentDefinitionError: Its file is not a prompt.
        """
        if self.file is not None:
            prompt = Prompt.from_file(directory / self.file)
        elif self.text is not None:
            prompt = Prompt.from_text(self.text)
        else:
            prompt = Prompt.from_messages(self.messages or [])
        return prompt.model_copy(update={"mcp": self.mcp})


class ChatModelEntry(_OfClass, ChatModelSpec):
    """A chat model: the arguments of ``ChatModel``."""

    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments.")


class ConnectionEntry(_Named, Endpoint):
    """An endpoint that several chat models share: the arguments of ``ChatModelConnection``."""


class EmbeddingModelEntry(_OfClass, EmbeddingModelSpec):
    """An embedding model: the arguments of its descriptor."""


class VectorStoreEntry(_OfClass, VectorStoreSpec):
    """A vector store: the arguments of its descriptor, with the options of the store."""

    model_config = ConfigDict(extra="allow", frozen=True)


class LongTermMemoryEntry(_Named, LongTermMemorySpec):
    """A long-term memory: the arguments of its descriptor."""


class SkillsEntry(_Named, SkillsSpec):
    """Skills: the arguments of ``Skills``."""


class MCPServerEntry(_Named, MCPServerSpec):
    """An MCP server: the arguments of ``MCPServer``."""


class ResourceEntry(_OfClass):
    """A resource with a class and arguments."""

    type: ResourceKind = Field(description="Its kind: the name of its provider.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Constructor arguments.")

    @model_validator(mode="after")
    def _check_type(self) -> ResourceEntry:
        if self.type in (ResourceType.TOOL, ResourceType.PROMPT, ResourceType.CLIENT):
            raise ValueError(f"put a {self.type.value} under {self.type.value}s")
        return self


class AgentEntry(PlainAgentSettings, _Named):
    """An agent: a class with its configuration, or a list of actions, or both."""

    clazz: str | None = Field(None, alias="class", pattern=_REFERENCE, description="module:qualname.")
    configuration: dict[str, Any] = Field(default_factory=dict, description="Constructor arguments.")
    actions: list[ActionEntry] = Field(default_factory=list)
    tools: list[ToolEntry] = Field(default_factory=list)
    prompts: list[PromptEntry] = Field(default_factory=list)
    clients: list[ClientEntry] = Field(default_factory=list)
    chat_models: list[ChatModelEntry] = Field(default_factory=list)
    chat_model_connections: list[ConnectionEntry] = Field(default_factory=list)
    embedding_models: list[EmbeddingModelEntry] = Field(default_factory=list)
    vector_stores: list[VectorStoreEntry] = Field(default_factory=list)
    long_term_memories: list[LongTermMemoryEntry] = Field(default_factory=list)
    mcp_servers: list[MCPServerEntry] = Field(default_factory=list)
    skills: list[SkillsEntry] = Field(default_factory=list)
    resources: list[ResourceEntry] = Field(default_factory=list)
    context_class: str | None = Field(None, pattern=_REFERENCE, description="module:qualname.")
    side_outputs: dict[str, str] = Field(
        default_factory=dict, description="Tags and types: a built-in type or module:Class."
    )
    output_type: str | None = Field(None, description="A built-in type or module:Class.")
    retry: RetryPlan | None = Field(None, description="Retry policy for actions without one.")


class AgentsFile(Frozen):
    """A file of agents."""

    agents: list[AgentEntry] = Field(min_length=1)


def load_yaml(path: str | Path) -> dict[str, Agent]:
    """Return the agents of a YAML file, by name.

    Raises:
        PlanFormatError: The file does not follow the format; the message names file and line.
        FunctionReferenceError: A function or class cannot be imported.
        AgentDefinitionError: An agent cannot be built.
    """
    return _File(Path(path)).agents()


class _File:
    """A file that is being read."""

    def __init__(self, path: Path) -> None:
        self._source = AgentsSource(path)
        self._directory = path.parent
        try:
            self._entries = AgentsFile.model_validate(self._source.value).agents
        except ValidationError as error:
            # Without its cause, whose message has the written value: it may be a secret.
            raise self._format_error(error) from None

    def agents(self) -> dict[str, Agent]:
        agents: dict[str, Agent] = {}
        for index, entry in enumerate(self._entries):
            if entry.name in agents:
                raise PlanFormatError(
                    f"the file has two agents {entry.name!r}",
                    expected="one of each name",
                    fix="rename one",
                    where=self._source.place(("agents", index, "name")),
                )
            agents[entry.name] = self._agent(entry, ("agents", index))
        return agents

    def _agent(self, entry: AgentEntry, at_: Location) -> Agent:
        agent: Agent = self._base(entry, at_)
        agent.agent_name = entry.name
        self._set_place(agent, "agent", at_, entry.name)
        for index, action in enumerate(entry.actions):
            self._add_action(agent, action, (*at_, "actions", index))
        for section, kind in _SECTIONS.items():
            for index, resource in enumerate(getattr(entry, section)):
                self._add_resource(agent, resource, kind, (*at_, section, index))
        # If the file does not set it, the value of the class is used.
        settings: dict[str, Any] = {
            **entry.plain(),
            "retry": self._retry(entry.retry, (*at_, "retry")),
            "context_class": self._import(entry.context_class, (*at_, "context_class")),
            "output_type": entry.output_type and self._type(entry.output_type, (*at_, "output_type")),
            "side_outputs": {
                tag: self._type(text, (*at_, "side_outputs", tag)) for tag, text in entry.side_outputs.items()
            }
            or None,
        }
        for name, value in settings.items():
            if value is not None:
                setattr(agent, name, value)
        return agent

    def _base(self, entry: AgentEntry, at_: Location) -> Agent:
        if entry.clazz is None:
            if entry.configuration:
                raise PlanFormatError(
                    f"the agent {entry.name!r} has a configuration, but no class for it",
                    expected="class: module:qualname in addition to configuration",
                    fix="name the class, or pass values to actions with config",
                    where=self._source.place((*at_, "configuration")),
                )
            return Agent()
        agent_class = self._import(entry.clazz, (*at_, "class"))
        if not (inspect.isclass(agent_class) and issubclass(agent_class, Agent)):
            raise PlanFormatError(
                f"{entry.clazz} is not an agent class",
                expected="a subclass of flink_agents.Agent",
                found=repr(agent_class),
                fix="name the class itself",
                where=self._source.place((*at_, "class")),
            )
        at_ = (*at_, "configuration")
        arguments = self._source.arguments(agent_class, entry.configuration, at_)
        with self._source.errors_at(at_):
            return make_instance(agent_class, arguments)

    def _add_action(self, agent: Agent, entry: ActionEntry, at_: Location) -> None:
        function = self._import(entry.function, (*at_, "function"))
        when = self._import(entry.when, (*at_, "when"))
        triggers = self._triggers(entry.triggers, (*at_, "triggers"))
        emits = self._triggers(entry.emits, (*at_, "emits"))
        needs = self._needs(entry.needs_approval, at_)
        retry = self._retry(entry.retry, (*at_, "retry"))
        settings = {**entry.plain(), "when": when, "retry": retry, "needs_approval": needs}
        with self._source.errors_at(at_):
            # Not with add_action: config may have entries with the names of its parameters.
            agent._add(entry.name, triggers, function, emits, settings, entry.config)  # pyright: ignore[reportPrivateUsage]
        self._set_place(agent, ("action", entry.name), at_, entry.function)

    def _add_resource(self, agent: Agent, entry: Any, kind: ResourceType | None, at_: Location) -> None:
        kind = kind or cast("ResourceType", entry.type)
        value = self._resource(entry, kind, at_)
        with self._source.errors_at(at_):
            agent.add_resource(entry.name, kind, value)
        self._set_place(agent, (kind, entry.name), at_, entry.name)

    def _resource(self, entry: Any, kind: ResourceType, at_: Location) -> Any:
        """Return the function, prompt or descriptor of an entry."""
        if isinstance(entry, ClientEntry):
            return self._import(entry.function, (*at_, "function"))
        if isinstance(entry, ToolEntry):
            function = self._import(entry.function, (*at_, "function"))
            if entry.description is None and not entry.texts():
                return function
            options = {**entry.options(), "needs_approval": self._needs(entry.needs_approval, at_)}
            with self._source.errors_at(at_):
                return Tool(function, entry.name, entry.description, **options)
        with self._source.errors_at(at_):
            if isinstance(entry, PromptEntry):
                return entry.prompt(self._directory)
            return _descriptor(entry, kind)

    def _needs(self, needs_approval: Any, at_: Location) -> Any:
        if not isinstance(needs_approval, str):
            return needs_approval
        return self._import(needs_approval, (*at_, "needs_approval"))

    def _retry(self, entry: RetryPlan | None, at_: Location) -> RetryPolicy | None:
        with self._source.errors_at(at_):
            return None if entry is None else entry.policy()

    def _triggers(self, texts: Sequence[str], at_: Location) -> list[Trigger]:
        return [
            self._import(text, (*at_, index)) if ":" in text else text for index, text in enumerate(texts)
        ]

    def _set_place(self, agent: Agent, what: object, at_: Location, name: str) -> None:
        """Store the line of ``what`` in the file, for errors about it."""
        agent.__dict__["__places__"][what] = f"{self._source.place(at_)} in {name}"

    def _import(self, text: str | None, at_: Location) -> Any:
        with self._source.errors_at(at_):
            return None if text is None else FunctionRef.parse(text).resolve()

    def _type(self, text: str, at_: Location) -> Any:
        with self._source.errors_at(at_):
            return type_from_text(text)

    def _format_error(self, error: ValidationError) -> PlanFormatError:
        errors = error.errors(include_url=False)
        # An unknown key is often the one that another error misses.
        first = next((detail for detail in errors if detail["type"] in _UNKNOWN), errors[0])
        if first["type"] in _UNKNOWN:
            return self._unknown_key(first["loc"], first["input"])
        return PlanFormatError(
            f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}",
            expected="the format that agents.schema.json describes",
            found=_shown(first["loc"], first["input"]) if first["type"] != "missing" else None,
            fix="correct the line; an editor that reads the schema shows what is allowed",
            where=self._source.place(first["loc"]),
        )

    def _unknown_key(self, at_: Location, value: object) -> PlanFormatError:
        allowed_keys = keys_at(AgentsFile, at_[:-1])
        key = str(at_[-1])
        return PlanFormatError(
            f"{'.'.join(map(str, at_))}: unknown key",
            expected=f"one of {', '.join(allowed_keys)}"
            if allowed_keys
            else "the format that agents.schema.json describes",
            found=f"{key}: {_shown(at_, value)}",
            fix=suggest(
                key, allowed_keys, "remove it; an editor that reads the schema shows what is allowed"
            ),
            where=self._source.place(at_),
        )


_DESCRIBED: Mapping[str, ResourceType] = {
    "chat_models": ResourceType.CHAT_MODEL,
    "chat_model_connections": ResourceType.CHAT_MODEL_CONNECTION,
    "embedding_models": ResourceType.EMBEDDING_MODEL,
    "vector_stores": ResourceType.VECTOR_STORE,
    "long_term_memories": ResourceType.LONG_TERM_MEMORY,
    "skills": ResourceType.SKILLS,
    "mcp_servers": ResourceType.MCP_SERVER,
}
"""The sections with descriptions of resources, and the kind of each."""

_SECTIONS: Mapping[str, ResourceType | None] = {
    "tools": ResourceType.TOOL,
    "prompts": ResourceType.PROMPT,
    "clients": ResourceType.CLIENT,
    **_DESCRIBED,
    "resources": None,
}
"""All sections with resources; those in the last one have their own kinds."""

_SECTION = 2
"""Index of an agent's section in a location: it comes after ``agents`` and the agent's number."""


def _shown(at_: Location, value: object) -> str:
    """Return an invalid value for an error; only its type if it describes a resource, and may be secret."""
    section = at_[_SECTION] if len(at_) > _SECTION else None
    if section == "resources" and not at_[_SECTION + 2 :]:
        # The entry itself, without the description of the resource.
        entry = cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
        return repr(
            {name: field_value for name, field_value in entry.items() if name in ("name", "type", "class")}
        )
    may_be_secret = section in _DESCRIBED or (
        section == "resources" and at_[_SECTION + 2] not in ("name", "type")
    )
    return f"a {type(value).__name__}" if may_be_secret else repr(value)


def _descriptor(entry: _OfClass, kind: ResourceType) -> ResourceDescriptor:
    """Return the descriptor of an entry; except for those of ``resources``, its keys are arguments."""
    arguments = dict(getattr(entry, "arguments", {}))
    if not isinstance(entry, ResourceEntry):
        try:
            arguments |= entry.model_dump(
                mode="json", exclude_unset=True, exclude={"name", "clazz", "arguments"}
            )
        except ValueError as error:
            raise AgentConfigurationError(
                f"the arguments of {kind.value} {entry.name!r} cannot be written into the plan",
                expected="JSON values",
                found=str(error),
                fix="write plain JSON values",
            ) from None
    descriptor = ResourceDescriptor(clazz=getattr(entry, "clazz", ""))
    descriptor.arguments = arguments
    return descriptor


def keys_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys of the entry at ``location``, as the file spells them; empty if they are unknown.

    Args:
        model: The model of the whole file.
        location: Keys and indexes that lead to the entry.
    """
    at: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field_annotations = [annotation for name, annotation in _fields(at) if name == part]
        inner = list(_models(field_annotations[0])) if field_annotations else []
        if len(inner) != 1:
            return []
        at = inner[0]
    return [name for name, _ in _fields(at)]


def _fields(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model or dataclass, as the file spells them, and their annotations."""
    for name, field in model.__pydantic_fields__.items():
        yield field.alias or name, field.annotation


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the models in an annotation, such as the one of ``list[ActionEntry] | None``."""
    if hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
