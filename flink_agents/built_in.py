"""Names what this package provides for the extension points of ``flink_agents.api``.

This module and ``flink_agents/__init__.py``, which imports it, stand above all layers. ``api`` declares the
extension points and knows no layer above it. Each name is ``module:attribute``, imported at its first use.
"""

from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.environment import CREATE
from flink_agents.api.models.chat_events import (
    ChatRequestEvent,
    ChatResponseEvent,
    ToolRequestEvent,
    ToolResponseEvent,
)
from flink_agents.api.models.output_types import DESCRIBED_BY
from flink_agents.api.models.retrieval import ContextRetrievalRequestEvent, ContextRetrievalResponseEvent
from flink_agents.api.resources.providers import PROVIDERS
from flink_agents.api.settings.stores import STORE_OPTIONS, STORES
from flink_agents.api.settings.tracing import TRACE_SINKS

CREATE.name = "flink_agents.runtime.flink.environment:create_environment"

DESCRIBED_BY["pyflink"].name = "flink_agents.runtime.flink.values.rows:described_row"

PROVIDERS.built_in.update(
    tool="flink_agents.plan.binding.loaded:ToolProvider",
    prompt="flink_agents.plan.binding.loaded:PromptProvider",
    chat_model="flink_agents.models.chat.provider:ChatModelProvider",
    chat_model_connection="flink_agents.models.chat.provider:ConnectionProvider",
    client="flink_agents.plan.binding.loaded:ClientProvider",
    embedding_model="flink_agents.models.retrieval.embedding:EmbeddingModelProvider",
    skills="flink_agents.models.tools.skills.provider:SkillsProvider",
    vector_store="flink_agents.models.retrieval.resources:VectorStoreProvider",
    mcp_server="flink_agents.models.mcp.provider:MCPServerProvider",
    long_term_memory="flink_agents.models.retrieval.resources:LongTermMemoryProvider",
)

STORES.built_in.update(
    memory="flink_agents.connectors.action_state.memory.store:MemoryStore.from_options",
    sqlite="flink_agents.connectors.action_state.sqlite.store:SQLiteStore.from_options",
    kafka="flink_agents.connectors.action_state.kafka.store:KafkaStore.from_options",
)

STORE_OPTIONS.built_in.update(
    memory="flink_agents.connectors.action_state.memory.options:OPTIONS",
    sqlite="flink_agents.connectors.action_state.sqlite.options:OPTIONS",
    kafka="flink_agents.connectors.action_state.kafka.options:OPTIONS",
)

TRACE_SINKS.built_in.update(
    jsonl="flink_agents.trace.sinks.jsonl:JsonlSink.from_target",
    kafka="flink_agents.trace.sinks.kafka:KafkaSink.from_target",
    log="flink_agents.trace.sinks.log:LogSink.from_target",
    otel="flink_agents.trace.sinks.otel:OtelSink.from_target",
)

BUILT_IN_ACTIONS.extend(
    [
        BuiltInAction(
            "answer_chat_request",
            ChatRequestEvent,
            ChatResponseEvent,
            "flink_agents.models.agents.actions:answer_chat_request",
        ),
        BuiltInAction(
            "answer_tool_request",
            ToolRequestEvent,
            ToolResponseEvent,
            "flink_agents.models.agents.actions:answer_tool_request",
        ),
        BuiltInAction(
            "answer_context_retrieval_request",
            ContextRetrievalRequestEvent,
            ContextRetrievalResponseEvent,
            "flink_agents.models.agents.retrieval_action:answer_context_retrieval_request",
        ),
    ]
)
