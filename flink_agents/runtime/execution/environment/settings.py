"""The policies of an agent, which depend on its declarations and on the options of the job."""

from __future__ import annotations

from flink_agents.api.common.policies import OnError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import LoadedAgent


def default_policies(agent: LoadedAgent, config: Configuration) -> tuple[OnError, OnError]:
    """Return the policies for actions without one, and for events that no action accepts."""
    settings = agent.settings
    on_error = OnError(settings.on_error or config.get(AgentOptions.ON_ERROR))
    return on_error, OnError(settings.on_unhandled or config.get(AgentOptions.ON_UNHANDLED))
