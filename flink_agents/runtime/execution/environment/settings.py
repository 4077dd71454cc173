"""The settings of an agent in a job, for the runtime: what the agent declares, and the options of the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from flink_agents.api.common.policies import OnError, OnSuspend
from flink_agents.api.durable import OnMismatch, OnPlanChange
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAgent
from flink_agents.plan.binding.uses import may_wait


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Flags, policies and limits of an agent's runs. Any thread may read it.

    A field without a description is the option of the job that has its name.

    Attributes:
        may_wait: True if actions may use durable waits, so that runs can be suspended.
        interleaves: True if inputs interleave with suspended runs of their key.
        inline: True if runs start on Flink's task thread. A run that resumes later is replayed, so everything
            it does is recorded, and only the event loop records.
        memory_expires: True if short-term memory expires in state.
        traces_memory: True if runs log their reads of memory: a replay may find it expired, or changed.
        traces_outputs: True if outputs carry their lineage.
        traces_inputs: True if an observer or an output uses the id of the message that was a run's input.
        on_error: Policy for actions without one of their own.
        skips_timers: True if waits do not last until their time when the input has ended.
    """

    may_wait: bool
    interleaves: bool
    inline: bool
    memory_expires: bool
    traces_memory: bool
    traces_outputs: bool
    traces_inputs: bool
    on_error: OnError
    on_unhandled: OnError
    on_mismatch: OnMismatch
    on_plan_change: OnPlanChange
    max_events: int
    max_in_flight: int
    queue_per_key: int
    queue_total: int
    pool_size: int
    max_suspended_per_key: int
    signals_per_key: int
    signals_ttl: timedelta
    skips_timers: bool
    run_deadline: timedelta | None
    reorder_timeout: timedelta
    late_input_timeout: timedelta
    idle_key_ttl: timedelta | None
    stuck_after: timedelta
    blocked_after: timedelta
    shutdown_grace: timedelta

    @classmethod
    def of(
        cls,
        agent: BoundAgent,
        config: Configuration,
        has_store: bool,
        is_observed: bool,
        traces_outputs: bool = False,
    ) -> RunSettings:
        """Read the settings of an agent, once for each subtask.

        Args:
            agent: The agent.
            config: Options of the job.
            has_store: True if durable calls are recorded.
            is_observed: True if runs have observers besides the runtime's metrics.
            traces_outputs: True if outputs carry their lineage.
        """
        option = config.get
        waits = may_suspend(agent, config)
        interleaves = waits and agent.on_suspend is OnSuspend.INTERLEAVE
        memory_expires = option(AgentOptions.SHORT_TERM_TTL) is not None
        return cls(
            may_wait=waits,
            interleaves=interleaves,
            inline=option(AgentOptions.INLINE) and not waits,
            memory_expires=memory_expires,
            traces_memory=interleaves or (memory_expires and (waits or has_store)),
            traces_outputs=traces_outputs,
            traces_inputs=traces_outputs or is_observed,
            on_error=OnError(agent.on_error or option(AgentOptions.ON_ERROR)),
            on_unhandled=OnError(agent.on_unhandled or option(AgentOptions.ON_UNHANDLED)),
            on_mismatch=OnMismatch(option(AgentOptions.ON_MISMATCH)),
            on_plan_change=OnPlanChange(option(AgentOptions.ON_PLAN_CHANGE)),
            max_events=option(AgentOptions.MAX_EVENTS),
            max_in_flight=option(AgentOptions.MAX_IN_FLIGHT),
            queue_per_key=option(AgentOptions.QUEUE_PER_KEY),
            queue_total=option(AgentOptions.QUEUE_TOTAL),
            pool_size=option(AgentOptions.POOL_SIZE),
            max_suspended_per_key=option(AgentOptions.MAX_SUSPENDED_PER_KEY),
            signals_per_key=option(AgentOptions.SIGNALS_PER_KEY),
            signals_ttl=option(AgentOptions.SIGNALS_TTL),
            skips_timers=TimersAtEnd(option(AgentOptions.TIMERS_AT_END)) is TimersAtEnd.SKIP,
            run_deadline=option(AgentOptions.RUN_DEADLINE),
            reorder_timeout=option(AgentOptions.REORDER_TIMEOUT),
            late_input_timeout=option(AgentOptions.LATE_INPUT_TIMEOUT),
            idle_key_ttl=option(AgentOptions.IDLE_KEY_TTL),
            stuck_after=option(AgentOptions.STUCK_AFTER),
            blocked_after=option(AgentOptions.BLOCKED_AFTER),
            shutdown_grace=option(AgentOptions.SHUTDOWN_GRACE),
        )


def may_suspend(agent: BoundAgent, config: Configuration) -> bool:
    """Return True if actions may use durable waits: the option says so, or else the agent's code."""
    waits: bool | None = config.get(AgentOptions.MAY_SUSPEND)
    return may_wait(agent) if waits is None else waits
