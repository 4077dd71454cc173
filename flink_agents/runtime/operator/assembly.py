"""Builds a subtask, for the operator in Flink, the test kit, and the replay of a run.

They differ in their *host*: state, timers, clock, the destination of outputs, and the source of checkpoint
news. All other parts are built here, each complete, in the order in which they need each other. So the test
kit executes the same code as a job.

Each hook calls the key services in this order:

1. The low watermark: at a timer, it is raised first, by the inputs from before this timer.
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
from functools import partial
from typing import Any

from flink_agents.api.action_state import ActionStateStore, Owner
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.common.policies import DEAD_LETTER_TAG, OnError
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.api.events.event_time import LATE_TAG, EventTime, LateOutputs
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentPlan, LoadedAgent
from flink_agents.runtime.execution.environment import (
    Durable,
    LoopServices,
    RunEnvironment,
    Telemetry,
    default_policies,
)
from flink_agents.runtime.journal.identity import journal_name
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.loop.replays import LateReplays
from flink_agents.runtime.metrics.observers import made_observers
from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup, RunMetrics
from flink_agents.runtime.operator.commit import Features
from flink_agents.runtime.operator.heartbeat import Heartbeat
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.requests import RequestService
from flink_agents.runtime.operator.services.cleanup import IdleKeyExpiry, UnprunedKeys
from flink_agents.runtime.operator.services.delayed import Delays
from flink_agents.runtime.operator.services.service import FIRST_AGENT, Emission, EndTimes, Hooks, KeyService
from flink_agents.runtime.operator.services.signals import SignalService
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys
from flink_agents.trace.answer_topic import answer_topic_of
from flink_agents.trace.recording.assembly import recorder_of
from flink_agents.trace.recording.recorder import TracedSubtask

Outlet = Callable[[Emission], None]
"""Emits what a heartbeat has committed for one key. It is called while that key is Flink's current key."""


@dataclass(frozen=True)
class Blueprint:
    """The agent and the settings of a subtask.

    Attributes:
        agent: The agent, bound to its code. Each subtask has its own.
        config: Options of the job.
        event_time: The policy for timestamps and watermarks.
        watermarks: True if the input stream has a watermark strategy, so that watermarks can come.
        make_store: Creates the store of durable calls; None if the job has no store.
        observers: Observers of runs, besides the runtime's metrics.
        traces_outputs: True if each output is a ``TracedOutput``, which carries the run that emitted it.
        end: The times of the timers that fire at the end of a bounded input.
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
        outlet: Creates the function that emits the outputs of a heartbeat. Its argument is the low watermark;
            None if outputs need no timestamps.
        check_cancelled: Called while Flink's task thread waits; raises if the task was cancelled.
        make_pruner: Creates the object that removes records no checkpoint needs, or None.
        on_call: Called with the ``ActionRun`` and the ``DurableCall`` of each call; for debugging, or None.
        around_durable: Wraps the object that makes durable calls; for tests.
        pause: Waits some seconds before the next attempt of a call or an action.
        seconds: Returns the time that durations are measured with, as ``time.monotonic`` does.
        make_loop: Creates the event loop of an ``AgentLoop``, for tests; None for the usual one.
        attempt: Number of the task attempt, from 0.
        identity: The base of all ids. Default: the option ``job-identifier``, else ``job_id``.
        submission: Identifies the submission of the job. Default: ``job_id``.
        ended_jobs: Flink's ids of earlier jobs whose processes have ended.
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
    ended_jobs: frozenset[str] = frozenset()


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
        Telemetry.create(agent.plan.name, LocalMetricGroup(), metrics, observers),
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
        tags = emitted_tags(agent, config, blueprint.event_time)
        low = LowWatermark(blueprint.event_time, shared, host.state, host.clock, tags, blueprint.watermarks)
    return _operator(host, shared, job_id, low, blueprint.end)


def _submission(host: OperatorHost, plan: AgentPlan) -> str:
    """Return a short text that differs if the code of the job may differ: Flink can keep the id of a job."""
    submission_and_plan = f"{host.submission or host.job_id}\x00{plan.to_json()}"
    return hashlib.blake2b(submission_and_plan.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _journals(
    blueprint: Blueprint, host: OperatorHost, job_id: str, codec: ValueCodec, metrics: RunMetrics
) -> Journals | None:
    """Return the journals of durable calls; None if there is no store."""
    make_store = blueprint.make_store
    plan = blueprint.agent.plan
    if make_store is None:
        return None
    group = journal_name(job_id, plan.name)
    owner = Owner.create(host.job_id, group, host.subtask, host.parallelism, host.ended_jobs)
    pruner = host.make_pruner(metrics)
    return Journals(
        make_store, owner, codec, plan, blueprint.config, job_id, host.state.journals, pruner, host.on_call
    )


def _operator(
    host: OperatorHost, shared: RunEnvironment, job_id: str, low: LowWatermark | None, end: EndTimes
) -> Subtask:
    """Return the operator, with the features that the plan and the options use."""
    state = host.state
    clock = host.clock
    suspensions = SuspendedRuns(shared, state, clock, low)
    requests = RequestService(shared, state, suspensions)
    signals = SignalService(shared, state, clock, suspensions, requests)
    delays = Delays(shared, state, clock, low, host.keys)
    idle_keys = None
    if shared.config.get(AgentOptions.IDLE_KEY_TTL) is not None:
        idle_keys = IdleKeyExpiry(shared, state, clock)
    pruning = _pruning(host, shared, job_id)
    # In the order that this module states.
    services = (low, requests, signals, suspensions, delays, idle_keys, pruning)
    hooked: list[KeyService] = [service for service in services if service is not None]
    features = Features(
        hooks=Hooks(hooked),
        signals=signals,
        suspensions=suspensions,
        delayed=delays,
        end_requests=requests,
        low_watermark=low,
        skipped_runs=None if shared.journals is None else LateReplays(shared, clock),
        idle_keys=idle_keys,
        pruning_marks=pruning,
    )
    new_head: Callable[[str], Head] = partial(Head, nodes=None) if shared.memory_expires else Head
    if idle_keys is not None:
        new_head = idle_keys.new_head
    seconds = math.inf if low is None else low.alive_seconds
    operator = AgentProcessor(shared, state, job_id, clock, host.check_cancelled, features, new_head, seconds)
    for service in hooked:
        service.attach(operator)
    heartbeat = Heartbeat(operator, clock, host.keys, host.outlet(low), end)
    operator.schedule = heartbeat
    return Subtask(shared, low, operator, heartbeat)


def _pruning(host: OperatorHost, shared: RunEnvironment, job_id: str) -> UnprunedKeys | None:
    """Return the service that marks keys with records; None if records are never pruned."""
    journals = shared.journals
    if journals is None or journals.pruner is None:
        return None
    return UnprunedKeys(host.state, host.keys, journals.pruner, job_id, journals.key)
