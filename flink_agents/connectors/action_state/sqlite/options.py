"""Options of the store ``sqlite``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.common.option_values import option

OPTIONS = (
    option("action-state.sqlite.path", str)(
        "File on a local disk. Default in a local job: in the job's folder, else "
        ".flink-agents/action-state.sqlite."
    ),
    option("action-state.sqlite.lease", timedelta, "10 s", minimum="100 ms")(
        "Time that another job with the same identifier waits for a job that crashed."
    ),
    option("action-state.sqlite.busy-timeout", timedelta, "30 s", minimum="100 ms")(
        "Time that an append waits for other writing processes."
    ),
    option("action-state.sqlite.max-record-bytes", int, MAX_RECORD_BYTES, minimum=1)("Largest record."),
    option("action-state.sqlite.max-tombstones", int, REMOVALS, minimum=0)(
        "Fully pruned keys that stay known, 100 bytes of the file each."
    ),
)
