"""Built-in actions that answer events with models and tools, and the agent that is built on them."""

from flink_agents.api.common.installation import check_pydantic_ai

# Here, since the modules below import names that an older version lacks.
check_pydantic_ai()
