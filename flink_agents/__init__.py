"""Agents that live on event streams, on Apache Flink and in pure Python.

>>> from flink_agents import Agent, InputEvent, OutputEvent, action
>>> class Greeter(Agent):
...     @action(InputEvent)
...     def greet(self, event, ctx):
...         return OutputEvent(output=f"hello {event.input}")
"""

from typing import TYPE_CHECKING, Any

# First, so that all names are there before anything looks one up.
from flink_agents import built_in as built_in
from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import (
    action,
    chat_model,
    chat_model_connection,
    client,
    embedding_model,
    long_term_memory,
    mcp_server,
    prompt,
    resource,
    skills,
    tool,
    vector_store,
)
from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.common.policies import (
    DeadLetter,
    FailedAttempt,
    OnError,
    OnSuspend,
    RateLimit,
    RetryPolicy,
)
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import NOT_DONE, DurableCallable, OnMismatch, RetryableError, TerminalError
from flink_agents.api.durable.upgrades import upgrades
from flink_agents.api.errors import AgentsError
from flink_agents.api.events import AgentCallEvent, Event, InputEvent, NamedEvent, OutputEvent
from flink_agents.api.events.approvals import (
    ApprovalDeniedEvent,
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
)
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.events.signals import Signal, UnmatchedReason, UnmatchedSignal
from flink_agents.api.models.chat import (
    ChatModel,
    ChatModelConnection,
    ChatResult,
    ChatUsage,
    OnToolError,
    OutputMode,
    Router,
    RouteRule,
    Secret,
    UsageLimits,
)
from flink_agents.api.models.chat_events import (
    CallResult,
    ChatRequestEvent,
    ChatResponseEvent,
    RequestedCall,
    ToolRequestEvent,
    ToolResponseEvent,
)
from flink_agents.api.models.history import ConversationHistory, Summary
from flink_agents.api.models.mcp import MCPServer
from flink_agents.api.models.retrieval import ContextRetrievalRequestEvent, ContextRetrievalResponseEvent
from flink_agents.api.models.skills import Skills
from flink_agents.api.resources import (
    ChatMessage,
    Prompt,
    ResourceDescriptor,
    ResourceRef,
    ResourceType,
    Tool,
)
from flink_agents.api.resources.memory import MemoryObject, MemoryRef, MemoryScope
from flink_agents.api.resources.providers import DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, ConfigOption, Configuration
from flink_agents.api.vector_store import Document, DocumentUpdate

if TYPE_CHECKING:
    from flink_agents.api.environment import AgentsExecutionEnvironment
    from flink_agents.models.agents.react import ReActAgent

__version__ = "0.1.0"

__all__ = [
    "NOT_DONE",
    "Agent",
    "AgentOptions",
    "AgentsError",
    "AgentsExecutionEnvironment",
    "ApprovalDeniedEvent",
    "ApprovalOutcome",
    "ApprovalRequest",
    "ApprovalResponse",
    "AgentCallEvent",
    "CallResult",
    "ChatMessage",
    "ChatModel",
    "ChatModelConnection",
    "ChatRequestEvent",
    "ChatResponseEvent",
    "ChatResult",
    "ChatUsage",
    "ConfigOption",
    "Configuration",
    "ContextRetrievalRequestEvent",
    "ContextRetrievalResponseEvent",
    "ConversationHistory",
    "DeadLetter",
    "DeclaredResource",
    "Document",
    "DocumentUpdate",
    "DurableCallable",
    "Event",
    "EventTime",
    "FailedAttempt",
    "InputEvent",
    "MCPServer",
    "MemoryObject",
    "MemoryRef",
    "MemoryScope",
    "NamedEvent",
    "OnError",
    "OnMismatch",
    "OnSuspend",
    "OnToolError",
    "OutputEvent",
    "OutputMode",
    "Prompt",
    "RateLimit",
    "ReActAgent",
    "RequestedCall",
    "ResourceDescriptor",
    "ResourceProvider",
    "ResourceRef",
    "ResourceType",
    "RetryPolicy",
    "RetryableError",
    "RouteRule",
    "Router",
    "RunObserver",
    "RunnerContext",
    "Secret",
    "Signal",
    "UnmatchedReason",
    "UnmatchedSignal",
    "Summary",
    "Skills",
    "TerminalError",
    "Tool",
    "ToolRequestEvent",
    "ToolResponseEvent",
    "UsageLimits",
    "action",
    "chat_model",
    "chat_model_connection",
    "client",
    "embedding_model",
    "long_term_memory",
    "mcp_server",
    "prompt",
    "resource",
    "skills",
    "tool",
    "upgrades",
    "vector_store",
]


def __getattr__(name: str) -> Any:
    """Import ``ReActAgent`` and ``AgentsExecutionEnvironment`` at their first use.

    A job that uses the latter starts a JVM, which has to find this Python.

    PyFlink's JVM may be started by a line of the job that does not use this package.
    """
    if name == "ReActAgent":
        from flink_agents.models.agents.react import ReActAgent

        return ReActAgent
    if name != "AgentsExecutionEnvironment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flink_agents.api.environment import AgentsExecutionEnvironment
    from flink_agents.runtime.flink.launch import gateway

    gateway.prepare_jvms()
    globals()[name] = AgentsExecutionEnvironment
    return AgentsExecutionEnvironment
