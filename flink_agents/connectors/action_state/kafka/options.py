"""Options of the store ``kafka``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES
from flink_agents.api.option_values import option

REMOVALS = 20_000
"""Fewer than in a file: each subtask reads them when it starts, and holds them in memory."""

OPTIONS = (
    option("action-state.kafka.bootstrap-servers", str)(
        "Brokers of the store, `host:port`, separated by commas."
    ),
    option("action-state.kafka.topic", str, "flink-agents-action-state")(
        "Topic of the journals; who may append is kept in a second one, with `-claims` behind its name. "
        "Both are made where they do not exist."
    ),
    option("action-state.kafka.partitions", int, 8, minimum=1)(
        "How many partitions the topic gets when it is made. They cannot be changed later."
    ),
    option("action-state.kafka.replication-factor", int, -1, minimum=-1)(
        "How many copies the topics get, and have at least. -1: as many as the brokers say."
    ),
    option("action-state.kafka.min-insync-replicas", int, 0, minimum=0)(
        "How many copies must have a record before it counts. 0: as many as the brokers say."
    ),
    option("action-state.kafka.lease", timedelta, "10 s", minimum="100 ms")(
        "How long another job with the same identifier waits for a job that died."
    ),
    option("action-state.kafka.append-lease", timedelta, "1 s", minimum="0 s")(
        "How long appends are done without a new look at who may append; the next attempt waits a quarter "
        "longer for one that was killed. 0 s: a look behind each append, and no wait."
    ),
    option("action-state.kafka.append-timeout", timedelta, "120 s", minimum="1 s")(
        "How long an append waits for the brokers before the attempt of the job fails."
    ),
    option("action-state.kafka.rebuild-timeout", timedelta, "120 s", minimum="1 s")(
        "How long reading the journals may go without any progress before the attempt of the job fails."
    ),
    option("action-state.kafka.max-tombstones", int, REMOVALS, minimum=0)(
        "How many keys of which all records were pruned stay known, the last ones and a sample of others: a "
        "restore from before is rejected for them. Each takes about 450 bytes of memory in each subtask."
    ),
    option("action-state.kafka.max-record-bytes", int, MAX_RECORD_BYTES, minimum=1)(
        "The most bytes that a record may have. The topics take messages of twice that."
    ),
    option("action-state.kafka.client", dict)(
        "Options of kafka-python, such as for TLS and SASL: each follows this key and a dot."
    ),
)
