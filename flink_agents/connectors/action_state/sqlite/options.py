"""Options of the store ``sqlite``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.option_values import option

OPTIONS = (
    option("action-state.sqlite.path", str)(
        "The store's file, on a local disk; its directory is made. Default in a local job: the journal in "
        "the job's folder, or .flink-agents/action-state.sqlite in the working directory if the job does "
        "not resume."
    ),
    option("action-state.sqlite.lease", timedelta, "10 s", minimum="100 ms")(
        "How long another job with the same identifier waits for a job that died."
    ),
    option("action-state.sqlite.busy-timeout", timedelta, "30 s", minimum="100 ms")(
        "How long an append waits for other processes that write, before it fails."
    ),
    option("action-state.sqlite.max-record-bytes", int, MAX_RECORD_BYTES, minimum=1)(
        "The most bytes that a record may have."
    ),
    option("action-state.sqlite.max-tombstones", int, REMOVALS, minimum=0)(
        "How many keys of which all records were pruned stay known, the last ones: a restore from before is "
        "rejected for them. Each takes about 100 bytes of the file."
    ),
)
