"""Tools that models call: functions, and sources of tools such as servers."""

from flink_agents.api.common.installation import check_pydantic_ai

# Here, since the modules below import names that an older version lacks.
check_pydantic_ai()
