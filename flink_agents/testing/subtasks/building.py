"""Builds the subtasks of an operator like a job does, on a fake of Flink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

import cloudpickle

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.settings.options import AgentOptions
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.plan import AgentPlan, LoadedAgent
from flink_agents.plan.binding.needs import may_make_durable_steps
from flink_agents.runtime.execution.environment import Durable
from flink_agents.runtime.flink.shipping.class_copies import dump_for_this_process
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.operator.assembly import Blueprint, OperatorHost, assemble
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.testing.fakes.checkpoints import FakeFlink
from flink_agents.testing.fakes.outside import OutsideCalls
from flink_agents.testing.fakes.pauses import Pauses
from flink_agents.testing.fakes.state import FakeBackend, OperatorState, Snapshot
from flink_agents.testing.fakes.virtual_loop import VirtualLoop
from flink_agents.testing.subtasks.driver import Driver, HarnessSubtask, output_taker
from flink_agents.testing.subtasks.due_timers import DueTimers
from flink_agents.testing.subtasks.hangs import check_hang

Shipped = TypeVar("Shipped")


class Builder(Driver):
    """Creates the subtasks that :class:`Driver` drives. A base class of ``OperatorHarness``.

    Attributes:
        plan: Plan of the agent.
        current_watermark: Watermark of the input, in milliseconds.
    """

    plan: AgentPlan
    current_watermark: int
    _watermarks: bool
    _lineage: bool
    _job_id: str
    _submission: str
    _observers: Sequence[ObserverSource]
    _make_store: Callable[[], ActionStateStore] | None
    _names_store: bool
    _flink: FakeFlink | None
    _pauses: Pauses

    def _start_operator(self, parallelism: int, snapshot: Snapshot | None = None) -> None:
        """Start an operator with ``parallelism`` subtasks, with the state of a checkpoint if there is one."""
        journals = snapshot.journals if snapshot is not None else ()
        self._subtasks = [
            self._start_subtask(number, parallelism, OperatorState.of_subtask(number, parallelism, journals))
            for number in range(parallelism)
        ]
        for key, state in snapshot.keys.items() if snapshot is not None else ():
            self._subtask_of(key).backend.restore_key(key, state.copy())
        for subtask in self._subtasks:
            subtask.processor.open(subtask.backend)

    def _start_subtask(self, number: int, parallelism: int, journals: OperatorState) -> HarnessSubtask:
        plan = self.plan
        code = self._code
        observers = self._observers
        if self._serialize:
            plan = AgentPlan.from_json(plan.to_json())
            code, observers = self._ship_value((code, observers))
        ttl: timedelta | None = self._config.get(AgentOptions.SHORT_TERM_TTL)
        backend = FakeBackend(self._clock, None if ttl is None else int(ttl.total_seconds() * 1000))
        backend.watermark = self.current_watermark
        backend.journals = journals
        blueprint = Blueprint(
            LoadedAgent(plan, code),
            self._config,
            self._event_time,
            self._watermarks,
            self._make_store,
            observers,
            self._lineage,
        )
        subtask = assemble(blueprint, self._create_host(number, parallelism, backend))
        subtask.shared.reads.strict = True
        if subtask.low is not None:
            backend.report_watermark(subtask.low)
        most_suspended = self._config.get(AgentOptions.MAX_SUSPENDED_PER_KEY)
        heartbeat = subtask.heartbeat
        due = DueTimers(
            backend,
            self._clock,
            most_suspended,
            self._event_time.holds,
            self._keeps_timers,
            lambda: heartbeat.at,
        )
        return HarnessSubtask(subtask.processor, heartbeat, backend, subtask.shared, due)

    def _ship_value(self, value: Shipped) -> Shipped:
        """Return a copy of a value as workers get it: pickled and unpickled.

        Raises:
            UnshippableCodeError: A part of it cannot be pickled.
        """
        try:
            pickled = cloudpickle.dumps(value)
            # A worker has a copy of the main script's globals. A test reads its own.
            return cloudpickle.loads(dump_for_this_process(value) if b"__main__" in pickled else pickled)
        except Exception:
            from flink_agents.runtime.flink.shipping.class_copies import check_shippable

            check_shippable(f"the agent {self.plan.name!r}", value)
            raise

    def _create_host(self, number: int, parallelism: int, backend: FakeBackend) -> OperatorHost:
        """Return the environment of a subtask: fakes of what Flink provides."""
        return OperatorHost(
            job_id=self._job_id,
            subtask=number,
            parallelism=parallelism,
            state=backend.keyed_state(self._names_store),
            clock=self._clock,
            check_cancelled=partial(check_hang, self._clock),
            keys=backend,
            outlet=lambda low: output_taker(self, backend),
            make_pruner=self._pruner,
            around_durable=self._around_durable,
            pause=self._pauses.pause,
            submission=self._submission,
            seconds=self._clock.stamp,
            make_loop=partial(VirtualLoop, self._clock),
        )

    def _pruner(self, metrics: RunMetrics) -> Pruner | None:
        return None if self._flink is None else self._flink.create_pruner(self._config, self._clock, metrics)

    @property
    def _around_durable(self) -> Callable[[Durable], Durable]:
        if self._crashes is None:
            return lambda durable: durable
        return partial(OutsideCalls, outside=self._crashes.outside)

    def _default_store(self) -> Callable[[], ActionStateStore] | None:
        """Return the factory of the store that options name or the agent needs; None if it needs none."""
        name = self._config.get(AgentOptions.STORE)
        options = {} if name is None else self._config.below(f"action-state.{name}")
        # Without a place, a store in memory belongs to its harness: another one must not find its records.
        if name is not None and (name != "memory" or "place" in options):
            return lambda: open_store(name, options)
        if name is None and not may_make_durable_steps(LoadedAgent(self.plan, self._code)):
            return None
        if self._crashes is not None:
            return self._crashes.create_store
        place = MemoryPlace()
        return lambda: MemoryStore(place)
