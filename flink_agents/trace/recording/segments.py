"""The recorder's notes about runs that have not ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import ObservedRun, Phase

_counts: Callable[[], defaultdict[Any, int]] = partial(defaultdict, int)
"""Creates a counter, five times as fast as ``Counter``."""

SpanPath = tuple[Any, ...]

Step = tuple[str | None, str, float | None, float, Any]
"""A step that ended well, and has no record yet.

Of an action: None, its name, its end, its duration, and the types of the events that it sent. The end is
None on Flink's thread, where one action follows the other. Of a durable call: its function, its action, its
end, its duration, and its attributes or None.
"""

called_agents: ContextVar[tuple[CalledAgent, ...]] = ContextVar("called_agents", default=())
"""The agents whose code runs in this context, the outermost one first."""


@dataclass(frozen=True, slots=True)
class CalledAgent:
    """An agent that an action has called, and that has not answered yet.

    Attributes:
        name: Its name.
        path: The path of its span.
        parent: The path of the parent span.
        before: Executed and replayed calls of the run when this agent was called.
    """

    name: str
    path: SpanPath
    parent: SpanPath
    before: tuple[int, int]


class KnownRun(NamedTuple):
    """The fields that all records of a run share.

    Attributes:
        run: The run.
        job: Identity of the job in which it started.
        run_id: Its id.
        span: Id of its span.
        key: Its key, without secrets.
    """

    run: ObservedRun | None
    job: str
    run_id: str
    span: str
    key: str


class OpenCall:
    """A durable call that has not ended.

    Args:
        number: Number of the call among those of its action and function.
        begun: Its start, in seconds since the epoch.
        parent: Number of its action's attempt, or the path of the agent that made the call.

    Attributes:
        more: Its attributes; None while there are none.
    """

    __slots__ = ("begun", "more", "number", "parent")

    def __init__(self, number: int, begun: float, parent: int | SpanPath) -> None:
        self.number = number
        self.begun = begun
        self.parent = parent
        self.more: dict[str, Any] | None = None

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Add attributes."""
        self.more = {**(self.more or {}), **facts}

    def parent_path(self, action: str) -> SpanPath:
        """Return the path of the parent span."""
        return ("action", action, self.parent) if isinstance(self.parent, int) else self.parent


class Segment:
    """A part of a run, from its start or resumption to its end or suspension.

    Most runs end soon and need few fields: the others are created on first access.

    Args:
        begun: Start, in seconds since the epoch.
        folds: True if the runtime may add steps and memory itself. See ``RunRecorder.reads_notes``.
        changed: Start of the present phase, by the clock of phases.

    Attributes:
        lasts: True if its steps get records of their own. Set once, by the thread of the run or the writer's.
        told: True if the run has a record of its start.
        steps: The steps that have no record yet, in the order of their ends.
        at: End of the last step that got a record of its own from here; 0.0 if there is none.
        sent: Types of the events that the current attempt of an action sent.
        executed: Number of executed durable calls.
        replayed: Number of replayed calls and actions.
        dead: True if an event became a dead letter.
        error: The last error.
        waits: Durations of its phases in which it waited. The runtime adds to them.
        seen: The last recorded phase, and its start.
        written: The memory that the run wrote.
        calls: Number of calls by action and function; None if there were none.
        open: The calls that have not ended; None if there were none.
    """

    lasts: bool = False
    told: bool = False
    at: float = 0.0
    sent: tuple[str, ...] = ()
    executed: int = 0
    replayed: int = 0
    dead: bool = False
    error: dict[str, Any] | None = None
    seen: tuple[Phase, float] | None = None
    written: Mapping[str, int] | None = None
    calls: dict[tuple[str, str], int] | None = None
    open: dict[tuple[str, str], deque[OpenCall]] | None = None

    def __init__(self, begun: float, folds: bool = False, changed: float = 0.0) -> None:
        self.begun = begun
        self.folds = folds
        self.changed = changed
        self.steps: list[Step] = []
        self.waits: dict[Phase, float] = {}

    def write(self, sizes: Mapping[str, int]) -> None:
        """Note memory that the run wrote."""
        self.written = sizes if self.written is None else {**self.written, **sizes}

    def phases(self) -> dict[str, float]:
        """Return the durations of waits by name."""
        return {phase.name.lower(): seconds for phase, seconds in self.waits.items()}

    def ended(self, action: str) -> int:
        """Return the number of ended attempts of an action that have no record yet."""
        return sum([one[0] is None and one[1] == action for one in self.steps]) if self.steps else 0

    @cached_property
    def actions(self) -> defaultdict[str, int]:
        """Number of recorded attempts of each action."""
        return _counts()

    @cached_property
    def retries(self) -> defaultdict[str, int]:
        """Number of retries of each action."""
        return _counts()

    @cached_property
    def unfolded(self) -> defaultdict[tuple[str, str], int]:
        """Number of calls that were folded first, by action and function."""
        return _counts()

    @cached_property
    def agents(self) -> defaultdict[tuple[str, str], int]:
        """Number of called agents by action and agent."""
        return _counts()

    def begin_call(self, what: tuple[str, str], now: float, parent: int | SpanPath) -> OpenCall:
        """Note that a call of an action and function begins."""
        opened = OpenCall(self.next_call(what), now, parent)
        if (found := self.open) is None:
            found = self.open = {}
        if (calls := found.get(what)) is None:
            calls = found[what] = deque()
        calls.append(opened)
        return opened

    def next_call(self, what: tuple[str, str]) -> int:
        """Return the number of the next call of an action and function."""
        if (calls := self.calls) is None:
            calls = self.calls = {}
        number = calls.get(what, 0)
        calls[what] = number + 1
        return number

    def opened(self, what: tuple[str, str]) -> deque[OpenCall] | None:
        """Return the calls of an action and function that have not ended."""
        return self.open.get(what) if self.open is not None else None

    def all_opened(self) -> list[tuple[tuple[str, str], deque[OpenCall]]]:
        """Return the calls that have not ended. For the writer's thread."""
        return list((self.open or {}).items())
