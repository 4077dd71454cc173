"""Events by which actions talk with models and call tools, without waiting for the answer themselves.

An agent that emits a :class:`ChatRequestEvent` has the action ``answer_chat_request``, which answers it by a
:class:`ChatResponseEvent`; ``answer_tool_request`` does the same for tools. Both stand in the plan.
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
    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestedCall(_Plain):
    """A requested call of a tool.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments; JSON values.
        id: Identity of the call, by which its result is found.
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    id: str = ""


class CallResult(_Plain):
    """What a call of a tool came to.

    Attributes:
        name: Name of the tool.
        id: Identity of the call.
        kind: ``success``; ``failed``, where the tool could not do it; ``retry``, where the call was wrong;
            ``denied``, if it was not approved.
        content: The result, or why there is none; a JSON value.
    """

    name: str
    id: str
    kind: Literal["success", "failed", "retry", "denied"]
    content: Any = None


class ChatRequestEvent(Event):
    """A request to a chat model.

    Attributes:
        model: Name of the chat model.
        messages: What it is told: a text of the user, or messages.
        tag: Whatever the author wants to find in the response.
        tools: Names of tools besides those of the model.
        output_schema: JSON schema of an object that the answer shall be; None for a text.
        variables: Values for the prompt of the model.
        history: Earlier messages: ``messages`` of an earlier response; or how much of it short-term
            memory keeps for the key.
        run_tools: False leaves calls of tools to the author, who finds them in the response.
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
        # JSON has nothing else for messages; what pydantic reads of it is data, and is told as such.
        if info.mode == "json" or isinstance(value, str):
            return value
        several: list[object] = (
            [*cast("Sequence[object]", value)] if isinstance(value, list | tuple) else [value]
        )
        for one in several:
            if not isinstance(one, ChatMessage):
                raise _not_written("messages", "a string, or ChatMessage objects", one)
        return several

    @field_validator("history", mode="before")
    @classmethod
    def _check_history(cls, value: Any, info: ValidationInfo) -> Any:
        if info.mode == "json" or isinstance(value, ConversationHistory | ChatTranscript):
            return value
        if isinstance(value, list | tuple) and not value:
            return ChatTranscript([])
        given: object = value  # pyright: ignore[reportUnknownVariableType]
        raise _not_written("history", "a ConversationHistory, or the messages of a ChatResponseEvent", given)  # pyright: ignore[reportUnknownArgumentType]


class ChatResponseEvent(Event):
    """The answer of a chat model.

    Attributes:
        request_id: Id of the event that asked.
        tag: What its author wrote there.
        model: Name of the chat model that answered.
        output: The answer.
        messages: The whole transcript; JSON values, which ``history`` of another request takes.
        usage: What the conversation used.
        tool_calls: Calls that the model asks for, where they are left to the author.
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
        tag: Whatever the author wants to find in the response.
        tools: Names of MCP servers and of skills whose tools may be called as well.
    """

    calls: tuple[RequestedCall, ...]
    tag: Any = None
    tools: tuple[str, ...] = ()


class ToolResponseEvent(Event):
    """What calls of tools came to.

    Attributes:
        request_id: Id of the event that asked.
        tag: What its author wrote there.
        results: The results, in the order of the calls.
    """

    request_id: str
    tag: Any = None
    results: tuple[CallResult, ...]


def _not_written(field: str, expected: str, found: object) -> AgentConfigurationError:
    return AgentConfigurationError(
        f"a ChatRequestEvent is given {field} that are none of the agent's code",
        expected=expected,
        found=type(found).__name__,
        fix="format it as a string, or build ChatMessage(role='user', content=...) of its fields",
        where=authors_place(),
    )
