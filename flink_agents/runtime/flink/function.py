"""``ActionExecutionOperator``: the agent as a PyFlink ``KeyedProcessFunction``.

A thin adapter: it hands Flink's keyed state, timers and clock to the engine-free
``AgentProcessor`` and yields what that returns. A failure is printed at once, with the
author's own line first, and then raised to Flink.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from pyflink.common import TypeInformation
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, TimeDomain

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import AgentsError
from flink_agents.api.event_time import EventTime
from flink_agents.api.logs import MAX_TRACEBACK, bounded
from flink_agents.api.options import AgentOptions, Configuration
from flink_agents.plan import AgentCode, AgentPlan, bind
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.attempts import Attempt
from flink_agents.runtime.flink.fast.ways import Ways
from flink_agents.runtime.flink.metrics import FlinkMetrics
from flink_agents.runtime.flink.restamp import Envelopes
from flink_agents.runtime.flink.shipping import module_renewal
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_module import MainModule
from flink_agents.runtime.flink.stores import StoreChoice
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.runtime.operator.event_time import NO_TIMESTAMP, Emission, Hold
from flink_agents.runtime.operator.heartbeat import HeartbeatProcessor
from flink_agents.runtime.operator.processor import START, AgentProcessor
from flink_agents.runtime.retention.pruning import pruner_of
from flink_agents.runtime.serde import type_modules
from flink_agents.runtime.serde.codec import ValueCodec

METRIC_GROUP = "flink_agents"


class ActionExecutionOperator(KeyedProcessFunction):
    """Routes each input of a key to the actions of an agent.

    The key of the stream is the canonical text that ``runtime.serde.keys`` gives.

    Args:
        plan: The agent's plan.
        code: What the plan's functions are, where they cannot be imported.
        config: Options of the job.
        side_types: Flink types of the side outputs, by tag.
        event_time: What happens to timestamps and watermarks.
        watermarks: Whether the input can have watermarks.
        store: Where durable calls are recorded; None where there are none.
        key_selector: What gives the keys; its module may hold their classes.
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
    ) -> None:
        # The first attribute is unpickled first: before anything that a stale module may lack.
        self._code_check = CodeCheck.of(code if config.get(AgentOptions.CHECK_CODE) else None)
        self._main = MainModule()
        self._plan = plan.to_json()
        self._code = code
        self._config = config
        self._tags = {tag: OutputTag(tag, kind) for tag, kind in side_types.items()}
        self._event_time = event_time
        self._envelopes = Envelopes(list(side_types)) if event_time.holds else None
        self._watermarks = watermarks
        self._store = store
        self._key_module: str | None = getattr(key_selector, "__module__", None)
        self._processor: AgentProcessor | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Bind the plan to its code and to Flink's state."""
        self._code_check.check()
        if self._key_module is not None:
            type_modules.know([self._key_module])
        task = flink_compat.task_info(runtime_context)
        module_renewal.operator_opens(task.job_id, task.job_name)
        plan = AgentPlan.from_json(self._plan)
        metrics = LocalMetricGroup()
        codec = ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE))
        job_id = self._config.get(AgentOptions.JOB_IDENTIFIER) or task.job_id
        journals = None
        if self._store is not None:
            owner = Owner.create(task.job_id, journal_name(job_id, plan.name), task.subtask, task.parallelism)
            journals = self._store.journals(plan, codec, self._config, owner)
        shared = RunEnvironment(bind(plan, self._code), plan.name, self._config, metrics, codec, journals)
        if journals is not None:
            flink = flink_compat.task_configuration(runtime_context)
            journals.pruner = pruner_of(self._config, flink, task.job_id, shared.run_metrics)
        group = runtime_context.get_metrics_group().add_group(METRIC_GROUP).add_group(plan.name)
        own = shared.run_metrics.group
        self._metrics = FlinkMetrics((metrics, group), (own, group.add_group(own.name)))
        ttl: timedelta | None = self._config.get(AgentOptions.SHORT_TERM_TTL)
        state = flink_compat.keyed_state(runtime_context, None if ttl is None else _milliseconds(ttl))
        hold = Hold(self._event_time, own, self._watermarks) if self._event_time.holds else None
        fast = hold is None and self._config.get(AgentOptions.FAST_PATH)
        ways = self._ways = Ways(self, runtime_context, self._tags, fast, plan.name)
        check = flink_compat.cancellation_check()
        if ways.fast_path is not None and ways.keys is not None:
            leave = ways.fast_path.leave
            processor = HeartbeatProcessor(shared, state, job_id, _now, check, keys=ways.keys, leave=leave)
        else:
            processor = AgentProcessor(shared, state, job_id, _now, check, hold, ways.keys)
        self._attempt = Attempt((task.job_id, plan.name, task.subtask), processor.close)
        self._attempt.begin()
        try:
            processor.open(ways.timers)
        except AgentsError as error:
            _announce(error)
            raise
        self._processor = processor
        if isinstance(processor, HeartbeatProcessor):
            self._go_fast(processor)

    def _go_fast(self, processor: HeartbeatProcessor) -> None:
        """Let Flink's calls take the short way to ``processor``."""
        fast_path, collector, timers = self._ways.fast_path, self._ways.collector, self._ways.timers
        assert fast_path is not None and collector is not None and timers is not None
        get_timestamp, process, leave = collector.timestamp, processor.process, fast_path.leave
        beat, report = processor.beat, self._metrics.report_if_due

        def on_record(key: str, record: Any) -> None:
            timestamp: int | None = get_timestamp()
            if timestamp == NO_TIMESTAMP:
                timestamp = None
            try:
                emission = process(key, record, timestamp, timers)
            except AgentsError as error:
                _announce(error)
                raise
            report()
            leave(emission)

        def on_timer(timestamp: int) -> None:
            if timestamp >= START:
                collector.erase_timestamp()
            try:
                beat(timestamp, timers)
            except AgentsError as error:
                _announce(error)
                raise
            report()

        fast_path.install(on_record, on_timer)

    def close(self) -> None:
        """End what runs left open. Flink calls this at the regular end of a job only."""
        if self._processor is not None:
            self._metrics.report()
            self._attempt.end(wait=True)

    # PyFlink's own annotations are missing or wrong from here on.
    def process_element(self, value: Any, ctx: Any) -> Any:
        """Handle a record."""
        assert self._processor is not None
        timestamp = ctx.timestamp()
        if timestamp == NO_TIMESTAMP:
            timestamp = None
        try:
            emission = self._processor.process(ctx.get_current_key(), value, timestamp, ctx.timer_service())
        except AgentsError as error:
            _announce(error)
            raise
        self._metrics.report_if_due()
        return self._leaving(emission)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        """Run what waits for the key of the timer."""
        assert self._processor is not None
        held = self._envelopes is not None and ctx.time_domain() is TimeDomain.EVENT_TIME
        if timestamp >= START and self._ways.collector is not None:
            # Flink gives outputs the time of the event-time timer, which stands for the end of the input.
            self._ways.collector.erase_timestamp()
        on_timer = self._processor.on_event_time if held else self._processor.on_timer
        try:
            emission = on_timer(ctx.get_current_key(), timestamp, ctx.timer_service())
        except AgentsError as error:
            _announce(error)
            raise
        self._metrics.report_if_due()
        return self._leaving(emission)

    def _leaving(self, emission: Emission | Run) -> list[Any]:
        if self._envelopes is not None:
            return self._envelopes.of(emission)
        outputs = [
            _EMPTY_TUPLE if isinstance(value, tuple) and not value else value for value in emission.outputs
        ]
        if emission.side_outputs:
            return [*((self._tags[tag], value) for tag, value in emission.side_outputs), *outputs]
        return outputs


class _EmptyTuple:
    """Becomes ``()`` when it is pickled, as all that leaves the operator is.

    PyFlink looks at the first item of each tuple to tell side outputs from main ones.
    """

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[()]]:
        return tuple, ()


_EMPTY_TUPLE = _EmptyTuple()


def _now() -> int:
    return int(time.time() * 1000)


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


def _announce(error: AgentsError) -> None:
    print(f"\n{bounded(str(error), MAX_TRACEBACK)}\n", file=sys.stderr, flush=True)
