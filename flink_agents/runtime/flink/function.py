"""``ActionExecutionOperator``: the agent as a PyFlink ``KeyedProcessFunction``.

A thin adapter: it passes Flink's keyed state, timers and clock to the engine-free
``AgentProcessor`` and emits the result. A failure is printed at once, with the
user's line first, and then raised to Flink.

PyFlink calls ``close()`` at the regular end of a job only. After a failure, a cancel or a stop with a
savepoint, the interpreter keeps running, and with it the loop of a dead operator. Two things end it: a
sentinel that is destroyed with the operator's thread, and the next attempt of the same subtask, which first
ends the previous one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any

from pyflink.common import TypeInformation, Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext

from flink_agents import redaction
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.common.logs import MAX_TRACEBACK, bound_text
from flink_agents.api.errors import AgentsError
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentCode, AgentPlan, LoadedAgent
from flink_agents.runtime.execution.environment import Telemetry
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.inputs import open_ends
from flink_agents.runtime.flink.inputs.open_ends import OpenEnd
from flink_agents.runtime.flink.internals.access import OperatorAccess, wall_clock_ms
from flink_agents.runtime.flink.logs import follow_java
from flink_agents.runtime.flink.metrics import FlinkMetrics
from flink_agents.runtime.flink.shipping import code_digest, user_modules
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_module import MainModule
from flink_agents.runtime.flink.stores import AnnouncedRun, StoreChoice
from flink_agents.runtime.flink.values.tables import Envelopes, untimed_tag
from flink_agents.runtime.operator.assembly import Blueprint, OperatorHost, Outlet, assemble
from flink_agents.runtime.operator.heartbeat import Heartbeat
from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP, LowWatermark
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.services.service import FIRST_AGENT, NOTHING, START, EndTimes
from flink_agents.runtime.retention.pruning import pruner_of
from flink_agents.runtime.serde import typenames
from flink_agents.runtime.state.keyed_state import KeyedState

_local = threading.local()
_lock = threading.Lock()
_attempts: dict[Hashable, SubtaskAttempt] = {}


class SubtaskAttempt:
    """An attempt of one subtask of one operator.

    Args:
        identity: Equal for attempts of the same subtask; only the latest one may work.
        end_attempt: Ends everything that the attempt started; may be called again. Its argument is True to
            wait for that end, in bounded time.
    """

    def __init__(self, identity: Hashable, end: Callable[[bool], None]) -> None:
        self._identity = identity
        self._end = end
        # Work that outlives its thread still runs the code that it was loaded with.
        self._use = user_modules.hold_use(self)

    def become_latest(self) -> None:
        """Become the latest attempt; earlier ones have ended when this returns."""
        with _lock:
            previous = _attempts.get(self._identity)
            _attempts[self._identity] = self
        if previous is not None:
            previous.end_attempt(wait=True)
        _local.sentinels = [*getattr(_local, "sentinels", ()), _Sentinel(self)]

    def end_attempt(self, wait: bool) -> None:
        """End the attempt; the next one can still find and await it until a caller has waited for its end."""
        self._end(wait)
        if wait:
            user_modules.release_use(self._use, self)
            with _lock:
                if _attempts.get(self._identity) is self:
                    del _attempts[self._identity]


class _Sentinel:
    """Ends an attempt when the thread that created it ends, since Python then destroys this object."""

    def __init__(self, attempt: SubtaskAttempt) -> None:
        self._attempt = attempt

    def __del__(self) -> None:
        self._attempt.end_attempt(wait=False)
        if not sys.is_finalizing():
            # There may be no next attempt: then only this removes it.
            threading.Thread(
                target=self._attempt.end_attempt, args=(True,), name="attempt-end", daemon=True
            ).start()


METRIC_GROUP = "flink_agents"


class ActionExecutionOperator(KeyedProcessFunction):
    """Routes each input of a key to the actions of an agent.

    The key of the stream is the canonical string of ``runtime.serde.keys``.

    Args:
        plan: The agent's plan.
        code: The functions of the plan, for those that cannot be imported.
        config: Options of the job.
        side_types: Flink types of the side outputs, by tag.
        event_time: What happens to timestamps and watermarks.
        watermarks: True if the input can have watermarks.
        store: Where durable calls are recorded; None if there are none.
        key_selector: Returns the keys; its module may define their classes.
        observers: Observers of runs.
        traces_outputs: True if outputs leave with their lineage.
        end: When the timers at the end of the input fire.
    """

    def __init__(
        self,
        plan: AgentPlan,
        code: AgentCode,
        config: Configuration,
        side_types: dict[str, TypeInformation],
        event_time: EventTime,
        watermarks: bool = True,
        store: StoreChoice | None = None,
        key_selector: Any = None,
        observers: Sequence[ObserverSource] = (),
        traces_outputs: bool = False,
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        # The first attribute is unpickled first: before anything that a stale module may lack.
        self._code_check = CodeCheck.for_agent(
            code if config.get(AgentOptions.CHECK_CODE) else None, observers
        )
        self._main = MainModule()
        self._plan = plan.to_json()
        self._code = code
        self._config = config
        self._tags = {tag: OutputTag(tag, kind) for tag, kind in side_types.items()}
        if event_time.holds:
            # The operator only needs the names of tags.
            untimed_tags = [untimed_tag(tag) for tag in ("", *side_types)]
            self._tags |= {tag: OutputTag(tag, Types.PICKLED_BYTE_ARRAY()) for tag in untimed_tags}
        self._event_time = event_time
        self._watermarks = watermarks
        self._store = store
        self._observers = observers
        self._traces_outputs = traces_outputs
        self._end = end
        self._open_end: OpenEnd | None = None
        self._key_module: str | None = getattr(key_selector, "__module__", None)
        self._processor: AgentProcessor | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Load the agent, and connect it to Flink's state, timers and outputs."""
        follow_java()
        self._code_check.check_modules()
        if self._key_module is not None:
            typenames.allow_modules([self._key_module])
        task = flink_compat.task_info(runtime_context)
        run = self._apply_announcement(runtime_context, task.attempt)
        code_digest.operator_opens(task.job_id, task.job_name)
        agent = LoadedAgent(AgentPlan.from_json(self._plan), self._code)
        name = agent.plan.name
        # All states are registered before the operator switches from key to key.
        ttl: timedelta | None = self._config.get(AgentOptions.SHORT_TERM_TTL)
        state = flink_compat.keyed_state(runtime_context, None if ttl is None else _milliseconds(ttl))
        try:
            agent.check_worker(self._config)
            access = OperatorAccess(self, runtime_context, self._tags)
        except AgentsError as error:
            _announce_error(error)
            raise
        state.journals = access.journals
        subtask = assemble(
            self._read_blueprint(agent), self._create_host(runtime_context, task, state, access, run)
        )
        self._metrics = _metrics_of(subtask.shared.telemetry, runtime_context, name)
        processor = subtask.processor
        self._attempt = SubtaskAttempt((task.job_id, name, task.subtask), processor.close)
        self._attempt.become_latest()
        try:
            processor.open(access.timers)
        except AgentsError as error:
            _announce_error(error)
            raise
        self._processor = processor
        heartbeat = subtask.heartbeat
        self._route_calls(access, processor, heartbeat, subtask.low)
        self._open_end = OpenEnd(self._end, access.timers.current_watermark, lambda: heartbeat.rests)
        open_ends.register_end((task.job_id, name, task.subtask), self._open_end)

    def _apply_announcement(self, context: RuntimeContext, attempt: int) -> AnnouncedRun | None:
        """Apply the announcement of a resuming local job about its job run."""
        run = AnnouncedRun.from_flink(flink_compat.task_configuration(context))
        if run is not None:
            run.end_with_driver()
            run.prevent_restart(attempt, flink_compat.cancellation_check())
            self._config, self._store = run.config(self._config), run.store(self._store)
        return run

    def _read_blueprint(self, agent: LoadedAgent) -> Blueprint:
        make_store = self._store.create_store if self._store is not None else None
        return Blueprint(
            agent,
            self._config,
            self._event_time,
            self._watermarks,
            make_store,
            self._observers,
            self._traces_outputs,
            self._end,
        )

    def _create_host(
        self,
        context: RuntimeContext,
        task: flink_compat.TaskInfo,
        state: KeyedState,
        access: OperatorAccess,
        run: AnnouncedRun | None,
    ) -> OperatorHost:
        """Return the parts of Flink that the processor needs: state, clock, keys and outlet."""
        task_configuration = flink_compat.task_configuration
        return OperatorHost(
            job_id=task.job_id,
            subtask=task.subtask,
            parallelism=task.parallelism,
            state=state,
            clock=wall_clock_ms,
            keys=access.keys,
            outlet=lambda low: _connect_outlet(access, low),
            check_cancelled=flink_compat.cancellation_check(),
            make_pruner=lambda metrics: pruner_of(
                self._config, task_configuration(context), task.job_id, metrics
            ),
            attempt=task.attempt,
            identity=None if run is None else run.identity,
            ended_jobs=frozenset() if run is None else frozenset(run.ended_jobs),
        )

    def _route_calls(
        self,
        access: OperatorAccess,
        processor: AgentProcessor,
        heartbeat: Heartbeat,
        low: LowWatermark | None,
    ) -> None:
        """Make Flink's calls for records and timers reach ``processor`` and ``heartbeat`` directly."""
        collector = access.collector
        timers = access.timers
        get_timestamp = collector.timestamp
        process = processor.process
        leave = _connect_outlet(access, low)
        fire = heartbeat.fire
        report = self._metrics.report_if_due
        holds_watermarks = low is not None

        def on_record(key: str, record: Any) -> Any:
            # Flink iterates over the generator, so watermarks leave while the record waits.
            if holds_watermarks and processor.is_crowded(key):
                return wait_for_room(key, record)
            timestamp: int | None = get_timestamp()
            if timestamp == NO_TIMESTAMP:
                timestamp = None
            try:
                emission = process(key, record, timestamp, timers)
            except AgentsError as error:
                _announce_error(error)
                raise
            report()
            leave(emission)
            access.flush()

        def wait_for_room(key: str, record: Any) -> Any:
            while processor.is_crowded(key):
                processor.loop_access.wait_for_a_sign()
                leave(NOTHING)
                access.flush()
                yield from access.remaining_outputs()
            on_record(key, record)
            yield from access.remaining_outputs()

        def on_timer(timestamp: int) -> None:
            if timestamp >= START:
                collector.erase_timestamp()
            try:
                fire(timestamp, timers)
            except AgentsError as error:
                _announce_error(error)
                raise
            report()
            if holds_watermarks:
                leave(NOTHING)
            access.flush()

        access.replace_functions(on_record, on_timer)

    def close(self) -> None:
        """End everything that runs left open. Flink calls this only at the regular end of a job."""
        if self._processor is not None:
            self._metrics.report()
            self._attempt.end_attempt(wait=True)

    def process_element(self, value: Any, ctx: Any) -> Any:
        """Required by PyFlink, and never called: ``_route_calls`` has replaced the call."""
        raise NotImplementedError


def _connect_outlet(access: OperatorAccess, low: LowWatermark | None) -> Outlet:
    """Return the function that emits an emission; in envelopes if ``low``, the low watermark, is not None."""
    if low is None:
        return access.emit
    envelopes = Envelopes(low)
    return lambda emission: access.emit(envelopes.wrap_outputs(emission))


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


def _metrics_of(telemetry: Telemetry, context: RuntimeContext, agent: str) -> FlinkMetrics:
    group = context.get_metrics_group().add_group(METRIC_GROUP).add_group(agent)
    run_group = telemetry.run_metrics.group
    return FlinkMetrics((telemetry.metrics, group), (run_group, group.add_group(run_group.name)))


def _announce_error(error: AgentsError) -> None:
    print(f"\n{bound_text(redaction.hide(error), MAX_TRACEBACK)}\n", file=sys.stderr, flush=True)
