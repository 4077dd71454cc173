"""Options of durable execution and of this package's stores; see ``options``."""

from __future__ import annotations

from datetime import timedelta

from flink_agents.api.action_state import MAX_RECORD_BYTES, REMOVALS
from flink_agents.api.durable import OnMismatch, OnOtherJob, OnPlanChange, Prune
from flink_agents.api.option_values import ConfigOption


class StoreOptions:
    """All whose keys begin with ``action-state.``."""

    STORE = ConfigOption(
        "action-state.store",
        str,
        None,
        "Name of the store in which durable calls are recorded: sqlite, kafka, memory, or one that is "
        "installed. Default: sqlite in a local job that makes such calls; a job on a cluster names one.",
    )
    ON_MISMATCH = ConfigOption(
        "action-state.on-mismatch",
        OnMismatch,
        OnMismatch.FAIL,
        "What happens where a replay asks for another durable call than was recorded. rerun: what the "
        "execution recorded is void, and it is executed anew.",
    )
    REORDER_TIMEOUT = ConfigOption(
        "action-state.reorder-timeout",
        timedelta,
        timedelta(seconds=60),
        "How long a recorded run waits for its own input after a restore, before others of its key go on.",
        minimum=timedelta(),
    )
    LATE_INPUT_TIMEOUT = ConfigOption(
        "action-state.late-input-timeout",
        timedelta,
        timedelta(days=1),
        "How long a recorded run that others have overtaken is kept for its input, after a restore.",
        minimum=timedelta(),
    )
    ON_PLAN_CHANGE = ConfigOption(
        "action-state.on-plan-change",
        OnPlanChange,
        OnPlanChange.CONTINUE_COMPATIBLE,
        "What happens where state was written by another plan of the agent. refuse: the job fails. "
        "continue-compatible: it fails only where unfinished work does not fit the new plan.",
    )
    GRACE = ConfigOption(
        "action-state.grace",
        timedelta,
        timedelta(seconds=3),
        "How long durable calls may go on when an attempt of the job ends in a living process, so that they "
        "are recorded and not made again. No other call begins then.",
        minimum=timedelta(),
    )
    ON_OTHER_JOB = ConfigOption(
        "action-state.on-other-job",
        OnOtherJob,
        OnOtherJob.REFUSE,
        "What happens where state was written by a job with another job-identifier. refuse: the job fails. "
        "fork: it records in journals of its own. continue: it goes on with those of the other job, which "
        "must have ended.",
    )
    PRUNE = ConfigOption(
        "action-state.prune",
        Prune,
        Prune.CHECKPOINTS,
        "When records of durable calls are removed. checkpoints: when all checkpoints that Flink retains "
        "cover them, which its REST interface says. restore-only: after a restore, of keys that come again.",
    )
    RETENTION = ConfigOption(
        "action-state.retention",
        timedelta,
        timedelta(),
        "How much longer such records are kept, for debugging.",
        minimum=timedelta(),
    )
    REST_ADDRESS = ConfigOption(
        "action-state.rest-address",
        str,
        None,
        "Where TaskManagers reach Flink's REST interface, such as jobmanager:8081 or https://host/path. "
        "Default: what their Flink configuration says.",
    )
    MEMORY_PLACE = ConfigOption(
        "action-state.memory.place",
        str,
        "default",
        "Memory stores of one process with the same place share their records.",
    )
    SQLITE_PATH = ConfigOption(
        "action-state.sqlite.path",
        str,
        None,
        "The store's file, on a local disk; its directory is made. Default in a local job: "
        ".flink-agents/action-state.sqlite below the directory in which it is started.",
    )
    SQLITE_LEASE = ConfigOption(
        "action-state.sqlite.lease",
        timedelta,
        timedelta(seconds=10),
        "How long another job with the same identifier waits for a job that died.",
        minimum=timedelta(milliseconds=100),
    )
    SQLITE_BUSY_TIMEOUT = ConfigOption(
        "action-state.sqlite.busy-timeout",
        timedelta,
        timedelta(seconds=30),
        "How long an append waits for other processes that write, before it fails.",
        minimum=timedelta(milliseconds=100),
    )
    SQLITE_RECORD_BYTES = ConfigOption(
        "action-state.sqlite.max-record-bytes",
        int,
        MAX_RECORD_BYTES,
        "The most bytes that a record may have.",
        minimum=1,
    )
    SQLITE_REMOVALS = ConfigOption(
        "action-state.sqlite.removals",
        int,
        REMOVALS,
        "How many keys of which all records were pruned stay known, the last ones: a restore from before is "
        "refused for them. Each takes about 100 bytes of the file.",
        minimum=0,
    )
    KAFKA_BOOTSTRAP_SERVERS = ConfigOption(
        "action-state.kafka.bootstrap-servers",
        str,
        None,
        "Brokers of the store, `host:port`, separated by commas. Behind `action-state.kafka.client.` stand "
        "options of kafka-python, such as for TLS and SASL.",
    )
    KAFKA_TOPIC = ConfigOption(
        "action-state.kafka.topic",
        str,
        "flink-agents-action-state",
        "Topic of the journals; who may append is kept in a second one, with `-claims` behind its name. "
        "Both are made where they do not exist.",
    )
    KAFKA_PARTITIONS = ConfigOption(
        "action-state.kafka.partitions",
        int,
        8,
        "How many partitions the topic gets when it is made. They cannot be changed later.",
        minimum=1,
    )
    KAFKA_REPLICATION = ConfigOption(
        "action-state.kafka.replication-factor",
        int,
        -1,
        "How many copies the topics get, and have at least. -1: as many as the brokers say.",
        minimum=-1,
    )
    KAFKA_IN_SYNC = ConfigOption(
        "action-state.kafka.min-insync-replicas",
        int,
        0,
        "How many copies must have a record before it counts. 0: as many as the brokers say.",
        minimum=0,
    )
    KAFKA_LEASE = ConfigOption(
        "action-state.kafka.lease",
        timedelta,
        timedelta(seconds=10),
        "How long another job with the same identifier waits for a job that died.",
        minimum=timedelta(milliseconds=100),
    )
    KAFKA_APPEND_LEASE = ConfigOption(
        "action-state.kafka.append-lease",
        timedelta,
        timedelta(seconds=1),
        "How long appends are done without a new look at who may append; the next attempt waits a quarter "
        "longer for one that was killed. 0 s: a look behind each append, and no wait.",
        minimum=timedelta(),
    )
    KAFKA_APPEND_TIMEOUT = ConfigOption(
        "action-state.kafka.append-timeout",
        timedelta,
        timedelta(seconds=120),
        "How long an append waits for the brokers before the attempt of the job fails.",
        minimum=timedelta(seconds=1),
    )
    KAFKA_REBUILD_TIMEOUT = ConfigOption(
        "action-state.kafka.rebuild-timeout",
        timedelta,
        timedelta(seconds=120),
        "How long reading the journals may go without any progress before the attempt of the job fails.",
        minimum=timedelta(seconds=1),
    )
    KAFKA_REMOVALS = ConfigOption(
        "action-state.kafka.removals",
        int,
        REMOVALS,
        "How many keys of which all records were pruned stay known, the last ones and a sample of others: a "
        "restore from before is refused for them. Each takes about 450 bytes of memory in each subtask.",
        minimum=0,
    )
    KAFKA_RECORD_BYTES = ConfigOption(
        "action-state.kafka.max-record-bytes",
        int,
        MAX_RECORD_BYTES,
        "The most bytes that a record may have. The topics take messages of twice that.",
        minimum=1,
    )
