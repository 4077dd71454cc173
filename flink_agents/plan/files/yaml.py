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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import ConfigDict, Field, ValidationError, model_validator

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import Trigger
from flink_agents.api.common.places import short_path
from flink_agents.api.errors import AgentConfigurationError, AgentDefinitionError, PlanFormatError
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
from flink_agents.api.settings.yaml_source import Location, RepeatedKey, YamlProblem, YamlSource
from flink_agents.plan.compile.configuration import is_plain_json, make_instance, parameter_types
from flink_agents.plan.model import RetryPlan
from flink_agents.plan.references import Frozen, import_named, type_from_text

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
    def _check_sources(self) -> PromptEntry:
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
    """A YAML file, and its agents, whose errors get the place in it."""

    def __init__(self, path: Path) -> None:
        self._name = short_path(str(path))
        self._source = self._read(path)
        self._directory = path.parent
        try:
            self._entries = AgentsFile.model_validate(self._source.value).agents
        except ValidationError as error:
            # Without its cause, whose message has the written value: it may be a secret.
            raise self._format_error(error) from None

    def _read(self, path: Path) -> YamlSource:
        try:
            return YamlSource(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanFormatError(
                f"the file {self._name} cannot be read",
                expected="a YAML file of agents",
                found=str(error),
                fix="check the path",
            ) from error
        except RepeatedKey as error:
            raise PlanFormatError(
                error.message,
                expected="each key once",
                found=f"the first one is in line {error.first}",
                fix="remove one",
                where=f"{self._name}:{error.line}",
            ) from None
        except YamlProblem as error:
            raise PlanFormatError(
                f"{self._name} is not YAML",
                expected="a YAML file of agents",
                found=error.message,
                fix="correct the line",
                where=f"{self._name}:{error.line}" if error.line else self._name,
            ) from error

    def _place(self, location: Location) -> str:
        """Return ``file:line`` of the entry at ``location``, or of the nearest entry that contains it."""
        return f"{self._name}:{self._source.line(location)}"

    @contextmanager
    def _errors_at(self, location: Location) -> Iterator[None]:
        """Give errors about the agent the place of ``location``."""
        try:
            yield
        except AgentDefinitionError as error:
            raise error.at(self._place(location)) from error

    def agents(self) -> dict[str, Agent]:
        agents: dict[str, Agent] = {}
        for index, entry in enumerate(self._entries):
            if entry.name in agents:
                raise PlanFormatError(
                    f"the file has two agents {entry.name!r}",
                    expected="one of each name",
                    fix="rename one",
                    where=self._place(("agents", index, "name")),
                )
            agents[entry.name] = self._build_agent(entry, ("agents", index))
        return agents

    def _build_agent(self, entry: AgentEntry, location: Location) -> Agent:
        agent = self._create_agent(entry, location)
        agent.agent_name = entry.name
        places = agent.__dict__["__places__"]
        places["agent"] = f"{self._place(location)} in {entry.name}"
        for index, action in enumerate(entry.actions):
            place = (*location, "actions", index)
            self._add_action(agent, action, place)
            places["action", action.name] = f"{self._place(place)} in {action.function}"
        for section, section_kind in _SECTIONS.items():
            for index, resource in enumerate(getattr(entry, section)):
                place = (*location, section, index)
                kind = section_kind or resource.type
                value = self._resource(resource, place)
                with self._errors_at(place):
                    agent.add_resource(resource.name, kind, value)
                places[kind, resource.name] = f"{self._place(place)} in {resource.name}"
        for name, value in self._settings(entry, location).items():
            # If the file does not set it, the value of the class is used.
            if value is not None:
                setattr(agent, name, value)
        return agent

    def _settings(self, entry: AgentEntry, location: Location) -> dict[str, Any]:
        """Return the settings of an agent by their attributes; None for those that the file lacks."""
        return {
            **entry.plain(),
            "retry": self._convert(RetryPlan.policy, entry.retry, (*location, "retry")),
            "context_class": self._convert(import_named, entry.context_class, (*location, "context_class")),
            "output_type": self._convert(type_from_text, entry.output_type, (*location, "output_type")),
            "side_outputs": {
                tag: self._convert(type_from_text, text, (*location, "side_outputs", tag))
                for tag, text in entry.side_outputs.items()
            }
            or None,
        }

    def _create_agent(self, entry: AgentEntry, location: Location) -> Agent:
        configuration = (*location, "configuration")
        if entry.clazz is None:
            if entry.configuration:
                raise PlanFormatError(
                    f"the agent {entry.name!r} has a configuration, but no class for it",
                    expected="class: module:qualname in addition to configuration",
                    fix="name the class, or pass values to actions with config",
                    where=self._place(configuration),
                )
            return Agent()
        agent_class = self._convert(import_named, entry.clazz, (*location, "class"))
        if not (inspect.isclass(agent_class) and issubclass(agent_class, Agent)):
            raise PlanFormatError(
                f"{entry.clazz} is not an agent class",
                expected="a subclass of flink_agents.Agent",
                found=repr(agent_class),
                fix="name the class itself",
                where=self._place((*location, "class")),
            )
        types = parameter_types(agent_class)
        arguments = {
            name: self._argument(agent_class, value, types.get(name, Any), (*configuration, name))
            for name, value in entry.configuration.items()
        }
        with self._errors_at(configuration):
            return make_instance(agent_class, arguments)

    def _argument(
        self, agent_class: type[Agent], value: object, annotation: object, location: Location
    ) -> Any:
        """Return an argument of a constructor as a JSON value, which the annotation converts."""
        problem = None
        if annotation is not Any:
            try:
                return self._source.written(location)
            except YamlProblem as error:
                problem = error.message
        elif not is_plain_json(value):
            problem = f"{type(value).__name__} {value!r}"[:200]
        if problem is None:
            return value
        raise AgentConfigurationError(
            f"the argument {location[-1]!r} of {agent_class.__name__} cannot be written into the plan",
            expected="JSON values, or dates, sets and UTF-8 texts for a parameter with such an annotation",
            found=problem,
            fix=f"annotate {location[-1]!r} in the constructor with its type, or quote the value",
            where=self._place(location),
        )

    def _add_action(self, agent: Agent, entry: ActionEntry, location: Location) -> None:
        function = self._convert(import_named, entry.function, (*location, "function"))
        triggers = self._triggers(entry.triggers, (*location, "triggers"))
        emits = self._triggers(entry.emits, (*location, "emits"))
        settings = {
            **entry.plain(),
            "when": self._convert(import_named, entry.when, (*location, "when")),
            "retry": self._convert(RetryPlan.policy, entry.retry, (*location, "retry")),
            "needs_approval": self._import_decider(entry.needs_approval, location),
        }
        with self._errors_at(location):
            # Not with add_action: config may have entries with the names of its parameters.
            agent._add(entry.name, triggers, function, emits, settings, entry.config)  # pyright: ignore[reportPrivateUsage]

    def _resource(self, entry: Any, location: Location) -> Any:
        """Return the function, prompt or descriptor of an entry."""
        if isinstance(entry, ClientEntry | ToolEntry):
            function = self._convert(import_named, entry.function, (*location, "function"))
            if isinstance(entry, ClientEntry) or (entry.description is None and not entry.texts()):
                return function
            needs_approval = self._import_decider(entry.needs_approval, location)
            with self._errors_at(location):
                options = {**entry.options(), "needs_approval": needs_approval}
                return Tool(function, entry.name, entry.description, **options)
        if isinstance(entry, PromptEntry):
            with self._errors_at(location):
                return entry.prompt(self._directory)
        arguments = dict(getattr(entry, "arguments", {}))
        if not isinstance(entry, ResourceEntry):
            arguments |= entry.model_dump(exclude_unset=True, exclude={"name", "clazz", "arguments"})
        descriptor = ResourceDescriptor(clazz=getattr(entry, "clazz", ""))
        descriptor.arguments = arguments
        return descriptor

    def _import_decider(self, needs_approval: Any, location: Location) -> Any:
        """Return ``needs_approval``: a bool, or the function that it names, which decides."""
        if not isinstance(needs_approval, str):
            return needs_approval
        return self._convert(import_named, needs_approval, (*location, "needs_approval"))

    def _triggers(self, texts: Sequence[str], location: Location) -> list[Trigger]:
        return [
            self._convert(import_named, text, (*location, index)) if ":" in text else text
            for index, text in enumerate(texts)
        ]

    def _convert(self, convert: Callable[[Any], Any], value: Any, location: Location) -> Any:
        with self._errors_at(location):
            return None if value is None else convert(value)

    def _format_error(self, error: ValidationError) -> PlanFormatError:
        errors = error.errors(include_url=False)
        # An unknown key is often the one that another error misses.
        first = next((detail for detail in errors if detail["type"] in _UNKNOWN), errors[0])
        location = first["loc"]
        expected = "the format that agents.schema.json describes"
        found = None if first["type"] == "missing" else _shown(location, first["input"])
        if first["type"] not in _UNKNOWN:
            return PlanFormatError(
                f"{'.'.join(map(str, location)) or 'the file'}: {first['msg']}",
                expected=expected,
                found=found,
                fix="correct the line; an editor that reads the schema shows what is allowed",
                where=self._place(location),
            )
        keys = keys_at(location[:-1])
        key = str(location[-1])
        return PlanFormatError(
            f"{'.'.join(map(str, location))}: unknown key",
            expected=f"one of {', '.join(keys)}" if keys else expected,
            found=f"{key}: {found}",
            fix=suggest(key, keys, "remove it; an editor that reads the schema shows what is allowed"),
            where=self._place(location),
        )


_SECTIONS: Mapping[str, ResourceType | None] = {
    "tools": ResourceType.TOOL,
    "prompts": ResourceType.PROMPT,
    "clients": ResourceType.CLIENT,
    "chat_models": ResourceType.CHAT_MODEL,
    "chat_model_connections": ResourceType.CHAT_MODEL_CONNECTION,
    "embedding_models": ResourceType.EMBEDDING_MODEL,
    "vector_stores": ResourceType.VECTOR_STORE,
    "long_term_memories": ResourceType.LONG_TERM_MEMORY,
    "skills": ResourceType.SKILLS,
    "mcp_servers": ResourceType.MCP_SERVER,
    "resources": None,
}
"""The sections of resources, and the kind of those in each; None if each entry names its kind."""

_DESCRIBED = _SECTIONS.keys() - {"tools", "prompts", "clients"}
"""The sections with descriptions of resources, which may hold secrets."""

_SECTION = 2
"""Index of an agent's section in a location: it comes after ``agents`` and the agent's number."""


def _shown(location: Location, value: object) -> str:
    """Return an invalid value for an error; only its type if it describes a resource, and may be secret."""
    section, *path = [*location[_SECTION:], None]
    if section not in _DESCRIBED:
        return repr(value)
    if section == "resources" and path[1:2] in (["name"], ["type"]):
        return repr(value)
    if section == "resources" and len(path) == 2 and isinstance(value, Mapping):
        # The entry itself, without the description of the resource.
        entry = cast("Mapping[str, object]", value)
        return repr(
            {name: field_value for name, field_value in entry.items() if name in ("name", "type", "class")}
        )
    return f"a {type(value).__name__}"


def keys_at(location: Sequence[str | int]) -> list[str]:
    """Return the keys of the entry at a location, as the file spells them; empty if they are unknown."""
    models: list[Any] = [AgentsFile]
    for part in location:
        if isinstance(part, str):
            models = [
                inner
                for model in models
                for name, field in model.__pydantic_fields__.items()
                if (field.alias or name) == part
                for inner in _models_in(field.annotation)
            ]
    if len(models) != 1:
        return []
    return [field.alias or name for name, field in models[0].__pydantic_fields__.items()]


def _models_in(annotation: Any) -> Iterator[Any]:
    """Yield the models in an annotation, such as the one of ``list[ActionEntry] | None``."""
    if hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
