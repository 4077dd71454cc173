"""Pydantic AI agents inside actions, with each of their model and tool calls recorded."""

# First: it checks the version of pydantic-ai, of which the other modules import names.
from flink_agents.models import chat as chat
from flink_agents.models.engine.actions import action_of, as_tool
from flink_agents.models.engine.durability import CallSettings, FlinkDurability
from flink_agents.models.engine.messages import kept_messages
from flink_agents.models.engine.toolsets import server_toolset, skills_toolset

__all__ = [
    "CallSettings",
    "FlinkDurability",
    "action_of",
    "as_tool",
    "kept_messages",
    "server_toolset",
    "skills_toolset",
]
