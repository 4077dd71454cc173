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

OpenCall = tuple[int, float, dict[str, Any], SpanPath]
"""A call that has not ended: its number, start, attributes, and parent span."""

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


class Segment:
    """A part of a run, from its start or resumption to its end or suspension.

    Most runs start and end on Flink's thread and need few fields: the others are created on first access.

    Args:
        begun: Start, in seconds since the epoch.

    Attributes:
        told: True if the run has a record of its start.
        folded: Name, seconds and types of sent events of each action so far, if all of them succeeded on
            Flink's thread; otherwise None.
        sent: Types of the events that the current attempt of an action sent.
        executed: Number of executed durable calls.
        replayed: Number of replayed calls and actions.
        dead: True if an event became a dead letter.
        error: The last error.
        waiting: The reason and the start of the current wait.
        seen: The last recorded phase, and its start.
        written: The memory that the run wrote.
    """

    told: bool = False
    sent: tuple[str, ...] = ()
    executed: int = 0
    replayed: int = 0
    dead: bool = False
    error: dict[str, Any] | None = None
    waiting: tuple[str, float] | None = None
    seen: tuple[Phase, float] | None = None
    written: Mapping[str, int] | None = None

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.folded: list[tuple[str, float, tuple[str, ...]]] | None = []

    @cached_property
    def waits(self) -> dict[str, float]:
        """Duration of its waits, by reason."""
        return {}

    @cached_property
    def actions(self) -> defaultdict[str, int]:
        """Number of recorded attempts of each action."""
        return _counts()

    @cached_property
    def retries(self) -> defaultdict[str, int]:
        """Number of retries of each action."""
        return _counts()

    @cached_property
    def calls(self) -> defaultdict[tuple[str, str], int]:
        """Number of calls by action and function."""
        return _counts()

    @cached_property
    def agents(self) -> defaultdict[tuple[str, str], int]:
        """Number of called agents by action and agent."""
        return _counts()

    @cached_property
    def open(self) -> defaultdict[tuple[str, str], deque[OpenCall]]:
        """The calls that have not ended."""
        return defaultdict(deque)

    def opened(self) -> list[tuple[tuple[str, str], deque[OpenCall]]]:
        """Return the calls that have not ended. For the writer's thread, which must not create the field."""
        return list(self.__dict__.get("open", {}).items())
