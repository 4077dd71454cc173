"""The environment that all runs of an operator share, in parts of one purpose each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.common.policies import OnError, OnSuspend
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.resources import ResourceType
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAction, LoadedAgent
from flink_agents.runtime.execution.environment.events import (
    EventRecords,
    OutputChecks,
    ReceivedValues,
    Routes,
)
from flink_agents.runtime.execution.environment.loop_services import Durable, LoopServices
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.metrics.observers import OBSERVER_ERRORS, Observers
from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup, RunMetrics
from flink_agents.runtime.serde import typenames
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.memory import ReadWatch


def _wall_clock() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Observers and metrics of runs. Any thread may use it.

    Attributes:
        metrics: Metrics of the user's actions.
        run_metrics: Metrics of the runtime.
        observers: All observers of runs, the runtime's metrics among them.
    """

    metrics: LocalMetricGroup
    run_metrics: RunMetrics
    observers: Observers

    @classmethod
    def create(
        cls,
        agent_name: str,
        metrics: LocalMetricGroup,
        run_metrics: RunMetrics,
        other_observers: Sequence[RunObserver],
    ) -> Telemetry:
        """Build it with ``other_observers``, third-party observers whose errors are logged and counted."""

        def count() -> None:
            run_metrics.count(OBSERVER_ERRORS)

        return cls(metrics, run_metrics, Observers(run_metrics, other_observers, count, agent_name))


class RunEnvironment:
    """The parts that all runs of an operator share. Any thread may use it, but ``services`` are the loop's.

    Args:
        agent: The agent. Its libraries are imported.
        config: Options of the job.
        codec: Encodes memory.
        telemetry: Observes runs.
        services: What actions use on the event loop.
        journals: The journals of durable calls; None if no store is configured.
        clock: Returns the wall-clock time in milliseconds, on any thread.
        pause: Waits before the next attempt of a call or an action.
        submission: Identifies the submission of the job: another one may have other code.
        seconds: Returns the time that durations are measured with, as ``time.monotonic`` does.
        make_loop: Creates the event loop of the given ``AgentLoop``, for tests; None for the usual one.
        traces_outputs: True if outputs carry their lineage.

    Attributes:
        events: Converts events to records.
        routes: Finds the actions that an event triggers.
        output_checks: Compares outputs with the declared types.
        received: Converts values from outside.
        on_error: Policy for actions without one.
        on_unhandled: Policy for events that no action accepts.
        max_events: Maximum number of events of a run.
        run_deadline: Maximum duration of a run, or None.
        reorder_timeout: Time that a restored key waits for its recorded inputs.
        interleaves: True if inputs interleave with suspended runs of their key.
        inline: True if runs start on Flink's task thread. The parts of an interleaved run are recorded from
            its start, which only the event loop does.
        memory_expires: True if short-term memory expires in state.
        traces_memory: True if runs log their reads of memory: a replay may find it expired, or changed.
        traces_inputs: True if an observer or an output uses the id of the message that was a run's input.
        skips_timers: True if waits do not last until their time when the input has ended.
        reads: Finds mutable values of memory that were changed but not written.
        may_record: True if a run may be recorded: there is a store, and not all actions are ``def`` functions
            that certainly make no durable steps.
    """

    def __init__(
        self,
        agent: LoadedAgent,
        config: Configuration,
        codec: ValueCodec,
        telemetry: Telemetry,
        services: LoopServices,
        journals: Journals | None = None,
        clock: Callable[[], int] = _wall_clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        submission: str = "",
        seconds: Callable[[], float] = time.monotonic,
        make_loop: Callable[[Any], asyncio.AbstractEventLoop] | None = None,
        traces_outputs: bool = False,
    ) -> None:
        typenames.allow_modules(agent.modules(), config.get(AgentOptions.STATE_MODULES))
        agent.load_providers()
        self.agent = agent
        self.config = config
        self.codec = codec
        self.events = EventRecords(codec, agent.event_types)
        self.routes = Routes(agent.actions)
        self.output_checks = OutputChecks(agent.output_type, agent.side_outputs)
        chats = any(resource.type is ResourceType.CHAT_MODEL for resource in agent.plan.resources)
        self.received = ReceivedValues(codec, chats)
        self.telemetry = telemetry
        self.services = services
        self.journals = journals
        self.clock = clock
        self.pause = pause
        self.submission = submission
        self.seconds = seconds
        self.make_loop = make_loop
        if journals is not None:
            agent.leave_thread()
            telemetry.run_metrics.add_gauges("store", journals.store.metrics)
        self.may_record = journals is not None and any(
            action.is_async or action.off_thread for action in agent.actions
        )
        self.reads = ReadWatch()
        self.on_error, self.on_unhandled = default_policies(agent, config)
        # Options that are read for each run or key: looking one up takes several calls.
        self.max_events: int = config.get(AgentOptions.MAX_EVENTS)
        self.run_deadline: timedelta | None = config.get(AgentOptions.RUN_DEADLINE)
        self.reorder_timeout: timedelta = config.get(AgentOptions.REORDER_TIMEOUT)
        self.interleaves = agent.settings.on_suspend is OnSuspend.INTERLEAVE
        self.inline = config.get(AgentOptions.INLINE) and not self.interleaves
        self.memory_expires = config.get(AgentOptions.SHORT_TERM_TTL) is not None
        self.traces_memory = self.interleaves or self.memory_expires
        self.traces_outputs = traces_outputs
        self.traces_inputs = traces_outputs or bool(telemetry.observers.others)
        self.skips_timers = TimersAtEnd(config.get(AgentOptions.TIMERS_AT_END)) is TimersAtEnd.SKIP

    def for_sub_agent(self, agent: LoadedAgent, durable: Durable) -> RunEnvironment:
        """Create the environment of a sub-agent that actions of this agent call, in the same subtask.

        Args:
            agent: The sub-agent.
            durable: Makes the durable calls of its actions.
        """
        name = agent.name
        telemetry = self.telemetry
        observers = telemetry.observers.others
        services = LoopServices(agent)
        services.durable = durable
        services.sub_agents = self.services.sub_agents
        services.limits.open_as(self.services.limits)
        environment = type(self)(
            agent,
            self.config,
            self.codec,
            Telemetry.create(name, telemetry.metrics.get_sub_group(name), telemetry.run_metrics, observers),
            services,
            clock=self.clock,
            pause=self.pause,
            seconds=self.seconds,
        )
        environment.reads.strict = self.reads.strict
        return environment

    def leaves_thread(self, action: BoundAction) -> None:
        """Note that an action must not start on Flink's task thread from now on."""
        action.off_thread = True
        self.may_record = self.journals is not None


def default_policies(agent: LoadedAgent, config: Configuration) -> tuple[OnError, OnError]:
    """Return the policies for actions without one, and for events that no action accepts."""
    settings = agent.settings
    on_error = OnError(settings.on_error or config.get(AgentOptions.ON_ERROR))
    return on_error, OnError(settings.on_unhandled or config.get(AgentOptions.ON_UNHANDLED))
