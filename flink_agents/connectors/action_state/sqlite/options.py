"""Options of the store ``sqlite``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.option_values import ConfigOption

OPTIONS = (
    ConfigOption(
        "action-state.sqlite.path",
        str,
        None,
        "The store's file, on a local disk; its directory is made. Default in a local job: "
        ".flink-agents/action-state.sqlite below the directory in which it is started.",
    ),
    ConfigOption(
        "action-state.sqlite.lease",
        timedelta,
        timedelta(seconds=10),
        "How long another job with the same identifier waits for a job that died.",
        minimum=timedelta(milliseconds=100),
    ),
    ConfigOption(
        "action-state.sqlite.busy-timeout",
        timedelta,
        timedelta(seconds=30),
        "How long an append waits for other processes that write, before it fails.",
        minimum=timedelta(milliseconds=100),
    ),
    ConfigOption(
        "action-state.sqlite.max-record-bytes",
        int,
        MAX_RECORD_BYTES,
        "The most bytes that a record may have.",
        minimum=1,
    ),
    ConfigOption(
        "action-state.sqlite.removals",
        int,
        REMOVALS,
        "How many keys of which all records were pruned stay known, the last ones: a restore from before is "
        "refused for them. Each takes about 100 bytes of the file.",
        minimum=0,
    ),
)
