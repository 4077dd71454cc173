"""Errors of chat models, tools, MCP servers, embeddings and vector stores; the tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class ModelError(AgentsError):
    """A chat model did not come to an answer."""

    code = "FA9000"


class ModelRequestError(ModelError):
    """A request to a model failed, and no fallback answered."""

    code = "FA9001"


class UsageLimitExceededError(ModelError):
    """A conversation would use more requests, tokens, tool calls or money than it may."""

    code = "FA9002"


class ModelOutputError(ModelError):
    """A model did not give an output of the type that was asked for, however often it was told why."""

    code = "FA9003"


class HistoryError(ModelError):
    """A history of a conversation cannot be kept as it is asked for."""

    code = "FA9004"


class AgentNotDurableError(ModelError):
    """An agent of pydantic-ai runs in an action where none of its calls could be recorded."""

    code = "FA9005"


class ApprovalUnavailableError(ModelError):
    """A run of an agent of pydantic-ai waits for a person, and no one can answer."""

    code = "FA9006"


class NestedChatsError(ModelError):
    """Too many conversations lie in one another: a tool leads back to the model that called it."""

    code = "FA9007"


class MessageOriginError(ModelError):
    """An object that came with data would speak to a chat model with another role than the user."""

    code = "FA9030"


class UrlContentError(ModelError):
    """A chat model is given a content that is a URL, which the agent's code does not allow."""

    code = "FA9031"


class ModelRefusedError(ModelError):
    """A model refused to answer, or the provider's content filter withheld the answer."""

    code = "FA9041"


class ToolError(AgentsError):
    """A tool that a model called ended the conversation."""

    code = "FA9100"


class ToolRetriesExceededError(ToolError):
    """A model called a tool wrongly, or a tool asked for another call, more often than is allowed."""

    code = "FA9101"


class ToolResultError(ToolError):
    """A tool returned something that no model can be told, since it is no JSON."""

    code = "FA9102"


class ToolOutcomeUnknownError(ModelError, ToolError):
    """It is unknown if a call of a tool took effect: it took too long, or was cut off."""

    code = "FA9040"


class SkillError(AgentsError):
    """Skills are not there, cannot be read, or are not as skills should be."""

    code = "FA9400"


class MCPError(AgentsError):
    """An MCP server did not do what it was asked for."""

    code = "FA9200"


class MCPServerUnavailableError(MCPError):
    """An MCP server could not be started or reached, or gave no answer, in all attempts."""

    code = "FA9201"


class MCPRequestError(MCPError):
    """An MCP server answered that it does not do it."""

    code = "FA9202"


class MCPOutcomeUnknownError(MCPError, ToolOutcomeUnknownError):
    """The connection was lost, or time ran out, while a tool of an MCP server was called."""

    code = "FA9203"


class MCPResultError(MCPError):
    """An MCP server answered something that cannot be used here."""

    code = "FA9204"


class RetrievalError(AgentsError):
    """An embedding model, a vector store or a long-term memory cannot execute a request."""

    code = "FA9300"


class EmbeddingMismatchError(RetrievalError):
    """Vectors do not fit: of another dimension, or made by another model than those of the collection."""

    code = "FA9301"


class DocumentError(RetrievalError):
    """A document has an id, a text, metadata or an embedding that a vector store cannot keep."""

    code = "FA9302"


class VectorFilterError(RetrievalError):
    """A filter of documents is no filter."""

    code = "FA9303"


class VectorStoreUnavailableError(RetrievalError):
    """A vector store cannot be reached or written at present."""

    code = "FA9304"


class VectorStoreFormatError(RetrievalError):
    """The content of a vector store is corrupt, of something else, or of a newer version of this package."""

    code = "FA9305"


class VectorStoreInUseError(RetrievalError):
    """A vector store is used from more hosts, or processes, than it serves."""

    code = "FA9306"
