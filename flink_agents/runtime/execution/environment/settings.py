"""The settings of an agent in a job, for the runtime: what the agent declares, and the options of the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from flink_agents.api.common.policies import OnError, OnSuspend
from flink_agents.api.durable import OnMismatch, OnPlanChange
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.models.chat import OnUnknownOutcome
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAgent
from flink_agents.plan.binding.uses import may_wait

_OPTIONS = (
    "max_events",
    "max_in_flight",
    "queue_per_key",
    "queue_total",
    "pool_size",
    "max_suspended_per_key",
    "signals_per_key",
    "signals_ttl",
    "run_deadline",
    "reorder_timeout",
    "late_input_timeout",
    "idle_key_ttl",
    "stuck_after",
    "blocked_after",
    "shutdown_grace",
)
"""The fields that are options of the job, with their values as they are."""


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
        on_error: Policy for actions without one.
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
        waits = may_suspend(agent, config)
        interleaves = waits and agent.on_suspend is OnSuspend.INTERLEAVE
        memory_expires = config.get(AgentOptions.SHORT_TERM_TTL) is not None
        return cls(
            may_wait=waits,
            interleaves=interleaves,
            inline=config.get(AgentOptions.INLINE) and not waits,
            memory_expires=memory_expires,
            traces_memory=interleaves or (memory_expires and (waits or has_store)),
            traces_outputs=traces_outputs,
            traces_inputs=traces_outputs or is_observed,
            on_error=OnError(agent.on_error or config.get(AgentOptions.ON_ERROR)),
            on_unhandled=OnError(agent.on_unhandled or config.get(AgentOptions.ON_UNHANDLED)),
            on_mismatch=OnMismatch(config.get(AgentOptions.ON_MISMATCH)),
            on_plan_change=OnPlanChange(config.get(AgentOptions.ON_PLAN_CHANGE)),
            skips_timers=TimersAtEnd(config.get(AgentOptions.TIMERS_AT_END)) is TimersAtEnd.SKIP,
            **{name: config.get(getattr(AgentOptions, name.upper())) for name in _OPTIONS},
        )


def may_suspend(agent: BoundAgent, config: Configuration) -> bool:
    """Return True if actions may use durable waits: the option says so, or else code or other options."""
    waits: bool | None = config.get(AgentOptions.MAY_SUSPEND)
    return (_options_ask(config) or may_wait(agent)) if waits is None else waits


def _options_ask(config: Configuration) -> bool:
    """Return True if options of resources let their calls wait for a person."""
    sources = (*config.below(AgentOptions.MCP_SERVERS.key), *config.below(AgentOptions.SKILLS.key))
    return any(key.endswith(".needs_approval") for key in sources) or any(
        key.endswith(".on_unknown_outcome") and value == OnUnknownOutcome.ASK
        for key, value in config.below(AgentOptions.CHAT_MODELS.key).items()
    )
