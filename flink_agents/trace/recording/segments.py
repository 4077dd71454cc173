"""The recorder's notes about runs that have not ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import CallNumber, ObservedRun, Phase
from flink_agents.trace.records import SpanPath, call_path

_counts: Callable[[], defaultdict[Any, int]] = partial(defaultdict, int)
"""Creates a counter, five times as fast as ``Counter``."""

Step = tuple[str | None, str, float | None, float, Any]
"""A step that ended well, and has no record yet.

Of an action: None, its name, its end, its duration, and the types of the events that it sent. The end is
None on Flink's thread, where one action follows the other. Of a durable call: its function, its action, its
end, its duration, and its attributes or None.
"""

called_agents: ContextVar[tuple[CalledAgent, ...]] = ContextVar("called_agents", default=())
"""The agents whose code runs in this context, the outermost one first."""


def called_agent() -> SpanPath | None:
    """Return the span path of the innermost called agent in this context; None outside of called agents."""
    agents = called_agents.get()
    return agents[-1].path if agents else None


@dataclass(frozen=True, slots=True)
class CalledAgent:
    """An agent that an action has called, and that has not answered yet.

    Attributes:
        name: Its name.
        path: The path of its span in the run.
        parent: The path of its parent span.
        before: Numbers of executed and of replayed calls of the run when the agent was called.
    """

    name: str
    path: SpanPath
    parent: SpanPath
    before: tuple[int, int]


class FutureRun(NamedTuple):
    """A run whose input waits in state.

    Attributes:
        key_text: Canonical text of its key.
        sequence_number: The number that it will have.
        parent: None: the message is known only when the run starts.
        traceparent: None, for the same reason.
    """

    key_text: str
    sequence_number: int
    parent: str | None = None
    traceparent: str | None = None


class KnownRun(NamedTuple):
    """The fields that all records of a run share, cached from one record to the next.

    Attributes:
        run: The run; None before the first one.
        job: Identity of the job in which it started.
        run_id: Its id.
        span: Id of its span.
        key: Canonical text of its key, with secrets hidden.
    """

    run: ObservedRun | None
    job: str
    run_id: str
    span: str
    key: str


class OpenCall:
    """A durable call that has not ended.

    Args:
        function: Name of the function.
        execution: Number of earlier executions of its action in the run.
        start_seconds: Its start, in seconds since the epoch.
        agent: The span path of the called agent that made the call; None for the action itself.

    Attributes:
        more: Its attributes by name; None while there are none.
    """

    __slots__ = ("agent", "begun", "execution", "function", "more")

    def __init__(self, function: str, execution: int, start_seconds: float, agent: SpanPath | None) -> None:
        self.function = function
        self.execution = execution
        self.begun = start_seconds
        self.agent = agent
        self.more: dict[str, Any] | None = None

    def add_attributes(self, facts: Mapping[str, Any]) -> None:
        """Add attributes to the record that the call will get."""
        self.more = {**(self.more or {}), **facts}

    def path(self, action: str, number: CallNumber) -> SpanPath:
        """Return the path of its span in the run."""
        return call_path(action, self.execution, self.function, number.task, number.nth)

    def parent(self, action: str) -> SpanPath:
        """Return the path of the parent span: that of the called agent or of the action."""
        return self.agent or ("action", action, self.execution)


class FailedAction(NamedTuple):
    """An attempt of an action that failed. It has no record until it is known what follows.

    Attributes:
        action: Name of the action.
        attributes: Its attributes.
        parent: The path of the agent whose action it is; empty for an action of the run's own agent.
        time: Its end, in seconds since the epoch.
        event: Type and outcome of the event that the run gives up; None if that is not known.
    """

    action: str
    attributes: dict[str, Any]
    parent: SpanPath
    time: float
    event: tuple[str, str] | None = None


class Segment:
    """A part of a run, from its start or resumption to its end or suspension.

    Most runs end soon and need few fields: the others are created on first access.

    Args:
        start_seconds: Start, in seconds since the epoch.
        folds: True if the runtime may add steps and memory itself. See ``RunRecorder.reads_notes``.
        changed: Start of the present phase, by the clock of phases.

    Attributes:
        lasts: True if its steps get separate records. Set once, by the thread of the run or the writer's.
        is_started: True if the run has a record of its start.
        steps: The steps that have no record yet, in the order of their ends.
        last_step_end: End of the last step that got a separate record from here; 0.0 if there is none.
        nth: Number of the next call of the present action, if its calls follow one another in one task.
        unfolded: The same number among the calls whose steps got separate records.
        resumes: True if this attempt of the task has recorded its earlier segments.
        sent: Types of the events that the current attempt of an action sent.
        executed: Number of executed durable calls.
        replayed: Number of replayed calls and actions.
        partial: True if the run was replayed, but the end of an action was not in its journal.
        failed: The last attempt of an action, if it failed and it is not known yet what follows.
        calling: The action that made or replayed the last call, and the number of its earlier executions.
        dead: True if an event of the run became a dead letter.
        error: The last error, as attributes; None if there was none.
        waits: Durations of its phases in which it waited; None if there were none. The runtime adds to them.
        last_phase: The last recorded phase, and its start.
        written: The memory that the run wrote.
        open: The calls that have not ended, by action, task and number; None if there were none.
    """

    lasts: bool = False
    is_started: bool = False
    last_step_end: float = 0.0
    nth: int = 0
    unfolded: int = 0
    resumes: bool = False
    sent: tuple[str, ...] = ()
    executed: int = 0
    replayed: int = 0
    partial: bool = False
    failed: FailedAction | None = None
    calling: tuple[str, int] | None = None
    dead: bool = False
    error: dict[str, Any] | None = None
    last_phase: tuple[Phase, float] | None = None
    written: Mapping[str, int] | None = None
    open: dict[tuple[str, str, int], OpenCall] | None = None
    waits: dict[Phase, float] | None = None

    def __init__(self, start_seconds: float, folds: bool = False, changed: float = 0.0) -> None:
        self.begun = start_seconds
        self.folds = folds
        self.changed = changed
        self.steps: list[Step] = []

    def write(self, sizes: Mapping[str, int]) -> None:
        """Note the sizes of memory that the run wrote, by name."""
        self.written = sizes if self.written is None else {**self.written, **sizes}

    def phases(self) -> dict[str, float]:
        """Return the durations of the waits in seconds, by the name of their phase."""
        return {phase.name.lower(): seconds for phase, seconds in (self.waits or {}).items()}

    @property
    def is_replay(self) -> bool:
        """True if everything that ended so far came from the journal."""
        return self.replayed > 0 and not (self.executed or self.partial)

    def ended_executions(self, action: str) -> int:
        """Count the executions of an action that have ended and have no record yet."""
        return sum([step[0] is None and step[1] == action for step in self.steps]) if self.steps else 0

    @cached_property
    def actions(self) -> defaultdict[str, int]:
        """Number of recorded executions by action."""
        return _counts()

    @cached_property
    def called(self) -> set[SpanPath]:
        """Span paths of the calls that have records."""
        return set()

    @cached_property
    def retries(self) -> defaultdict[str, int]:
        """Number of retries by action, of its present execution."""
        return _counts()

    @cached_property
    def agents(self) -> defaultdict[tuple[str, int, str], int]:
        """Number of called agents by action, number of its execution, and name of the agent."""
        return _counts()

    def begin_call(self, action: str, number: CallNumber, call: OpenCall) -> None:
        """Note that a durable call began."""
        if self.open is None:
            self.open = {}
        self.open[action, number.task, number.nth] = call

    def open_call(self, action: str, number: CallNumber) -> OpenCall | None:
        """Return a call that has begun and not ended; None if there is none."""
        return self.open.get((action, number.task, number.nth)) if self.open else None

    def end_call(self, action: str, number: CallNumber) -> OpenCall | None:
        """Return a call that has begun, and forget it; None if there is none."""
        return self.open.pop((action, number.task, number.nth), None) if self.open else None

    def all_opened(self) -> list[OpenCall]:
        """Return the calls that have not ended, the first one first. For the writer's thread."""
        return list((self.open or {}).values())
