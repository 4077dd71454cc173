"""What a recorder knows of the runs that it is told of."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import ObservedRun, Phase

_counts: Callable[[], defaultdict[Any, int]] = partial(defaultdict, int)
"""Makes a counter, in a fifth of the time that ``Counter`` takes."""

SpanPath = tuple[Any, ...]

OpenCall = tuple[int, float, dict[str, Any], SpanPath]
"""A call that has not ended: its number, its begin, its attributes, and the span that it belongs to."""

called_agents: ContextVar[tuple[CalledAgent, ...]] = ContextVar("called_agents", default=())
"""The agents whose code runs in this context, the outermost one first."""


@dataclass(frozen=True, slots=True)
class CalledAgent:
    """An agent that an action has called, and that has not answered.

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
    """What all records of a run have in common.

    Attributes:
        run: The run.
        job: Identity of the job that it began in.
        run_id: Its id.
        span: Id of its span.
        key: Its key, without secrets.
    """

    run: ObservedRun | None
    job: str
    run_id: str
    span: str
    key: str


class Segment:
    """What is known of a run between its begin, or its resume, and its end, or its suspension.

    Most runs begin and end on Flink's thread and need little of it: the rest is made when it is asked for.

    Args:
        begun: When it began, in seconds since the epoch.

    Attributes:
        told: True if the run has a record of its start.
        folded: The actions so far, if all of them succeeded on Flink's thread: name, seconds, and the types
            of the events that they sent. None from the first one on that is different.
        sent: The types of the events that an attempt of an action sent which is about to end.
        executed: How many durable calls were made.
        replayed: How many calls and actions came from the journal.
        dead: True if an event of it became a dead letter.
        error: Its last error.
        waiting: What it waits for, and since when.
        seen: The phase of which there is a record, and its begin.
        written: Which memory it wrote.
    """

    told: bool = False
    sent: tuple[str, ...] = ()
    executed: int = 0
    replayed: int = 0
    dead: bool = False
    error: dict[str, Any] | None = None
    waiting: tuple[str, float] | None = None
    seen: tuple[Phase, float] | None = None
    written: dict[str, int] | None = None

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.folded: list[tuple[str, float, tuple[str, ...]]] | None = []

    @cached_property
    def waits(self) -> dict[str, float]:
        """How long it waited, by what for."""
        return {}

    @cached_property
    def actions(self) -> defaultdict[str, int]:
        """How many attempts of each action have a record."""
        return _counts()

    @cached_property
    def retries(self) -> defaultdict[str, int]:
        """How often each action was retried."""
        return _counts()

    @cached_property
    def calls(self) -> defaultdict[tuple[str, str], int]:
        """How often each action has made each call."""
        return _counts()

    @cached_property
    def agents(self) -> defaultdict[tuple[str, str], int]:
        """How often each action has called each agent."""
        return _counts()

    @cached_property
    def open(self) -> defaultdict[tuple[str, str], deque[OpenCall]]:
        """The calls that have not ended."""
        return defaultdict(deque)

    def opened(self) -> list[tuple[tuple[str, str], deque[OpenCall]]]:
        """Return the calls that have not ended. For the writer's thread, which makes nothing here."""
        return list(self.__dict__.get("open", {}).items())
