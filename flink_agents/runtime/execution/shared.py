"""The objects that all runs of an operator share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from sys import modules
from typing import Any, Protocol

from typing_extensions import override

from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import OnSuspend
from flink_agents.api.context.asking import Answer
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import StateError, StoreNotConfiguredError
from flink_agents.api.resources import ResourceType, check_resource_type
from flink_agents.api.resources.provenance import LIBRARY, as_data
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAction, BoundAgent
from flink_agents.plan.binding.uses import mark_durable_actions, may_wait
from flink_agents.runtime.concurrency.bridge import CLIENT_CLOSE_SECONDS
from flink_agents.runtime.concurrency.clients import Clients
from flink_agents.runtime.execution.event_records import EventRecords
from flink_agents.runtime.execution.limits import Limiters
from flink_agents.runtime.execution.routing import OutputChecks, Routes
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.runtime.metrics.observers import OBSERVER_ERRORS, Observers
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.serde import type_modules
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.reads import ReadWatch

_log = bounded_logger("flink_agents.resources")


class Durable(Protocol):
    """Makes durable calls. A ``step`` is an ``action_run.ActionRun``."""

    def call(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Make a call for an action that runs on the event loop."""
        ...

    def call_from_thread(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a call for an action that runs in a thread, and block until it ends."""
        ...


class SubAgentCaller(Protocol):
    """Lets actions call other agents. A ``caller`` is an ``action_run.ActionRun``."""

    def ask(self, caller: Any, agent: Any, event: Any, traced: bool) -> Awaitable[Answer]:
        """Have ``agent`` handle ``event``; the result is to be awaited."""
        ...

    async def close(self) -> None:
        """Close the clients and resources of the sub-agents."""
        ...


class NoStore(Durable):
    """Rejects durable calls, because no store is configured."""

    @override
    def call(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        raise StoreNotConfiguredError(
            "a durable call has no store that it could be recorded in",
            expected="the option action-state.store",
            found="no store",
            fix="set action-state.store to 'sqlite', or to another store that all workers reach",
        )

    @override
    def call_from_thread(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return self.call(step, what, args, kwargs)


def _wall_clock() -> int:
    return int(time.time() * 1000)


class RunEnvironment:
    """The objects that all runs of an operator share.

    Args:
        agent: The agent, bound to its code.
        agent_name: Name of the agent in the job.
        config: Options of the job.
        metrics: Metrics of the user's actions.
        run_metrics: Metrics of the runtime.
        codec: Encodes memory.
        journals: The journals of durable calls; None if no store is configured.
        around_durable: Wraps the object that makes durable calls; for tests.
        observers: Observers of runs, besides the runtime's metrics.
        traces_outputs: True if outputs carry their lineage.
        clock: Returns the wall-clock time in milliseconds, on any thread.
        pause: Waits before the next attempt of a call or an action.

    Attributes:
        observers: All observers of runs.
        durable: Makes durable calls.
        asking: Lets actions call other agents; None before the event loop exists.
        run_metrics: Metrics of the runtime.
        limits: Limits of actions and tools.
        reads: Finds mutable values of memory that were changed but not written.
        clients: Clients of the subtask.
        events: Converts events to records.
        action_names: The names of the agent's actions.
        output_checks: Compares outputs with the declared types.
        traces_inputs: True if an observer or an output uses the id of the message that was a run's input.
        received: Converts a value that came from outside before an action gets it; None if nothing is
            converted.
        may_record: True if there is a store, and an action of the agent may make a durable call.
        interleaves: True if inputs interleave with suspended runs of their key.
        traces_memory: True if runs log their reads of memory: a replay may find it expired, or changed.
        may_wait: True if actions may use durable waits, so that runs can be suspended.
    """

    def __init__(
        self,
        agent: BoundAgent,
        agent_name: str,
        config: Configuration,
        metrics: LocalMetricGroup,
        run_metrics: RunMetrics,
        codec: ValueCodec,
        journals: Journals | None = None,
        around_durable: Callable[[Durable], Durable] = lambda durable: durable,
        observers: Sequence[RunObserver] = (),
        traces_outputs: bool = False,
        clock: Callable[[], int] = _wall_clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        type_modules.know(agent.modules(), config.get(AgentOptions.STATE_MODULES))
        agent.load_providers()
        self.agent = agent
        self.agent_name = agent_name
        self.config = config
        self.metrics = metrics
        self.run_metrics = run_metrics
        self.observers = Observers(
            run_metrics, observers, lambda: run_metrics.count(OBSERVER_ERRORS), agent_name
        )
        self.codec = codec
        self.traces_outputs = traces_outputs
        self.traces_inputs = traces_outputs or bool(observers)
        self.clock = clock
        self.pause = pause
        self.events = EventRecords(codec, agent.event_types)
        self.journals = journals
        if journals is not None:
            mark_durable_actions(agent)
            run_metrics.add_gauges("store", journals.store.metrics)
        waits: bool | None = config.get(AgentOptions.MAY_SUSPEND)
        self.may_wait = may_wait(agent) if waits is None else waits
        self.durable: Durable = NoStore()
        self.asking: SubAgentCaller | None = None
        self._around_durable = around_durable
        self.memory_expires = config.get(AgentOptions.SHORT_TERM_TTL) is not None
        self.may_record = journals is not None and any(one.may_be_recorded for one in agent.actions)
        self.interleaves = self.may_wait and agent.on_suspend is OnSuspend.INTERLEAVE
        replays = self.may_wait or journals is not None
        self.traces_memory = self.interleaves or (self.memory_expires and replays)
        self.max_events: int = config.get(AgentOptions.MAX_EVENTS)
        self.routes = Routes(agent.actions)
        self.action_names = frozenset(action.name for action in agent.actions)
        self.side_outputs: Mapping[str, Any] = agent.side_outputs
        self.output_checks = OutputChecks(agent.output_type, agent.side_outputs)
        self.limits = Limiters(agent)
        self.reads = ReadWatch()
        self.clients = Clients(agent)
        # Only chat models, and agents of the model library, ask where a message is from. An action may import
        # the library when it runs, after its input has come, so `as_received` looks whether it is loaded.
        chats = any(one.type is ResourceType.CHAT_MODEL for one in agent.plan.resources)
        self.received: Callable[[Any], Any] | None = self._as_data if chats else None
        self._resources: dict[tuple[str, ResourceType], Any] = {}

    def for_sub_agent(self, agent: BoundAgent, durable: Durable) -> RunEnvironment:
        """Create the shared objects of a sub-agent that actions of this agent call, in the same subtask.

        Args:
            agent: The sub-agent.
            durable: Makes the durable calls of its actions.
        """
        name = agent.plan.name
        metrics, observers = self.metrics.get_sub_group(name), self.observers.others
        made = type(self)(
            agent,
            name,
            self.config,
            metrics,
            self.run_metrics,
            self.codec,
            observers=observers,
            clock=self.clock,
            pause=self.pause,
        )
        made.durable = durable
        made.asking = self.asking
        made.reads.strict = self.reads.strict
        made.limits.open_as(self.limits)
        return made

    def as_received(self, value: Any) -> Any:
        """Return a value from outside in the form that actions get: messages in it are data, not commands."""
        if self.received is None:
            if LIBRARY not in modules:
                return value
            self.received = self._as_data
        return self.received(value)

    def _as_data(self, value: Any) -> Any:
        return as_data(value, self._copied)

    def _copied(self, value: Any) -> Any:
        try:
            return self.codec.copy(value)
        except StateError:
            # State cannot hold it, so no other run can get this object.
            return value

    def leaves_thread(self, action: BoundAction) -> None:
        """Note that an action must not start on Flink's task thread from now on."""
        action.off_thread = True
        self.may_record = self.journals is not None

    def makes_calls(self, action: BoundAction) -> None:
        """Note that an action makes durable calls, because it has just made its first one."""
        action.make_calls()
        self.may_record = self.journals is not None

    def register_durable(self, durable: Durable) -> None:
        """Enable durable calls. The agent loop registers itself when it is created."""
        self.durable = self._around_durable(durable)

    def resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return a resource. It is created at its first use."""
        key = (name, check_resource_type(resource_type))
        if key not in self._resources:
            self._resources[key] = self.agent.resource(*key)
        return self._resources[key]

    async def close_resources(self) -> None:
        """Close the resources one after the other. An exception from one of them is logged."""
        for resource in self.agent.made_resources():
            close = getattr(resource, "aclose", None)
            if close is None:
                continue
            try:
                await asyncio.wait_for(close(), CLIENT_CLOSE_SECONDS)
            except Exception as error:  # whatever a foreign resource raises
                _log.warning("a resource, %s, was not closed: %r", type(resource).__qualname__, error)
