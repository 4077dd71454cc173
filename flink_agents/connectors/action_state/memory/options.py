"""Options of the store ``memory``."""

from flink_agents.api.common.option_values import option

OPTIONS = (
    option("action-state.memory.place", str, "default")(
        "Memory stores of one process with the same place share their records."
    ),
)
