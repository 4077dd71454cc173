"""Errors of chat models, tools, MCP servers, embeddings and vector stores; the tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class ModelError(AgentsError):
    """A chat model did not answer."""

    code = "FA9000"


class ModelRequestError(ModelError):
    """A request to a model failed, and no fallback answered."""

    code = "FA9001"


class UsageLimitExceededError(ModelError):
    """A conversation would exceed a limit of requests, tokens, tool calls or money."""

    code = "FA9002"


class ModelOutputError(ModelError):
    """A model did not return an output of the requested type in all its attempts."""

    code = "FA9003"


class HistoryError(ModelError):
    """A history of a conversation cannot be stored as requested."""

    code = "FA9004"


class AgentNotDurableError(ModelError):
    """A Pydantic AI agent runs in an action in a place where its calls cannot be recorded."""

    code = "FA9005"


class ApprovalUnavailableError(ModelError):
    """A run of a Pydantic AI agent waits for a person, but people are not asked."""

    code = "FA9006"


class NestedChatsError(ModelError):
    """Too many conversations are nested: a tool leads back to the model that called it."""

    code = "FA9007"


class MessageOriginError(ModelError):
    """An object from input data would speak to a chat model with another role than the user's."""

    code = "FA9030"


class UrlContentError(ModelError):
    """A chat model got a content that is a URL, which the agent's code does not allow."""

    code = "FA9031"


class ModelRefusedError(ModelError):
    """A model refused to answer, or the provider's content filter withheld the answer."""

    code = "FA9041"


class ToolError(AgentsError):
    """A tool that a model called ended the conversation."""

    code = "FA9100"


class ToolRetriesExceededError(ToolError):
    """A model called a tool wrongly, or a tool requested another call, more often than allowed."""

    code = "FA9101"


class ToolResultError(ToolError):
    """A tool returned a result that JSON cannot hold."""

    code = "FA9102"


class ToolOutcomeUnknownError(ModelError, ToolError):
    """It is unknown whether a tool call took effect: it timed out, or was interrupted."""

    code = "FA9040"


class SkillError(AgentsError):
    """Skills are missing, unreadable, or invalid."""

    code = "FA9400"


class MCPError(AgentsError):
    """An MCP server did not execute a request."""

    code = "FA9200"


class MCPServerUnavailableError(MCPError):
    """An MCP server could not be started or reached, or did not answer, in all attempts."""

    code = "FA9201"


class MCPRequestError(MCPError):
    """An MCP server rejected a request, or the request cannot be sent."""

    code = "FA9202"


class MCPOutcomeUnknownError(MCPError, ToolOutcomeUnknownError):
    """The connection was lost, or the request timed out, while a tool of an MCP server was called."""

    code = "FA9203"


class MCPResultError(MCPError):
    """An MCP server's answer cannot be used."""

    code = "FA9204"


class RetrievalError(AgentsError):
    """An embedding model, a vector store or a long-term memory cannot execute a request."""

    code = "FA9300"


class EmbeddingMismatchError(RetrievalError):
    """Vectors do not match: another dimension, or another model than the collection's."""

    code = "FA9301"


class DocumentError(RetrievalError):
    """A document has an id, text, metadata or embedding that a vector store cannot hold."""

    code = "FA9302"


class VectorFilterError(RetrievalError):
    """A filter of documents is invalid."""

    code = "FA9303"


class VectorStoreUnavailableError(RetrievalError):
    """A vector store cannot be reached or written now."""

    code = "FA9304"


class VectorStoreFormatError(RetrievalError):
    """The content of a vector store is corrupt, has another format, or is from a newer version."""

    code = "FA9305"


class VectorStoreInUseError(RetrievalError):
    """More hosts or processes use a vector store than it supports."""

    code = "FA9306"
