"""``OperatorHarness``: the operator's real core on a fake of Flink's state, timers and clock.

What runs here is what runs in Flink, except for PyFlink itself: the plan is compiled, written
as JSON and bound again, the agent's code is pickled and unpickled, every record and output is
pickled as between Flink's operators, and state holds nothing but bytes.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import cloudpickle

from flink_agents.api.action_state import ActionStateStore, Owner
from flink_agents.api.agent import Agent
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.event_time import LATE_TAG, EventTime
from flink_agents.api.metrics import Gauge
from flink_agents.api.options import AgentOptions, Configuration
from flink_agents.api.policies import DEAD_LETTER_TAG, DeadLetter
from flink_agents.connectors.action_state import open_store
from flink_agents.connectors.action_state.memory import MemoryPlace, MemoryStore
from flink_agents.plan import AgentCode, AgentPlan, bind, compile_agent
from flink_agents.plan.configuration import instance_of
from flink_agents.plan.uses import makes_durable_calls
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.event_time import Hold
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.keys import KeyEncoder, encode_key, unescape
from flink_agents.runtime.metrics import LocalMetricGroup
from flink_agents.runtime.processor import AgentProcessor
from flink_agents.runtime.run import Run
from flink_agents.runtime.shared import RunEnvironment
from flink_agents.runtime.state import OBJECT, Head
from flink_agents.testing.fake_state import FakeBackend, KeyState
from flink_agents.testing.forced import REPLAY, RESTART, forced_conditions

START = 1_700_000_000_000
"""Wall-clock time at which a harness starts, in milliseconds."""

LAST_WATERMARK = 2**63 - 1


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: state and timers of all keys, and how much had left the operator.

    Attributes:
        keys: State by canonical key text.
        outputs: How many outputs there were.
        side_outputs: How many values each side output had.
        max_parallelism: Number of key groups.
    """

    keys: Mapping[str, KeyState]
    outputs: int
    side_outputs: Mapping[str, int]
    max_parallelism: int


class _Clock:
    """The wall clock. Apart from the harness, so that its parts do not refer back to it."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> int:
        return self.time


@dataclass
class _Subtask:
    processor: AgentProcessor
    backend: FakeBackend
    shared: RunEnvironment


class OperatorHarness:
    """Drives an agent's operator; also a context manager that closes it.

    Args:
        agent: An instance, or a class without required arguments.
        key_selector: Gives the key of a record. Default: all records have the key 0.
        config: Options by key.
        name: Name of the agent. Default: its own.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        forced_serialization: Serialise all that Flink would, so that sharing an object by
            accident fails here already.
        forced_replay: Handle each input and each timer twice: the first time the operator is
            thrown away just after its commit, and restored from before it. Without ``settle``,
            each :meth:`push`, :meth:`settle`, :meth:`advance` and :meth:`watermark` as a whole.
            Default: whether ``AGENT_HARNESS`` has the word ``replay``.
        forced_restart: Before each of them, pickle the state and start a new operator from it,
            so that what lives on outside of state is lost. Default: the word ``restart``.
        event_time: As in ``apply``. The watermark that the test gives is the one that has lagged.
        watermarks: Whether the input has watermarks at all.
        settle: Let what an input starts run to its end before the harness goes on. False leaves
            that to :meth:`settle` and to time, as Flink does.
        store: Makes the store of each subtask and attempt; all that it makes share their records.
            Default: what the options name, or, for an agent that makes durable calls, a store in
            memory that lives as long as the harness.
        job_id: Flink's id of the job, another one for each submission. Flink's have 32 hexadecimal digits.

    Attributes:
        outputs: All values that left the main output, in order.
        timestamps: The timestamp of each of them, or None; only where event time is held.
        current_watermark: The watermark in milliseconds.
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
        settle: bool = True,
        store: Callable[[], ActionStateStore] | None = None,
        job_id: str = "harness",
    ) -> None:
        self._subtasks: list[_Subtask] = []
        instance = instance_of(agent)
        self.plan = compile_agent(instance, name)
        self._code = AgentCode.of(instance)
        self._config = Configuration.load(config)
        self._key = KeyEncoder(key_selector)
        self._max_parallelism = max_parallelism
        conditions = forced_conditions()
        self._replay = REPLAY in conditions if forced_replay is None else forced_replay
        self._restart = RESTART in conditions if forced_restart is None else forced_restart
        self._serialize = forced_serialization
        self._settles = settle
        self._event_time = event_time or EventTime.none()
        self._watermarks = watermarks
        self._make_store = store or self._default_store()
        self._job_id = job_id
        self._clock = _Clock()
        self.current_watermark = -(2**63)
        self.outputs: list[Any] = []
        self.timestamps: list[int | None] = []
        self._side: dict[str, list[Any]] = {}
        self._measured: dict[str, int | float] = {}
        self._start({}, parallelism)

    # -- driving ----------------------------------------------------------------------

    def push(self, record: Any, timestamp: int | None = None) -> list[Any]:
        """Hand a record to the operator; returns the outputs that it gave.

        Args:
            record: The record.
            timestamp: Its event time in milliseconds.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            KeyEncodingError: The record has no usable key.
        """
        record = self._through_flink(record, "record")
        key, start = self._key(record), len(self.outputs)
        self._do(lambda: self._deliver(key, self._again(record), timestamp))
        return self.outputs[start:]

    def settle(self, seconds: float = 60.0) -> list[Any]:
        """Let everything that waits run to its end and be committed; returns the outputs.

        Real time passes as the actions need it; the harness's own clock stands still.

        Args:
            seconds: How long to wait for a run to end.

        Raises:
            TimeoutError: None did. Where inputs wait for those of recorded runs, the text says which.
        """
        start = len(self.outputs)
        self._do(lambda: self._run_to_the_end(seconds))
        return self.outputs[start:]

    def push_all(self, records: Iterable[Any]) -> list[Any]:
        """Hand several records to the operator; returns the outputs that they gave."""
        return [output for record in records for output in self.push(record)]

    def advance(self, time: int | timedelta) -> list[Any]:
        """Let wall-clock time pass (milliseconds); due timers fire, each at its time."""
        milliseconds = int(time.total_seconds() * 1000) if isinstance(time, timedelta) else time
        start, until = len(self.outputs), self.current_time + milliseconds
        self._fire_all("processing_timers", until)
        self._clock.time = until
        return self.outputs[start:]

    def watermark(self, timestamp: int) -> list[Any]:
        """Advance event time to ``timestamp`` (milliseconds); due timers fire."""
        start = len(self.outputs)
        self.current_watermark = max(self.current_watermark, timestamp)
        for subtask in self._subtasks:
            subtask.backend.watermark = self.current_watermark
        self._fire_all("event_timers", self.current_watermark)
        return self.outputs[start:]

    def end_input(self) -> list[Any]:
        """End a bounded input: the last watermark comes, and no processing-time timer fires."""
        return self.watermark(LAST_WATERMARK)

    def close(self) -> None:
        """End the operator."""
        for subtask in self._subtasks:
            subtask.processor.close()
        self._subtasks = []

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A test may leave it to this: a loop that nobody closes warns.
        if hasattr(self, "_subtasks"):
            self.close()

    # -- checkpoints ------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Take a checkpoint."""
        keys = {key: state.copy() for task in self._subtasks for key, state in task.backend.keys.items()}
        side = {tag: len(values) for tag, values in self._side.items()}
        return Snapshot(keys, len(self.outputs), side, self._max_parallelism)

    def restore(self, snapshot: Snapshot, parallelism: int | None = None) -> None:
        """Throw the operator away and start a new one from ``snapshot``.

        Outputs that came after the snapshot are taken back, as an exactly-once sink does.

        Args:
            snapshot: The checkpoint.
            parallelism: Number of subtasks. Default: as before.
        """
        count = parallelism or len(self._subtasks)
        self.close()
        self._measured = {}
        del self.outputs[snapshot.outputs :]
        del self.timestamps[snapshot.outputs :]
        for tag, values in self._side.items():
            del values[snapshot.side_outputs.get(tag, 0) :]
        self._start(snapshot.keys, count)

    # -- looking ----------------------------------------------------------------------

    @property
    def current_time(self) -> int:
        """The wall-clock time in milliseconds."""
        return self._clock.time

    def side_output(self, tag: str) -> list[Any]:
        """All values that left the side output ``tag``, in order."""
        return self._side.setdefault(tag, [])

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, in order."""
        return self.side_output(DEAD_LETTER_TAG)

    @property
    def late_outputs(self) -> list[Any]:
        """All outputs of runs that were not held for, with ``late="side"``, in order."""
        return self.side_output(LATE_TAG)

    @property
    def metrics(self) -> dict[str, int | float]:
        """What the agent measured in the present operator, summed over its subtasks."""
        present = _sum(subtask.shared.metrics for subtask in self._subtasks)
        gauges = {name for subtask in self._subtasks for name in _gauges(subtask.shared.metrics)}
        before = self._measured
        sums = {name: before.get(name, 0) + value for name, value in present.items() if name not in gauges}
        return {**before, **present, **sums}

    @property
    def run_metrics(self) -> dict[str, int | float]:
        """What the runtime measured in the present operator, summed over its subtasks."""
        return _sum(subtask.shared.run_metrics.group for subtask in self._subtasks)

    def memory(self, key: Any = 0) -> dict[str, Any]:
        """Short-term memory of ``key``: plain values by dotted path."""
        subtask = self._subtask_of(encode_key(key))
        subtask.backend.key = encode_key(key)
        codec = ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE))
        entries = subtask.backend.keyed_state().memory.items()
        return {unescape(path): codec.decode(data) for path, data in sorted(entries) if data != OBJECT}

    def sequence_number(self, key: Any = 0) -> int:
        """How many runs of ``key`` were committed."""
        head = self._head(key)
        return head.next_seq if head is not None else 0

    def pending(self, key: Any = 0) -> int:
        """How many inputs of ``key`` wait in state."""
        head = self._head(key)
        return head.next_pending - head.first_pending if head is not None else 0

    def state(self, key: Any = 0) -> KeyState:
        """All that state holds for ``key``, as bytes."""
        return self._subtask_of(encode_key(key)).backend.keys.get(encode_key(key), KeyState()).copy()

    # -- inside -----------------------------------------------------------------------

    def _start(self, keys: Mapping[str, KeyState], parallelism: int) -> None:
        self._subtasks = [self._subtask(number, parallelism) for number in range(parallelism)]
        for key, state in keys.items():
            self._subtask_of(key).backend.keys[key] = state.copy()

    def _default_store(self) -> Callable[[], ActionStateStore] | None:
        name = self._config.get(AgentOptions.STORE)
        if name is not None:
            return lambda: open_store(name, self._config.below(f"action-state.{name}"))
        if not makes_durable_calls(bind(self.plan, self._code)):
            return None
        place = MemoryPlace()
        return lambda: MemoryStore(place)

    def _subtask(self, number: int, parallelism: int) -> _Subtask:
        plan, code = self.plan, self._code
        if self._serialize:
            plan = AgentPlan.from_json(plan.to_json())
            code = cloudpickle.loads(cloudpickle.dumps(code))
        ttl: timedelta | None = self._config.get(AgentOptions.SHORT_TERM_TTL)
        backend = FakeBackend(self._clock, None if ttl is None else int(ttl.total_seconds() * 1000))
        backend.watermark = self.current_watermark
        metrics = LocalMetricGroup()
        codec = ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE))
        job_id = self._config.get(AgentOptions.JOB_IDENTIFIER) or self._job_id
        owner = Owner.create(self._job_id, journal_name(job_id, plan.name), number, parallelism)
        journals = self._journals(plan, codec, owner)
        shared = RunEnvironment(bind(plan, code), plan.name, self._config, metrics, codec, journals)
        own = shared.run_metrics.group
        hold = Hold(self._event_time, own, self._watermarks) if self._event_time.holds else None
        processor = AgentProcessor(shared, backend.keyed_state(), job_id, self._clock, hold=hold)
        processor.open()
        return _Subtask(processor, backend, shared)

    def _journals(self, plan: AgentPlan, codec: ValueCodec, owner: Owner) -> Journals | None:
        if self._make_store is None:
            return None
        on_change = OnPlanChange(self._config.get(AgentOptions.ON_PLAN_CHANGE))
        return Journals(self._make_store(), owner, codec, plan, on_change, self._make_store)

    def _subtask_of(self, key: str) -> _Subtask:
        group = zlib.crc32(key.encode()) % self._max_parallelism
        return self._subtasks[group * len(self._subtasks) // self._max_parallelism]

    def _head(self, key: Any) -> Head | None:
        packed = self.state(key).head
        return None if packed is None else Head.unpack(packed)

    def _do(self, act: Callable[[], None]) -> None:
        """Do ``act`` and let it run to its end, under the conditions that are forced."""
        if self._restart or self._replay:
            measured = self.metrics
            if self._restart:
                self.restore(pickle.loads(pickle.dumps(self.snapshot())))
            if self._replay:
                before, time = self.snapshot(), self.current_time
                act()
                self._settle()
                self.restore(before)
                self._clock.time = time
            # A test sees them as if there was one operator, which did each thing once.
            self._measured = measured
        act()
        self._settle()

    def _settle(self) -> None:
        if self._settles:
            self._run_to_the_end()

    def _run_to_the_end(self, seconds: float = 60.0) -> None:
        for subtask in self._subtasks:
            while waiting := [key for key, state in subtask.backend.keys.items() if state.processing_timers]:
                ended = subtask.processor.ended
                for key in waiting:
                    timers = subtask.backend.keys[key].processing_timers
                    self._fire(key, "processing_timers", max(timers))
                if subtask.processor.busy_keys:
                    subtask.processor.wait_for_progress(ended, seconds)

    def _deliver(self, key: str, record: Any, timestamp: int | None) -> None:
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        self._emit(subtask.processor.process(key, record, timestamp, subtask.backend))

    def _fire_all(self, kind: str, until: int) -> None:
        """Fire all timers up to ``until``, and those that they register."""
        if self._settles:
            self._fire_each(kind, until, lambda *timer: self._do(lambda: self._fire(*timer)))
        else:
            # What is in flight would never end if each of its timers threw it away.
            self._do(lambda: self._fire_each(kind, until, self._fire))

    def _fire_each(self, kind: str, until: int, fire: Callable[[str, str, int], None]) -> None:
        while (due := self._next_timer(kind, until)) is not None:
            if kind == "processing_timers":
                self._clock.time = max(self._clock.time, due[0])
            fire(due[1], kind, due[0])

    def _next_timer(self, kind: str, until: int) -> tuple[int, str] | None:
        """Time and key of the first timer that is due; timers of one time fire in the order of keys."""
        due = (
            (at, key)
            for subtask in self._subtasks
            for key, state in subtask.backend.keys.items()
            for at in getattr(state, kind)
            if at <= until
        )
        return min(due, default=None)

    def _fire(self, key: str, kind: str, at: int) -> None:
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        getattr(subtask.backend.current, kind).discard(at)
        held = self._event_time.holds and kind == "event_timers"
        on_timer = subtask.processor.on_event_time if held else subtask.processor.on_timer
        self._emit(on_timer(key, at, subtask.backend))

    def _emit(self, emission: Any) -> None:
        for tag, value in emission.side_outputs:
            self.side_output(tag).append(self._through_flink(value, "side output"))
        self.outputs.extend(self._through_flink(value, "output") for value in emission.outputs)
        if self._event_time.holds:
            inline = isinstance(emission, Run)
            self.timestamps += [emission.timestamp] * len(emission.outputs) if inline else emission.timestamps

    def _again(self, record: Any) -> Any:
        """``record`` for one of several deliveries: an action may change it."""
        return self._through_flink(record, "record") if self._replay else record

    def _through_flink(self, value: Any, what: str) -> Any:
        if not self._serialize:
            return value
        try:
            return pickle.loads(pickle.dumps(value))
        except Exception as error:
            raise UnserializableValueError(
                f"a {what} cannot be pickled, as PyFlink does between operators: {error}",
                found=f"{type(value).__module__}.{type(value).__qualname__}",
                fix="use values whose classes stand at the top level of a module",
            ) from error


def _sum(groups: Iterable[LocalMetricGroup]) -> dict[str, int | float]:
    total: dict[str, int | float] = {}
    for group in groups:
        for name, value in group.values():
            total[name] = total.get(name, 0) + value
    return total


def _gauges(group: LocalMetricGroup, prefix: str = "") -> Iterator[str]:
    yield from (prefix + name for name, metric in group.metrics.items() if isinstance(metric, Gauge))
    for name, inner in group.groups.items():
        yield from _gauges(inner, f"{prefix}{name}.")
