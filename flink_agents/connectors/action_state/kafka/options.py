"""Options of the store ``kafka``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES
from flink_agents.api.common.option_values import option

REMOVALS = 20_000
"""Fewer than in a file: each subtask reads them when it starts, and holds them in memory."""

OPTIONS = (
    option("action-state.kafka.bootstrap-servers", str)("Brokers, `host:port`, separated by commas."),
    option("action-state.kafka.topic", str, "flink-agents-action-state")(
        "Topic of the journals; a second one has the suffix `-claims`. Missing ones are created."
    ),
    option("action-state.kafka.partitions", int, 8, minimum=1)(
        "Partitions of a new topic. They cannot be changed later."
    ),
    option("action-state.kafka.replication-factor", int, -1, minimum=-1)(
        "Minimum number of copies of the topics. -1: the brokers' default."
    ),
    option("action-state.kafka.min-insync-replicas", int, 0, minimum=0)(
        "Copies that must have a record. 0: the brokers' default."
    ),
    option("action-state.kafka.lease", timedelta, "10 s", minimum="100 ms")(
        "Time that another job with the same identifier waits for a job that crashed."
    ),
    option("action-state.kafka.append-lease", timedelta, "1 s", minimum="0 s")(
        "Time that a subtask appends without checking if it still may; after a kill, the next attempt "
        "waits a quarter longer."
    ),
    option("action-state.kafka.append-timeout", timedelta, "120 s", minimum="1 s")(
        "Time that an append waits for the brokers before the attempt fails."
    ),
    option("action-state.kafka.rebuild-timeout", timedelta, "120 s", minimum="1 s")(
        "Time without progress in reading the journals before the attempt fails."
    ),
    option("action-state.kafka.max-tombstones", int, REMOVALS, minimum=0)(
        "Fully pruned keys that stay known, 450 bytes of memory each in each subtask."
    ),
    option("action-state.kafka.max-record-bytes", int, MAX_RECORD_BYTES, minimum=1)("Largest record."),
    option("action-state.kafka.client", dict)(
        "Options of kafka-python, such as for TLS and SASL: `.client.NAME`."
    ),
)
