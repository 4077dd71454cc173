"""Options of durable execution, whatever its store; see ``options``. Those of a store stand with it."""

from __future__ import annotations

from datetime import timedelta

from flink_agents.api.durable import OnMismatch, OnOtherJob, OnPlanChange, Prune
from flink_agents.api.option_values import ConfigOption


class StoreOptions:
    """The options of durable execution."""

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
