"""Resources of actions: tools, prompts, clients, and descriptions of services.

Function tools, prompts and clients are provided by this package. Other kinds are declared by a
:class:`ResourceDescriptor`, checked and written into the plan; an installed distribution provides them
(``providers``). If none does, using one at run time raises ``ResourceUnavailableError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from flink_agents.api.common.awaited import note_result as note_result, truth_of as truth_of
from flink_agents.api.common.places import caller_place
from flink_agents.api.durable import calls_durably as calls_durably
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.resources.provenance import WrittenType, like, taking_data as taking_data
from flink_agents.api.resources.raised_notes import add_raised_note as add_raised_note
from flink_agents.api.resources.templates import fill_template, read_prompt_file, template_variables
from flink_agents.api.resources.tool_schema import (
    arguments_model as arguments_model,
    arguments_schema as arguments_schema,
    replace_annotations as replace_annotations,
    runtime_parameters as runtime_parameters,
    takes_key as takes_key,
    written_hints as written_hints,
)
from flink_agents.api.resources.tools import Tool as Tool
from flink_agents.api.settings import (
    ToolOptions as ToolOptions,
    ToolSettings as ToolSettings,
    check_settings as check_settings,
)

RESOURCE_PROVIDERS = "flink_agents.resource_providers"
"""The group of the providers' entry points; the name of each is the kind that it provides."""


class ResourceType(StrEnum):
    """Kinds of resources. A name is unique within its kind.

    A kind that a distribution provides becomes a member at its first use: ``ResourceType("kind")``.
    """

    TOOL = "tool"
    PROMPT = "prompt"
    CLIENT = "client"
    CHAT_MODEL = "chat_model"
    CHAT_MODEL_CONNECTION = "chat_model_connection"
    EMBEDDING_MODEL = "embedding_model"
    VECTOR_STORE = "vector_store"
    LONG_TERM_MEMORY = "long_term_memory"
    MCP_SERVER = "mcp_server"
    SKILLS = "skills"

    @classmethod
    def _missing_(cls, value: object) -> ResourceType:
        provided = {point.name for point in entry_points(group=RESOURCE_PROVIDERS)}
        if not isinstance(value, str) or value not in provided:
            raise _unknown_type_error(value, [*(kind.value for kind in cls), *sorted(provided)])
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        # If it is named again, or unpickled, it is the same object.
        cls._value2member_map_[value] = member
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[ResourceType], tuple[str]]:
        # Python 3.11.0 to 3.11.3 pickle a member by its name, and one that a distribution provides has none.
        return ResourceType, (self.value,)


def _unknown_type_error(value: object, names: list[str]) -> AgentDefinitionError:
    install = f"install a distribution with an entry point {value!r} in the group {RESOURCE_PROVIDERS}"
    return AgentDefinitionError(
        f"{value!r} is not a type of resource",
        expected="one of " + ", ".join(names),
        found=repr(value),
        fix=suggest(str(value), names, install),
    )


def _read_kind(value: ResourceType | str) -> ResourceType:
    """Return a kind by its name; ValueError if no provider supports it."""
    try:
        return ResourceType(value)
    except AgentDefinitionError as error:
        # Pydantic accepts no other error for an invalid value.
        raise ValueError(f"{error.message}; {error.fix}") from error


ResourceKind = Annotated[
    ResourceType,
    BeforeValidator(_read_kind),
    WithJsonSchema({"type": "string", "examples": [kind.value for kind in ResourceType]}),
]
"""A type of resource in JSON and YAML, whose schemas cannot contain installed providers."""


def check_resource_type(value: ResourceType | str, where: str | None = None) -> ResourceType:
    """Return the resource type with the name ``value``.

    Args:
        value: The type, or its name.
        where: The place in the author's code, for the error; None if unknown.

    Raises:
        AgentDefinitionError: The type is unknown, and no installed distribution provides it.
    """
    try:
        return ResourceType(value)
    except AgentDefinitionError as error:
        raise error.at(where) from None


class ResourceRef(BaseModel):
    """A reference to a resource in the arguments of another one, by type and name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: ResourceKind
    name: str


class ResourceDescriptor:
    """A class and its arguments, from which a resource is created.

    Args:
        clazz: The class, or its name as ``module:qualname``, if its provider needs one.
        **arguments: Its constructor arguments: JSON values, or :class:`ResourceRef`.

    Attributes:
        clazz: The name of the class, ``module:qualname``; empty if there is none.
        arguments: The arguments by name.
    """

    def __init__(self, *, clazz: str | type = "", **arguments: Any) -> None:
        self.clazz = clazz if isinstance(clazz, str) else f"{clazz.__module__}:{clazz.__qualname__}"
        self.arguments: Mapping[str, Any] = arguments

    def __repr__(self) -> str:
        return f"ResourceDescriptor(clazz={self.clazz!r}, **{dict(self.arguments)!r})"


class ChatMessage(BaseModel, metaclass=WrittenType):
    """One message of a conversation.

    Only a call such as ``ChatMessage(role="system", content=...)`` speaks with a role. A message that
    pydantic creates from a record is data, so a chat model accepts it only as the user's.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: The text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    content: str


class MCPPromptSource(BaseModel):
    """A prompt of an MCP server.

    Attributes:
        server: Name of the MCP server in the agent.
        prompt: Name of the prompt in the server.
        arguments: A template for each argument of the prompt. None passes all values by their names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str = Field(min_length=1, description="Name of the MCP server in the agent.")
    prompt: str = Field(min_length=1, description="Name of the prompt in the server.")
    arguments: dict[str, str] | None = Field(default=None, description="Templates of its arguments.")

    def filled(self, values: Mapping[str, Any], what: str) -> dict[str, str]:
        """Return the arguments of the prompt for the server, as texts by name.

        Args:
            values: Values for the variables of the templates, by name.
            what: The prompt in words, for the error.

        Raises:
            AgentDefinitionError: A value lacks an attribute or entry that a template uses.
        """
        if self.arguments is None:
            return {name: str(value) for name, value in values.items()}
        return {name: fill_template(text, values, what) for name, text in self.arguments.items()}


class Prompt(BaseModel):
    """A template with ``{variables}``: one text, or messages with roles; or a prompt of an MCP server.

    Attributes:
        messages: The messages; a text prompt has one with the role ``user``.
        mcp: A prompt of an MCP server, whose messages follow these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: tuple[ChatMessage, ...] = ()
    mcp: MCPPromptSource | None = None

    @classmethod
    def from_text(cls, text: str, role: str = "user") -> Prompt:
        """Return a prompt of one message with a template as its text."""
        return cls(messages=(ChatMessage(role=role, content=text),))

    @classmethod
    def from_messages(cls, messages: Sequence[ChatMessage]) -> Prompt:
        """Return a prompt of several messages, whose texts are templates."""
        return cls(messages=tuple(messages))

    @classmethod
    def from_file(cls, path: str | Path, role: str = "user") -> Prompt:
        """Read a prompt from a file at once: workers do not need the file.

        Args:
            path: A text file (``.txt``, ``.md``), which is one message, or a YAML file with ``messages``.
            role: The role of a text file's message.

        Raises:
            AgentDefinitionError: The file cannot be read, or is not a prompt.
        """
        roles_and_texts = read_prompt_file(path, role, caller_place(0))
        return cls.from_messages(
            [ChatMessage(role=message_role, content=text) for message_role, text in roles_and_texts]
        )

    @classmethod
    def from_mcp(
        cls,
        server: str,
        prompt: str,
        *,
        arguments: Mapping[str, str] | None = None,
        before: Sequence[ChatMessage] = (),
    ) -> Prompt:
        """Return a prompt of an MCP server, which is requested when the prompt is used.

        Args:
            server: Name of the MCP server in the agent.
            prompt: Name of the prompt in the server.
            arguments: A template for each argument, such as ``{"tone": "kindly", "customer": "{name}"}``.
                Default: the server gets all values by their names.
            before: Messages before those of the server.
        """
        source = MCPPromptSource(
            server=server, prompt=prompt, arguments=None if arguments is None else dict(arguments)
        )
        return cls(messages=tuple(before), mcp=source)

    @property
    def templates(self) -> list[str]:
        """The texts of its messages and of the arguments for an MCP server, with ``{variables}``."""
        arguments = self.mcp.arguments if self.mcp is not None else None
        return [*(message.content for message in self.messages), *(arguments or {}).values()]

    @property
    def variables(self) -> set[str]:
        """Names of the variables that :meth:`format_messages` needs.

        Raises:
            AgentDefinitionError: A template cannot be filled in: its braces do not match, or a
                variable has no name.
        """
        return {name for text in self.templates for name in template_variables(text)}

    def format_messages(self, /, **variables: Any) -> list[ChatMessage]:
        """Return the messages with ``variables`` filled in.

        Raises:
            AgentDefinitionError: A template cannot be filled in, a variable is missing, a value lacks an
                attribute or entry that the template uses, or the messages come from an MCP server.
        """
        if self.mcp is not None:
            raise AgentDefinitionError(
                f"the prompt {self.mcp.prompt!r} comes from the MCP server {self.mcp.server!r}",
                expected="an action that waits for the server",
                fix="write await ctx.prompt(...)",
            )
        return self.filled(variables, "a prompt")

    def filled(
        self, variables: Mapping[str, Any], what: str, *, all_known: bool = False
    ) -> list[ChatMessage]:
        """Return the prompt's own messages, without those of an MCP server, with ``variables`` filled in.

        Args:
            variables: Values by the names of variables.
            what: The prompt in words, for errors.
            all_known: True if a value without a variable is an error.

        Raises:
            AgentDefinitionError: A value is missing, unknown, or invalid.
        """
        variable_names = self.variables
        missing = sorted(variable_names - variables.keys())
        takes_all = self.mcp is not None and self.mcp.arguments is None
        unknown = sorted(variables.keys() - variable_names) if all_known and not takes_all else []
        if missing or unknown:
            raise AgentDefinitionError(
                f"{what} has variables without a value" if missing else f"{what} has no such variable",
                expected=", ".join(sorted(variable_names)) or "no variables",
                found=", ".join(sorted(variables)) or "none",
                fix=f"pass {', '.join(name + '=...' for name in missing)}"
                if missing
                else suggest(unknown[0], variable_names, f"remove {', '.join(unknown)}"),
            )
        return [
            like(
                message,
                ChatMessage(role=message.role, content=fill_template(message.content, variables, what)),
            )
            for message in self.messages
        ]

    def format_string(self, /, **variables: Any) -> str:
        """Return the texts of all messages with ``variables`` filled in, separated by line breaks.

        Raises:
            AgentDefinitionError: As in :meth:`format_messages`.
        """
        return "\n".join(message.content for message in self.format_messages(**variables))


TOOL_SOURCES = (ResourceType.MCP_SERVER, ResourceType.SKILLS)
"""Kinds of resources whose names mean several tools."""

REFERENCE_ARGUMENTS: Mapping[tuple[ResourceType, str], ResourceType] = {
    (ResourceType.CHAT_MODEL, "connection"): ResourceType.CHAT_MODEL_CONNECTION,
    (ResourceType.CHAT_MODEL, "fallback"): ResourceType.CHAT_MODEL,
    (ResourceType.CHAT_MODEL, "prompt"): ResourceType.PROMPT,
    (ResourceType.CHAT_MODEL, "skills"): ResourceType.SKILLS,
    (ResourceType.CHAT_MODEL, "tools"): ResourceType.TOOL,
    (ResourceType.EMBEDDING_MODEL, "connection"): ResourceType.CHAT_MODEL_CONNECTION,
    (ResourceType.VECTOR_STORE, "embedding_model"): ResourceType.EMBEDDING_MODEL,
    (ResourceType.LONG_TERM_MEMORY, "vector_store"): ResourceType.VECTOR_STORE,
    (ResourceType.LONG_TERM_MEMORY, "chat_model"): ResourceType.CHAT_MODEL,
}
"""Arguments of descriptors that name another resource, by kind and argument, with that resource's kind."""


def references_of(resource_type: ResourceType, arguments: Mapping[str, Any]) -> list[ResourceRef]:
    """Return the other resources that the arguments of a descriptor name.

    Args:
        resource_type: The kind of the resource that the descriptor describes.
        arguments: The arguments of the descriptor by name.
    """
    references: list[ResourceRef] = []
    router = arguments.get("router")
    if resource_type is ResourceType.CHAT_MODEL and isinstance(router, Mapping):
        references += _models_of_router(cast("Mapping[str, Any]", router))
    for argument, value in arguments.items():
        target_type = REFERENCE_ARGUMENTS.get((resource_type, argument))
        candidates = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        for candidate in candidates:
            if isinstance(candidate, ResourceRef):
                references.append(candidate)
            elif target_type is not None and isinstance(candidate, str):
                references.append(ResourceRef(type=target_type, name=candidate))
    return references


def _models_of_router(router: Mapping[str, Any]) -> list[ResourceRef]:
    """Return the chat models among which a router chooses, and its judge."""
    judge = router.get("judge")
    names = [*router.get("models", ()), *([] if judge is None else [judge])]
    return [ResourceRef(type=ResourceType.CHAT_MODEL, name=name) for name in names]
