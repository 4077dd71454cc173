"""The environment that all runs of an operator share, in parts of one purpose each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.settings.options import Configuration
from flink_agents.plan import BoundAction, BoundAgent
from flink_agents.plan.binding.uses import mark_durable_actions
from flink_agents.runtime.execution.environment.loaded_agent import LoadedAgent
from flink_agents.runtime.execution.environment.loop_services import Durable, LoopServices
from flink_agents.runtime.execution.environment.settings import RunSettings
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.runtime.metrics.observers import OBSERVER_ERRORS, Observers
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.reads import ReadWatch


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
    def of(
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
        code: The agent's code.
        settings: Its settings.
        config: Options of the job, for actions.
        codec: Encodes memory.
        telemetry: Observes runs.
        services: What actions use on the event loop.
        journals: The journals of durable calls; None if no store is configured.
        clock: Returns the wall-clock time in milliseconds, on any thread.
        pause: Waits before the next attempt of a call or an action.
        submission: Identifies the submission of the job: another one may have other code.
        seconds: Returns the time that durations are measured with, as ``time.monotonic`` does.
        make_loop: Creates the event loop of the given ``AgentLoop``, for tests; None for the usual one.

    Attributes:
        reads: Finds mutable values of memory that were changed but not written.
        may_record: True if there is a store, and an action of the agent may make a durable call.
    """

    def __init__(
        self,
        code: LoadedAgent,
        settings: RunSettings,
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
    ) -> None:
        self.code = code
        self.settings = settings
        self.config = config
        self.codec = codec
        self.telemetry = telemetry
        self.services = services
        self.journals = journals
        self.clock = clock
        self.pause = pause
        self.submission = submission
        self.seconds = seconds
        self.make_loop = make_loop
        if journals is not None:
            mark_durable_actions(code.agent)
            telemetry.run_metrics.add_gauges("store", journals.store.metrics)
        self.may_record = journals is not None and any(
            action.may_be_recorded for action in code.agent.actions
        )
        self.reads = ReadWatch()

    def for_sub_agent(self, agent: BoundAgent, durable: Durable) -> RunEnvironment:
        """Create the environment of a sub-agent that actions of this agent call, in the same subtask.

        Args:
            agent: The sub-agent.
            durable: Makes the durable calls of its actions.
        """
        name = agent.plan.name
        config = self.config
        telemetry = self.telemetry
        observers = telemetry.observers.others
        services = LoopServices(agent)
        services.durable = durable
        services.sub_agents = self.services.sub_agents
        services.limits.open_as(self.services.limits)
        environment = type(self)(
            LoadedAgent(agent, config, self.codec),
            RunSettings.of(agent, config, False, bool(observers)),
            config,
            self.codec,
            Telemetry.of(name, telemetry.metrics.get_sub_group(name), telemetry.run_metrics, observers),
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

    def makes_calls(self, action: BoundAction) -> None:
        """Note that an action makes durable calls, because it has just made its first one."""
        action.make_calls()
        self.may_record = self.journals is not None
