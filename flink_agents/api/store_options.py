"""Options of durable execution, whatever its store; see ``options``. Those of a store stand with it."""

from __future__ import annotations

from datetime import timedelta

from flink_agents.api.durable import OnMismatch, OnOtherJob, OnPlanChange, Prune
from flink_agents.api.option_values import option


class StoreOptions:
    """The options of durable execution."""

    STORE = option("action-state.store", str)(
        "Name of the store in which durable calls are recorded: sqlite, kafka, memory, or one that is "
        "installed. Default: sqlite in a local job that makes such calls; a job on a cluster names one."
    )
    ON_MISMATCH = option("action-state.on-mismatch", OnMismatch, OnMismatch.FAIL)(
        "What happens where a replay asks for another durable call than was recorded. rerun: what the "
        "execution recorded is void, and it is executed anew."
    )
    REORDER_TIMEOUT = option("action-state.reorder-timeout", timedelta, "60 s", minimum="0 s")(
        "How long a recorded run waits for its own input after a restore, before others of its key go on."
    )
    LATE_INPUT_TIMEOUT = option("action-state.late-input-timeout", timedelta, "1 d", minimum="0 s")(
        "How long a recorded run that others have overtaken is kept for its input, after a restore."
    )
    ON_PLAN_CHANGE = option("action-state.on-plan-change", OnPlanChange, OnPlanChange.CONTINUE_COMPATIBLE)(
        "What happens where state was written by another plan of the agent. refuse: the job fails. "
        "continue-compatible: it fails only where unfinished work does not fit the new plan."
    )
    GRACE = option("action-state.grace", timedelta, "3 s", minimum="0 s")(
        "How long durable calls may go on when an attempt of the job ends in a living process, so that they "
        "are recorded and not made again. No other call begins then."
    )
    ON_OTHER_JOB = option("action-state.on-other-job", OnOtherJob, OnOtherJob.REFUSE)(
        "What happens where state was written by a job with another job-identifier. refuse: the job fails. "
        "fork: it records in journals of its own. continue: it goes on with those of the other job, which "
        "must have ended."
    )
    PRUNE = option("action-state.prune", Prune, Prune.CHECKPOINTS)(
        "When records of durable calls are removed. checkpoints: when all checkpoints that Flink retains "
        "cover them, which its REST interface says. restore-only: after a restore, of keys that come again."
    )
    RETENTION = option("action-state.retention", timedelta, "0 s", minimum="0 s")(
        "How much longer such records are kept, for debugging."
    )
    REST_ADDRESS = option("action-state.rest-address", str)(
        "Where TaskManagers reach Flink's REST interface, such as jobmanager:8081 or https://host/path. "
        "Default: what their Flink configuration says."
    )
