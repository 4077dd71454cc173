"""``OperatorHarness``: the operator's real core on a fake of Flink's state, timers and clock.

It runs the same code as Flink, except for PyFlink itself: the plan is compiled, written
as JSON and bound again, the agent's code is pickled and unpickled, every record and output is
pickled as between Flink's operators, and state holds nothing but bytes.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, cast

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.observers import ObserverSource, RunObserver, check_observers
from flink_agents.api.common.policies import DEAD_LETTER_TAG, DeadLetter
from flink_agents.api.events.event_time import LATE_TAG, EventTime
from flink_agents.api.events.signals import Signal, TaggedSignal
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan.binding.loaded import LoadedAgent
from flink_agents.plan.binding.needs import ResourceOptions
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.plan.compile.configuration import instance_of
from flink_agents.plan.compile.literal_secrets import check_options
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import KeyEncoder, encode_key
from flink_agents.runtime.state.keyed_state import OBJECT, Head
from flink_agents.testing.fakes.checkpoints import FakeFlink
from flink_agents.testing.fakes.clock import Clock
from flink_agents.testing.fakes.pauses import Pauses
from flink_agents.testing.fakes.state import KeyState, Snapshot as Snapshot
from flink_agents.testing.fakes.waits import KeyedSignal, split_input
from flink_agents.testing.models.blocking import use_test_kit
from flink_agents.testing.recovery.everywhere import Crashes
from flink_agents.testing.recovery.forced import CRASH, REPLAY, RESTART, forced_conditions
from flink_agents.testing.recovery.restarts import Reorder, Restarts, reorder_inputs
from flink_agents.testing.subtasks.crash_points import crash_points
from flink_agents.testing.subtasks.driver import START as START, HarnessSubtask
from flink_agents.testing.subtasks.given import check_open, check_selector, to_milliseconds
from flink_agents.testing.subtasks.meters import MetricSums

LAST_WATERMARK = 2**63 - 1


class OperatorHarness(Restarts):
    """Drives an agent's operator; also a context manager that closes it.

    Args:
        agent: An instance, or a class without required arguments.
        key_selector: Returns the key of a record. Default: all records have the key 0.
        config: Options by key. Variables of the environment do not apply, so that a test does the same
            everywhere; ``Configuration.load()`` reads them.
        name: Name of the agent. Default: its own.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        forced_serialization: Serialize all that Flink would, so that sharing an object by
            accident fails here already.
        forced_replay: Handle each input and each timer twice: the first time, the operator is
            discarded just after its commit, and restored from before it. Without ``auto_run``,
            each :meth:`push`, :meth:`run_until_idle`, :meth:`advance_time` and :meth:`watermark` as a whole.
            Default: True if ``FLINK_AGENTS_TEST_MODE`` has the word ``replay``.
        forced_restart: Before each of them, pickle the state and start a new operator from it,
            so that everything outside of state is lost. Default: True if it has the word ``restart``.
        event_time: As in ``apply``.
        watermarks: True if the input has watermarks at all.
        auto_run: Run everything that an input starts to its end before the harness continues. False leaves
            that to :meth:`run_until_idle` and to time, as Flink does.
        store: Makes the store of each subtask and attempt; all of them have to share their records.
            Default: the store that the options name, or, for an agent with durable steps, a store in
            memory that lives as long as the harness.
        crash: ``"everywhere"``: repeat each input and each timer with a crash before and after
            each append to the store and each commit, one at a time, and compare the results with those
            without a crash. Functions of durable steps are called once. Needs the store in memory. None: no
            crash. Default: True if ``FLINK_AGENTS_TEST_MODE`` has the word ``crash``, no store is named
            and ``auto_run`` is on.
        reorder: The order in which inputs return after a restore, even those of one key: a seed, or a
            function that returns the given inputs in another order. For :meth:`recover` and for
            ``crash``, where the inputs of a :meth:`push_all` are then taken together.
        job_id: Flink's id of the job, a new one for each submission. Flink's ids have 32 hexadecimal digits.
        observers: As in ``apply``.
        lineage: Outputs are ``TracedOutput``, as of an agent that is applied with ``lineage=True``.
        hang_after: If a run has not ended after that many seconds, the harness raises a ``TimeoutError`` that
            describes each run: key, action, and the stack of its wait.
        checkpoints: Prune records as a job does, when :meth:`complete` says that a snapshot has completed.

    Attributes:
        outputs: All values of the main output, in order.
        timestamps: The timestamp of each of them, or None; only if event time is held.
        lows: The output watermark of the subtask before each of them; only if event time is
            held. An output is late if its timestamp is not above it.
        current_watermark: The watermark of the input in milliseconds.
        reorder: See above; may be changed at any time.
        codec: Encodes the values in state.
    """

    def __init__(
        self,
        agent: Agent | type[Agent],
        key_selector: Callable[[Any], Any] = lambda record: 0,
        *,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        parallelism: int = 1,
        max_parallelism: int = 128,
        forced_serialization: bool = True,
        forced_replay: bool | None = None,
        forced_restart: bool | None = None,
        event_time: EventTime | None = None,
        watermarks: bool = True,
        auto_run: bool = True,
        store: Callable[[], ActionStateStore] | None = None,
        crash: str | None = "",
        reorder: Reorder | None = None,
        job_id: str = "harness",
        observers: Sequence[ObserverSource] = (),
        lineage: bool = False,
        hang_after: float = 60.0,
        checkpoints: bool = False,
    ) -> None:
        self._subtasks: list[HarnessSubtask] = []
        use_test_kit()
        instance = instance_of(agent)
        self.plan, self._code = compile_with_code(instance, name)
        self._config = Configuration(cast("Mapping[Any, Any]", config or {}))
        check_options(self._config)
        options = ResourceOptions(self._config)
        options.add(LoadedAgent(self.plan, self._code))
        options.check(all_agents=False)
        self._key = KeyEncoder(check_selector(key_selector))
        self._max_parallelism = max_parallelism
        conditions = forced_conditions()
        self._replay = REPLAY in conditions if forced_replay is None else forced_replay
        self._restart = RESTART in conditions if forced_restart is None else forced_restart
        self._serialize = forced_serialization
        self._runs_at_once = auto_run
        self._event_time = event_time or EventTime.ignore()
        self._watermarks = watermarks
        self._lineage = lineage
        self._hang_after = hang_after
        self._flink = FakeFlink() if checkpoints else None
        self.codec = ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE))
        has_own_store = store is not None or self._config.get(AgentOptions.STORE) is not None
        # The default store lives with its harness, and another harness may continue a state without records.
        self._names_store = has_own_store
        self._crashes = crash_points(self.codec, crash, has_own_store, CRASH in conditions and auto_run)
        if self._crashes is not None:
            # Each crash is a replay and a restart; discarded executions in between are not crashes.
            self._replay = self._restart = False
        self._make_store = store or self._default_store()
        self.reorder = reorder
        self._job_id = job_id
        # Another harness may continue with other code.
        self._submission = uuid.uuid4().hex
        self._observers = check_observers(observers)
        self._inputs: list[tuple[Any, int | None]] | None = None
        self._clock = Clock()
        self._pauses = Pauses()
        self.current_watermark = -(2**63)
        self.outputs: list[Any] = []
        self.timestamps: list[int | None] = []
        self.lows: list[int] = []
        self._side: dict[str, list[Any]] = {}
        self._side_times: dict[str, list[tuple[int | None, int]]] = {}
        self._meters = MetricSums()
        self._start_operator(parallelism)

    # -- driving ----------------------------------------------------------------------

    def push(self, record: Any, timestamp: int | None = None) -> list[Any]:
        """Push a record to the operator, and return the outputs that follow.

        Args:
            record: The record.
            timestamp: Its event time in milliseconds; None for none.

        Raises:
            ActionFailedError: An action raised, and its policy is to fail.
            KeyEncodingError: The key of the record is of a type that no run can have.
        """
        start = len(self.outputs)
        deliver = self._deliver_record(record, timestamp)
        self._execute(deliver, lambda input_count: None)
        return self.outputs[start:]

    def signal(
        self, key: Any, name: str, value: Any = None, *, id: str | None = None, wait: str | None = None
    ) -> list[Any]:
        """Send a signal to a key, and return the outputs that it caused.

        Args:
            key: The key, as the key selector returns it.
            name: Name of the signal.
            value: Its value.
            id: Its id: signals of a key with the same id count once.
            wait: The id of the wait that it is for, from :meth:`waits`; None for any wait of that name.
        """
        start = len(self.outputs)
        signal = TaggedSignal(Signal(name, value, key, id, wait))
        self._execute(self._deliver_record(signal, None, encode_key(key)), lambda input_count: None)
        return self.outputs[start:]

    def run_until_idle(self, seconds: float | None = None) -> list[Any]:
        """Run all pending work to its end, commit it, and return the outputs.

        If nothing else is left to do, the clock of the harness moves to the next timer of a run.

        Args:
            seconds: Real seconds to wait for a run to end; then timers take real time as well. Default:
                ``hang_after``.

        Raises:
            TimeoutError: No run ended. The message describes each run with its stack, and the inputs that
                wait for recorded runs.
        """
        start = len(self.outputs)
        self._execute(lambda: self._run_to_the_end(seconds))
        return self.outputs[start:]

    def push_all(self, records: Iterable[Any]) -> list[Any]:
        """Push several records to the operator, and return their outputs."""
        if self._crashes is None or self.reorder is None:
            return [output for record in records for output in self.push(record)]
        return self._push_together([(record, None) for record in records])

    def advance_time(self, time: int | timedelta) -> list[Any]:
        """Let wall-clock time pass, in milliseconds or as a duration; return the outputs that follow."""
        check_open(bool(self._subtasks))
        start = len(self.outputs)
        until = self.current_time + to_milliseconds(time, "advance_time")
        self._fire_all("processing_timers", until)
        self._pass_to(until)
        return self.outputs[start:]

    def watermark(self, timestamp: int) -> list[Any]:
        """Advance the watermark of the input, in milliseconds; return the outputs that follow."""
        check_open(bool(self._subtasks))
        start = len(self.outputs)
        self.current_watermark = max(self.current_watermark, to_milliseconds(timestamp, "watermark"))
        for subtask in self._subtasks:
            subtask.backend.watermark = self.current_watermark
        self._fire_all("event_timers", self.current_watermark)
        return self.outputs[start:]

    def end_input(self) -> list[Any]:
        """End a bounded input, with the last watermark; return the outputs.

        Processing-time timers do not fire.
        """
        # Running until idle fires timers, and the timers of the end wait for runs in flight.
        runs_at_once = self._runs_at_once
        self._runs_at_once = False
        try:
            with self._clock.fly_to_delayed(self._next_due):
                return self.watermark(LAST_WATERMARK)
        finally:
            self._runs_at_once = runs_at_once

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A test may leave this to the garbage collector: an unclosed loop warns. The collector may run in a
        # thread of any operator, even of this one, which cannot wait for its own end.
        if hasattr(self, "_subtasks"):
            self._end_subtasks(wait=threading.current_thread() is threading.main_thread())

    # -- checkpoints ------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Take a checkpoint. After the first one, inputs are kept for :meth:`recover`."""
        if self._inputs is None:
            self._inputs = []
        return replace(
            self.checkpoint(), number=self._flink.trigger_checkpoint() if self._flink is not None else 0
        )

    def restore(self, snapshot: Snapshot, parallelism: int | None = None) -> None:
        """Discard the operator and start a new one from ``snapshot``.

        Outputs from after the snapshot are removed, as an exactly-once sink does. Time does not go back, as
        in a job: what was due meanwhile is due at once.

        Args:
            snapshot: The checkpoint.
            parallelism: Number of subtasks. Default: as before.
        """
        if self._flink is not None:
            self._flink.check_checkpoint(snapshot.number)
        check_open(bool(parallelism or self._subtasks))
        count = parallelism or len(self._subtasks)
        self.close()
        self._meters = MetricSums()
        del self.outputs[snapshot.outputs :]
        del self.timestamps[snapshot.outputs :], self.lows[snapshot.outputs :]
        for tag, values in self._side.items():
            del values[snapshot.side_outputs.get(tag, 0) :]
            del self.side_times(tag)[snapshot.side_outputs.get(tag, 0) :]
        if self._inputs is not None:
            del self._inputs[snapshot.inputs :]
        self._start_operator(count, snapshot)

    def recover(self, snapshot: Snapshot, parallelism: int | None = None) -> list[Any]:
        """Restore ``snapshot``, push the inputs after it again, as sources do, and return the new outputs.

        ``reorder`` decides the order of the inputs. The arguments are those of :meth:`restore`.
        """
        later = list((self._inputs or ())[snapshot.inputs :])
        self.restore(snapshot, parallelism)
        # Together: if they are reordered, the first one may wait for one that follows.
        return self._push_together(reorder_inputs(later, self.reorder, itemgetter(0)))

    # -- inspecting -------------------------------------------------------------------

    @property
    def noted(self) -> Sequence[tuple[Any, int | None]]:
        """The inputs since the first snapshot, with timestamps; those that a restore removed are missing."""
        return self._inputs or ()

    @property
    def current_time(self) -> int:
        """The wall-clock time of the harness, in milliseconds since the epoch."""
        return self._clock.time

    @property
    def retries_waiting(self) -> int:
        """Number of calls and actions that pause before their next attempt."""
        return self._pauses.waiting

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters so far, in order."""
        return self.side_output(DEAD_LETTER_TAG)

    @property
    def late_outputs(self) -> list[Any]:
        """All late outputs of runs that held no watermark, with ``late="side"``, in order."""
        return self.side_output(LATE_TAG)

    @property
    def observers(self) -> list[RunObserver]:
        """The observers of the present operator, by subtask."""
        return [
            observer for subtask in self._subtasks for observer in subtask.shared.telemetry.observers.others
        ]

    @property
    def metrics(self) -> dict[str, int | float]:
        """The agent's metrics since the last restore, summed over subtasks; repeated work counts once."""
        return self._meters.sum_metrics(self._subtasks).agent

    @property
    def run_metrics(self) -> dict[str, int | float]:
        """The runtime's metrics since the last restore, summed over subtasks; repeated work counts once."""
        return self._meters.sum_metrics(self._subtasks).runtime

    def memory(self, key: Any = 0) -> dict[str, Any]:
        """Return the short-term memory of ``key``: values by dotted path."""
        subtask = self._subtask_of(encode_key(key))
        subtask.backend.key = encode_key(key)
        codec = ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE))
        state = subtask.backend.keyed_state()
        head = state.read()
        nodes = {} if head is None else state.read_memory(head)
        return {path: codec.decode(data) for path, data in sorted(nodes.items()) if data != OBJECT}

    def sequence_number(self, key: Any = 0) -> int:
        """Return the number of committed runs of ``key``."""
        head = self._read_head(key)
        return head.next_seq if head is not None else 0

    def pending(self, key: Any = 0) -> int:
        """Return the number of inputs of ``key`` that wait in state."""
        head = self._read_head(key)
        return head.waiting if head is not None else 0

    def state(self, key: Any = 0) -> KeyState:
        """Return the whole state of ``key``; its values are bytes."""
        return self._subtask_of(encode_key(key)).backend.keys.get(encode_key(key), KeyState()).copy()

    # -- inside -----------------------------------------------------------------------

    def _read_head(self, key: Any) -> Head | None:
        packed = self.state(key).head
        return None if packed is None else Head.unpack(packed)

    def _execute(
        self,
        act: Callable[[], None],
        resume: Callable[[int], None] | None = None,
        again: Callable[[], None] | None = None,
    ) -> None:
        """Execute a step to its end, under the forced conditions: crashes, a restart before, or a replay.

        Args:
            act: Executes the step.
            resume: Executes the part of it after a number of inputs. None: all of it.
            again: Executes the step after a crash. None: as ``act`` does.
        """
        check_open(bool(self._subtasks))
        if self._crashes is not None and (self._runs_at_once or resume is None):
            run_step = partial(self._to_the_end, act)
            Crashes(self, self._crashes).explore_crashes(
                run_step,
                (lambda input_count: self._to_the_end(partial(resume, input_count)))
                if resume
                else lambda input_count: run_step(),
                partial(self._to_the_end, again) if again else run_step,
                ordered=again is None,
            )
            return
        if self._restart:
            previous_metrics = self._meters.sum_metrics(self._subtasks)
            self.restore(pickle.loads(pickle.dumps(self.checkpoint())))
            self._meters = MetricSums(previous_metrics)
        if self._replay:
            self._do_twice(act)
        else:
            self._to_the_end(act)

    def _do_twice(self, act: Callable[[], None]) -> None:
        """Execute a step, discard the operator, and execute the step again; metrics count once."""
        checkpoint = self.checkpoint()
        time = self.current_time
        metrics = self._meters.sum_metrics(self._subtasks)
        self._to_the_end(act)
        if self._runs_at_once:
            # The first execution's metrics: the second one reads records and would measure less.
            metrics = self._meters.sum_metrics(self._subtasks)
        self.restore(checkpoint)
        self._clock.set_wall_clock(time)
        self._meters = MetricSums(metrics)
        self._to_the_end(act)
        if self._runs_at_once:
            self._meters = MetricSums(metrics, MetricSums().sum_metrics(self._subtasks))

    def _deliver_record(
        self, record: Any, timestamp: int | None, key: str | None = None
    ) -> Callable[[], None]:
        """Return a function that delivers a record each time it is called."""
        record = self._through_flink(record, "a record")
        key = key if key is not None else self._key(record)
        if self._inputs is not None:
            self._inputs.append(
                (KeyedSignal(record, key) if type(record) is TaggedSignal else record, timestamp)
            )
        return lambda: self._deliver_to_subtask(key, self._copy_record(record), timestamp)

    def _copy_record(self, record: Any) -> Any:
        """Return a copy of ``record`` for one of several deliveries: an action may change it."""
        several = self._replay or self._crashes is not None or self._inputs is not None
        return self._through_flink(record, "a record") if several else record

    def _push_together(self, inputs: Sequence[tuple[Any, int | None]]) -> list[Any]:
        """Push records with their timestamps, and only then wait for their runs; return the outputs."""
        start = len(self.outputs)
        deliveries = [
            (record, self._deliver_record(*split_input(record, timestamp))) for record, timestamp in inputs
        ]
        in_order = partial(self._deliver_all, deliveries)
        self._execute(
            partial(in_order, 0, False),
            lambda input_count: in_order(input_count, True),
            partial(in_order, 0, True),
        )
        return self.outputs[start:]

    def _deliver_all(
        self, deliveries: Sequence[tuple[Any, Callable[[], None]]], delivered_count: int, again: bool
    ) -> None:
        """Push the inputs after the first ``delivered_count``; with ``again``, in the order of a restore."""
        for _, deliver in reorder_inputs(
            deliveries[delivered_count:], self.reorder if again else None, itemgetter(0)
        ):
            deliver()

    def _fire_forced(self, fired: set[tuple[str, str, int]], *timer: *tuple[str, str, int]) -> None:
        """Fire a timer under the forced conditions, once: a restart may register it again, for ever."""
        act = partial(self._fire_timer, *timer)
        if timer in fired:
            self._to_the_end(act)
        else:
            fired.add(timer)
            self._execute(act)

    def _fire_all(self, kind: str, until: int) -> None:
        """Fire all timers of a kind up to time ``until``, also those that they register."""
        if self._runs_at_once:
            self._fire_each(kind, until, partial(self._fire_forced, set()))
        else:
            # Runs in flight would never end if each of their timers discarded them.
            self._execute(lambda: self._fire_each(kind, until, self._fire_timer))
