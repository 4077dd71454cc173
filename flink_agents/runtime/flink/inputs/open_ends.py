"""Keeps the end of a bounded input open until the downstream agent has no open runs.

Flink completes no checkpoint while an operator waits at its last watermark: barriers queue behind it. So an
agent with bounded inputs gets one more input, a *gate*. The gate is a source without records. Each of its
subtasks forwards to one subtask of the agent, and its watermark holds that of the agent just before the last
one. When the other inputs have ended, the agent sees this watermark. Its runs continue as before, and
checkpoints complete. The gate ends when the subtask of the agent beside it has no open runs.

A gate finds its agent in the memory of the process: Flink runs subtasks of one number in one slot. A gate
that finds no agent ends after a while. Then the agent waits at its last watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from pyflink.common import TypeInformation, WatermarkStrategy
from pyflink.datastream import DataStream, ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.graph import add_input, input_type_of, is_bounded_and_never_idle
from flink_agents.runtime.flink.internals.task import OwnSource, emit_watermark
from flink_agents.runtime.flink.resume.state_fit import GATE, GATE_SOURCE
from flink_agents.runtime.operator.services.service import EndTimes

TICK_SECONDS = 0.05
"""Interval of a gate's checks. This is the longest time that a checkpoint barrier waits for it."""

ALONE_SECONDS = 60.0
"""After this time without its agent's subtask in this process, a gate ends."""

_TICKS = 2**62

_log = bounded_logger("flink_agents.end_of_input")

Place = tuple[str, str, int]
"""A subtask: the id of its job, the name of its agent, and its number."""


class OpenEnd:
    """The end of the input of one subtask of an agent.

    Args:
        times: When the timers at the end fire.
        watermark: Returns the present watermark of the subtask, in milliseconds.
        rests: Returns True if the end of the input has nothing to wait for.
    """

    def __init__(self, times: EndTimes, watermark: Callable[[], int], rests: Callable[[], bool]) -> None:
        self._times = times
        self._watermark = watermark
        self._rests = rests

    @property
    def is_over(self) -> bool:
        """True if all inputs have ended, and no run is open."""
        # In this order: after the watermark, there are no more inputs.
        return self._watermark() >= self._times.start and self._rests()


_open: WeakValueDictionary[Place, OpenEnd] = WeakValueDictionary()


def register_end(place: Place, end: OpenEnd) -> None:
    """Register the end of a subtask's input, so that its gate finds it.

    Args:
        place: The subtask.
        end: The end of its input. The caller keeps it alive.
    """
    _open[place] = end


class Gate(ProcessFunction):
    """Ends its source when the agent has no open runs, which it checks several times a second.

    Args:
        agent: The name of the agent.
        times: When its timers at the end fire.
    """

    def __init__(self, agent: str, times: EndTimes) -> None:
        self._agent = agent
        self._times = times

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        task = flink_compat.task_info(runtime_context)
        self._place: Place = (task.job_id, self._agent, task.subtask)
        self._source = OwnSource()
        self._alone_until = time.monotonic() + ALONE_SECONDS
        emit_watermark(self._times.start)

    @override
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        end = _open.get(self._place)
        if end is None and time.monotonic() < self._alone_until:
            time.sleep(TICK_SECONDS)
        elif end is None:
            _log.warning(
                "no subtask %d of agent %r runs in this process: at the end of its input, no checkpoint "
                "completes until all of its runs have ended",
                self._place[2],
                self._agent,
            )
            self._source.end_source()
        elif end.is_over:
            self._source.end_source()
        else:
            self._alone_until = time.monotonic() + ALONE_SECONDS
            time.sleep(TICK_SECONDS)
        return ()


class _ClosedGate(ProcessFunction):
    """Ends its source at once."""

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        self._source = OwnSource()

    @override
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        self._source.end_source()
        return ()


class _JavaType(TypeInformation):
    """A type that Java created. No value of it is ever converted."""

    def __init__(self, java: Any) -> None:
        super().__init__()
        self._j_typeinfo = java

    @override
    def get_java_type_info(self) -> Any:
        return self._j_typeinfo


def keep_open(env: StreamExecutionEnvironment, agent: str, level: int, stream: DataStream) -> bool:
    """Add a gate to an agent of a job with checkpoints, if its inputs end and it can have one.

    Args:
        env: PyFlink's environment.
        agent: The name of the agent.
        level: Number of agents of the job that were applied before it.
        stream: The output of the agent's operator.

    Returns:
        True if it has one now.
    """
    if not env.is_chaining_enabled() or not is_bounded_and_never_idle(stream):
        return False
    # The names differ from those of agents, by which inputs are counted.
    kind = _JavaType(input_type_of(stream))
    ticks, gate = _gate_of(env, agent, Gate(agent, EndTimes(level)), kind)
    add_input(stream, ticks, gate)
    return True


def leave_gate(env: StreamExecutionEnvironment, agent: str) -> None:
    """Add a gate that leads nowhere, for the state that a gate has in a checkpoint.

    The agent has none any more: it got an input that does not end.
    """
    _gate_of(env, agent, _ClosedGate(), None)


def _gate_of(
    env: StreamExecutionEnvironment, agent: str, function: ProcessFunction, kind: TypeInformation | None
) -> tuple[DataStream, DataStream]:
    """Return the source of a gate, and the gate."""
    name = f"end of input of {agent}"
    ticks = env.from_source(NumberSequenceSource(0, _TICKS), WatermarkStrategy.no_watermarks(), name)
    gate = ticks.process(function, output_type=kind) if kind is not None else ticks.process(function)
    # An agent has the identity flink-agents-NAME.
    return ticks.uid(GATE_SOURCE + agent), gate.name(name).uid(GATE + agent)
