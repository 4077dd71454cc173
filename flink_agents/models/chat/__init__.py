"""Chat models: each request of an action is one recorded call."""

from flink_agents.api.common.installation import check_pydantic_ai

# Here, since the modules below import names that an older version lacks.
check_pydantic_ai()
