"""Options of the store ``kafka``."""

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.option_values import ConfigOption

OPTIONS = (
    ConfigOption(
        "action-state.kafka.bootstrap-servers",
        str,
        None,
        "Brokers of the store, `host:port`, separated by commas.",
    ),
    ConfigOption(
        "action-state.kafka.topic",
        str,
        "flink-agents-action-state",
        "Topic of the journals; who may append is kept in a second one, with `-claims` behind its name. "
        "Both are made where they do not exist.",
    ),
    ConfigOption(
        "action-state.kafka.partitions",
        int,
        8,
        "How many partitions the topic gets when it is made. They cannot be changed later.",
        minimum=1,
    ),
    ConfigOption(
        "action-state.kafka.replication-factor",
        int,
        -1,
        "How many copies the topics get, and have at least. -1: as many as the brokers say.",
        minimum=-1,
    ),
    ConfigOption(
        "action-state.kafka.min-insync-replicas",
        int,
        0,
        "How many copies must have a record before it counts. 0: as many as the brokers say.",
        minimum=0,
    ),
    ConfigOption(
        "action-state.kafka.lease",
        timedelta,
        timedelta(seconds=10),
        "How long another job with the same identifier waits for a job that died.",
        minimum=timedelta(milliseconds=100),
    ),
    ConfigOption(
        "action-state.kafka.append-lease",
        timedelta,
        timedelta(seconds=1),
        "How long appends are done without a new look at who may append; the next attempt waits a quarter "
        "longer for one that was killed. 0 s: a look behind each append, and no wait.",
        minimum=timedelta(),
    ),
    ConfigOption(
        "action-state.kafka.append-timeout",
        timedelta,
        timedelta(seconds=120),
        "How long an append waits for the brokers before the attempt of the job fails.",
        minimum=timedelta(seconds=1),
    ),
    ConfigOption(
        "action-state.kafka.rebuild-timeout",
        timedelta,
        timedelta(seconds=120),
        "How long reading the journals may go without any progress before the attempt of the job fails.",
        minimum=timedelta(seconds=1),
    ),
    ConfigOption(
        "action-state.kafka.removals",
        int,
        REMOVALS,
        "How many keys of which all records were pruned stay known, the last ones and a sample of others: a "
        "restore from before is refused for them. Each takes about 450 bytes of memory in each subtask.",
        minimum=0,
    ),
    ConfigOption(
        "action-state.kafka.max-record-bytes",
        int,
        MAX_RECORD_BYTES,
        "The most bytes that a record may have. The topics take messages of twice that.",
        minimum=1,
    ),
    ConfigOption(
        "action-state.kafka.client",
        dict,
        None,
        "Options of kafka-python, such as for TLS and SASL: each stands behind this key and a dot.",
    ),
)
