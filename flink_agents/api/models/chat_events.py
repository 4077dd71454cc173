"""Events with which actions use models and call tools, without waiting for the answer themselves.

An agent that emits a :class:`ChatRequestEvent` has the action ``answer_chat_request``, which answers with a
:class:`ChatResponseEvent`; ``answer_tool_request`` does the same for tools. Both are part of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.events import Event
from flink_agents.api.models.chat import ChatUsage
from flink_agents.api.models.history import ChatTranscript, ConversationHistory
from flink_agents.api.resources import ChatMessage


class _Plain(BaseModel):
    """Base of frozen values without other fields than the declared ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestedCall(_Plain):
    """A call of a tool that a model, or an action, requests.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments; JSON values by name.
        id: Id of the call, which its result repeats.
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    id: str = ""


class CallResult(_Plain):
    """The result of a tool call.

    Attributes:
        name: Name of the tool.
        id: Id of the call.
        kind: ``success``; ``failed`` if the tool failed; ``retry`` if the call was wrong; ``denied``, if it
            was not approved.
        content: The result, or the reason why there is none; a JSON value.
    """

    name: str
    id: str
    kind: Literal["success", "failed", "retry", "denied"]
    content: Any = None


class ChatRequestEvent(Event):
    """A request to a chat model.

    Attributes:
        model: Name of the chat model.
        messages: The messages, or a string from the user.
        tag: Any value that the response should repeat.
        tools: Names of more tools, in addition to those of the model.
        output_schema: JSON schema of the answer, an object; None for a string.
        variables: Values for the prompt of the model.
        history: Earlier messages: ``messages`` of an earlier response, or a ``ConversationHistory`` in
            short-term memory.
        run_tools: If False, tool calls are left to you: the response contains them.
    """

    model: str
    messages: str | tuple[ChatMessage, ...] = ""
    tag: Any = None
    tools: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    variables: dict[str, Any] = Field(default_factory=dict[str, Any])
    history: ConversationHistory | ChatTranscript = Field(default_factory=lambda: ChatTranscript([]))
    run_tools: bool = True

    @field_validator("messages", mode="before")
    @classmethod
    def _check_messages(cls, value: Any, info: ValidationInfo) -> Any:
        # JSON has no other form for messages; pydantic reads them as data, and they count as such.
        if info.mode == "json" or isinstance(value, str):
            return value
        messages: list[object] = (
            [*cast("Sequence[object]", value)] if isinstance(value, list | tuple) else [value]
        )
        for message in messages:
            if not isinstance(message, ChatMessage):
                raise _not_written_error("messages", "a string, or ChatMessage objects", message)
        return messages

    @field_validator("history", mode="before")
    @classmethod
    def _check_history(cls, value: Any, info: ValidationInfo) -> Any:
        if info.mode == "json" or isinstance(value, ConversationHistory | ChatTranscript):
            return value
        if isinstance(value, list | tuple) and not value:
            return ChatTranscript([])
        rejected: object = value  # pyright: ignore[reportUnknownVariableType]
        expected = "a ConversationHistory, or the messages of a ChatResponseEvent"
        raise _not_written_error("history", expected, rejected)  # pyright: ignore[reportUnknownArgumentType]


class ChatResponseEvent(Event):
    """The answer of a chat model.

    Attributes:
        request_id: Id of the request event.
        tag: The tag of the request.
        model: Name of the chat model that answered.
        output: The answer: a string, or a JSON value that the schema of the request describes.
        messages: The whole transcript; JSON values, for ``history`` of another request.
        usage: Usage of the conversation.
        tool_calls: Tool calls that the model requests, if they are left to you.
    """

    request_id: str
    tag: Any = None
    model: str
    output: Any
    messages: ChatTranscript
    usage: ChatUsage
    tool_calls: tuple[RequestedCall, ...] = ()


class ToolRequestEvent(Event):
    """A request for calls of tools, which run concurrently.

    Attributes:
        calls: The calls, by the names of the agent's tools.
        tag: Any value that the response should repeat.
        tools: Names of MCP servers and of skills whose tools may be called as well.
    """

    calls: tuple[RequestedCall, ...]
    tag: Any = None
    tools: tuple[str, ...] = ()


class ToolResponseEvent(Event):
    """The results of tool calls.

    Attributes:
        request_id: Id of the request event.
        tag: The tag of the request.
        results: The results, in the order of the calls.
    """

    request_id: str
    tag: Any = None
    results: tuple[CallResult, ...]


def _not_written_error(field: str, expected: str, value: object) -> AgentConfigurationError:
    """Return the error about a field whose value is not of a class that the agent's code creates."""
    return AgentConfigurationError(
        f"a ChatRequestEvent has {field} that the agent's code did not create",
        expected=expected,
        found=type(value).__name__,
        fix="format it as a string, or build ChatMessage(role='user', content=...) from its fields",
        where=authors_place(),
    )
