"""Builds a subtask, for the operator in Flink, the test kit, and the replay of a run.

They differ in their *host*: state, timers, clock, the destination of outputs, and the source of checkpoint
news. All other parts are built here, each complete, in the order in which they need each other. So the test
kit executes the same code as a job.

Each hook calls the key services in this order:

1. Event time: at a timer, it raises the low watermark first, by the inputs from before this timer.
2. Requests about keys, which change only marks in the head.
3. Signals: one that has expired must not resume a run.
4. Suspension: if runs resume at the same time as delayed events, the runs come first.
5. Delayed events: they start runs of a key, so the next services see its actor.
6. Idle keys: a key that got work from a timer is not removed by the same timer.
7. Pruning: it works on any key, and may change Flink's current key. So it is the last one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.action_state import ActionStateStore, Owner
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.common.policies import DEAD_LETTER_TAG, OnError
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.api.events.event_time import LATE_TAG, EventTime, LateOutputs
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentPlan, LoadedAgent
from flink_agents.runtime.execution.environment import RunEnvironment, Telemetry, default_policies
from flink_agents.runtime.execution.environment.loop_services import Durable, LoopServices
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.journal.other_jobs import JournalIdentity, OtherJobs
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.runtime.metrics.observers import made_observers
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.features import Features
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.requests.service import RequestService
from flink_agents.runtime.operator.schedules.end_times import FIRST_AGENT, EndTimes
from flink_agents.runtime.operator.schedules.heartbeat import Heartbeat
from flink_agents.runtime.operator.services.event_time import EventTimeService
from flink_agents.runtime.operator.services.hooks import Hooks
from flink_agents.runtime.operator.services.idle_keys import IdleKeyExpiry
from flink_agents.runtime.operator.services.late_replays import LateReplays
from flink_agents.runtime.operator.services.pruning import UnprunedKeys
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.delayed import Delays
from flink_agents.runtime.operator.waits.pending_work import PendingWork
from flink_agents.runtime.operator.waits.signal_store import SignalStore
from flink_agents.runtime.operator.waits.signals import SignalService
from flink_agents.runtime.operator.waits.suspended_runs import SuspendedRuns
from flink_agents.runtime.operator.waits.suspension import SuspensionService
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys
from flink_agents.trace.answer_topic import answer_topic_of
from flink_agents.trace.recording.assembly import recorder_of
from flink_agents.trace.recording.recorder import TracedSubtask

Outlet = Callable[[Emission], None]
"""Emits the outputs of a heartbeat for one key, while that key is current."""


@dataclass(frozen=True)
class Blueprint:
    """The agent and the settings of a subtask.

    Attributes:
        agent: The agent, bound to its code. Each subtask has its own.
        config: Options of the job.
        event_time: The policy for timestamps and watermarks.
        watermarks: True if the input can have watermarks.
        make_store: Creates the store of durable calls; None if there is none.
        observers: Observers of runs, besides the runtime's metrics.
        traces_outputs: True if outputs carry their lineage.
        end: The times of the timers at the end of the input.
    """

    agent: LoadedAgent
    config: Configuration
    event_time: EventTime
    watermarks: bool
    make_store: Callable[[], ActionStateStore] | None
    observers: Sequence[ObserverSource] = ()
    traces_outputs: bool = False
    end: EndTimes = FIRST_AGENT


def side_streams(agent: LoadedAgent, config: Configuration, event_time: EventTime) -> list[str]:
    """Return the tags of the side outputs of an agent in a job. Each is a separate stream.

    Args:
        agent: The agent.
        config: Options of the job.
        event_time: The policy for timestamps and watermarks.
    """
    on_error, on_unhandled = default_policies(agent, config)
    policies = {on_unhandled, *(OnError(action.settings.on_error or on_error) for action in agent.actions)}
    tags = list(agent.side_outputs)
    if OnError.DEAD_LETTER in policies:
        tags.append(DEAD_LETTER_TAG)
    if event_time.late is LateOutputs.SIDE:
        tags.append(LATE_TAG)
    return tags


def emitted_tags(agent: LoadedAgent, config: Configuration, event_time: EventTime) -> list[str]:
    """Return the tags of all side outputs of an operator.

    A run that is ended on request always becomes a dead letter, whatever the policies are. Any run may
    request approvals.
    """
    tags = side_streams(agent, config, event_time)
    return list(dict.fromkeys([*tags, DEAD_LETTER_TAG, UNMATCHED_SIGNALS_TAG, APPROVALS_TAG]))


@dataclass(frozen=True, kw_only=True)
class OperatorHost:
    """The environment of a subtask: Flink, or the test kit.

    Attributes:
        job_id: Flink's id of the job.
        subtask: Number of the subtask.
        parallelism: Number of subtasks.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        keys: The keys of the subtask.
        outlet: Creates the function that emits the outputs of a heartbeat, given the low watermark, or None
            if outputs need no timestamps.
        check_cancelled: Called while Flink's task thread waits; raises if the task was cancelled.
        make_pruner: Creates the object that removes records no checkpoint needs, or None.
        on_call: Called with the ``ActionRun`` and the ``DurableCall`` of each call; for debugging, or None.
        around_durable: Wraps the object that makes durable calls; for tests.
        pause: Waits before the next attempt of a call or an action.
        seconds: Returns the time that durations are measured with, as ``time.monotonic`` does.
        make_loop: Creates the event loop of an ``AgentLoop``, for tests; None for the usual one.
        attempt: Number of the task attempt, from 0.
        identity: The base of all ids. Default: the option ``job-identifier``, else ``job_id``.
        submission: Identifies the submission of the job. Default: ``job_id``.
    """

    job_id: str
    subtask: int
    parallelism: int
    state: KeyedState
    clock: Callable[[], int]
    keys: Keys
    outlet: Callable[[LowWatermark | None], Outlet]
    check_cancelled: Callable[[], None] = lambda: None
    make_pruner: Callable[[RunMetrics], Pruner | None] = lambda metrics: None
    on_call: Callable[[Any, Any], None] | None = None
    around_durable: Callable[[Durable], Durable] = lambda durable: durable
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    seconds: Callable[[], float] = time.monotonic
    make_loop: Callable[[Any], asyncio.AbstractEventLoop] | None = None
    attempt: int = 0
    identity: str | None = None
    submission: str | None = None


@dataclass(frozen=True)
class Subtask:
    """The parts of a subtask.

    Attributes:
        shared: The agent's shared objects.
        low: The low watermark; None if outputs need no timestamps.
        processor: Handles inputs and timers.
        heartbeat: The timer for all keys.
    """

    shared: RunEnvironment
    low: LowWatermark | None
    processor: AgentProcessor
    heartbeat: Heartbeat


def assemble(blueprint: Blueprint, host: OperatorHost) -> Subtask:
    """Build a subtask. Its processor is not open yet.

    Args:
        blueprint: The agent and its settings.
        host: The environment.
    """
    agent = blueprint.agent
    config = blueprint.config
    job_id: str = host.identity or config.get(AgentOptions.JOB_IDENTIFIER) or host.job_id
    codec = ValueCodec(config.get(AgentOptions.ALLOW_PICKLE))
    metrics = RunMetrics(action.name for action in agent.actions)
    journals = _journals(blueprint, host, job_id, codec, metrics)
    observers = made_observers(blueprint.observers, metrics)
    traced = TracedSubtask(job_id, agent.plan.name, host.subtask, host.attempt)
    recorder = recorder_of(config, traced, lambda number: metrics.count("trace_drops", None, number))
    observers += [observer for observer in (recorder, answer_topic_of(config)) if observer is not None]
    shared = RunEnvironment(
        agent,
        config,
        codec,
        Telemetry.of(agent.plan.name, LocalMetricGroup(), metrics, observers),
        LoopServices(agent, host.around_durable),
        journals,
        host.clock,
        host.pause,
        _submission(host, agent.plan),
        host.seconds,
        host.make_loop,
        blueprint.traces_outputs,
    )
    low: LowWatermark | None = None
    if blueprint.event_time.holds:
        low = LowWatermark(
            blueprint.event_time,
            metrics.group,
            host.clock,
            emitted_tags(agent, config, blueprint.event_time),
            blueprint.watermarks,
        )
    return _operator(host, shared, job_id, low, blueprint.end)


def _submission(host: OperatorHost, plan: AgentPlan) -> str:
    """Return a short text that differs if the code of the job may differ: Flink can keep the id of a job."""
    whole = f"{host.submission or host.job_id}\x00{plan.to_json()}"
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _journals(
    blueprint: Blueprint, host: OperatorHost, job_id: str, codec: ValueCodec, metrics: RunMetrics
) -> Journals | None:
    """Return the journals of durable calls; None if there is no store."""
    make = blueprint.make_store
    plan = blueprint.agent.plan
    if make is None:
        return None
    owner = Owner.create(host.job_id, journal_name(job_id, plan.name), host.subtask, host.parallelism)
    on_change = OnPlanChange(blueprint.config.get(AgentOptions.ON_PLAN_CHANGE))
    identity = None
    if (state := host.state.journals) is not None:
        identity = JournalIdentity(state, job_id, OtherJobs(blueprint.config, job_id))
    pruner = host.make_pruner(metrics)
    return Journals(make(), owner, codec, plan, on_change, make, pruner, host.on_call, identity)


def _operator(
    host: OperatorHost, shared: RunEnvironment, job_id: str, low: LowWatermark | None, end: EndTimes
) -> Subtask:
    """Return the operator."""
    forgetting = None
    if shared.config.get(AgentOptions.IDLE_KEY_TTL) is not None:
        forgetting = IdleKeyExpiry(shared, host.state, host.clock)
    suspended_runs = SuspendedRuns(shared, host.state, host.clock, low)
    services = key_services(host, shared, job_id, low, forgetting, suspended_runs)
    operator = AgentProcessor(
        shared,
        host.state,
        job_id,
        host.clock,
        host.check_cancelled,
        services.features(),
        Head if forgetting is None else forgetting.new_head,
        suspended_runs,
        math.inf if low is None else low.alive_seconds,
    )
    for service in services.in_order():
        service.attach(operator)
    heartbeat = Heartbeat(
        operator, host.clock, host.keys, host.outlet(low), services.signals, services.delays, end
    )
    operator.schedule = heartbeat
    return Subtask(shared, low, operator, heartbeat)


@dataclass(frozen=True, kw_only=True)
class KeyServices:
    """The services of an operator.

    Attributes:
        event_time: Holds the low watermark; None if outputs need no timestamps.
        requests: Handles requests about keys.
        signals: Stores signals.
        suspension: Suspends and resumes runs.
        delays: Delivers delayed events.
        idle_keys: Removes the heads of idle keys; None if they stay.
        pruning: Marks keys with records; None if records are not pruned.
        work: Checks the work in restored state; None if nothing of it could fail the job.
        late_replays: Keeps track of late replays; None without a store.
    """

    event_time: EventTimeService | None
    requests: RequestService
    signals: SignalService
    suspension: SuspensionService
    delays: Delays
    idle_keys: IdleKeyExpiry | None
    pruning: UnprunedKeys | None
    work: PendingWork | None
    late_replays: LateReplays | None

    def in_order(self) -> list[KeyService]:
        """Return those with hooks, in the order in which these are called."""
        services = (
            self.event_time,
            self.requests,
            self.signals,
            self.suspension,
            self.delays,
            self.idle_keys,
            self.pruning,
        )
        return [service for service in services if service is not None]

    def features(self) -> Features:
        """Return what the operator calls of them."""
        return Features(
            hooks=Hooks(self.in_order(), KeyService),
            suspensions=self.suspension,
            delayed=self.delays,
            end_requests=self.requests,
            event_time=self.event_time,
            work_check=self.work,
            skipped_runs=self.late_replays,
            idle_keys=self.idle_keys,
            pruning_marks=self.pruning,
        )


def key_services(
    host: OperatorHost,
    shared: RunEnvironment,
    job_id: str,
    low: LowWatermark | None,
    forgetting: IdleKeyExpiry | None,
    suspended_runs: SuspendedRuns,
) -> KeyServices:
    """Return the services that the plan and the options use, in the order that this module states.

    Args:
        host: The environment of the subtask.
        shared: The agent's shared objects.
        job_id: Identity of the job.
        low: The low watermark; None if outputs need no timestamps.
        forgetting: Removes the heads of idle keys; None if they stay.
        suspended_runs: The suspended runs in state.
    """
    state = host.state
    clock = host.clock
    journals = shared.journals
    work = PendingWork(shared, state)
    store = SignalStore(shared, state, clock, suspended_runs)
    suspension = SuspensionService(shared, state, clock, suspended_runs, store)
    requests = RequestService(shared, state, clock, suspension)
    pruning = None
    if journals is not None and journals.pruner is not None:
        pruning = UnprunedKeys(state, host.keys, journals.pruner, job_id, journals.key)
    return KeyServices(
        event_time=None if low is None else EventTimeService(shared, state, low),
        requests=requests,
        signals=SignalService(store, requests, suspension),
        suspension=suspension,
        delays=Delays(shared, state, clock, low, host.keys),
        idle_keys=forgetting,
        pruning=pruning,
        work=work if work.needed else None,
        late_replays=None if journals is None else LateReplays(shared, clock),
    )
