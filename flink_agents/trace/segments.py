"""What a recorder knows of the runs that it is told of."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import ObservedRun, Phase

_counts: Callable[[], defaultdict[Any, int]] = partial(defaultdict, int)
"""Makes a counter, in a fifth of the time that ``Counter`` takes."""

SpanPath = tuple[Any, ...]

called_agents: ContextVar[tuple[CalledAgent, ...]] = ContextVar("called_agents", default=())
"""The agents whose code runs in this context, the outermost one first."""


@dataclass(frozen=True, slots=True)
class CalledAgent:
    """An agent that an action has called, and that has not answered.

    Attributes:
        name: Its name.
        path: The path of its span.
        parent: That of the span which it belongs to.
        before: How many calls of the run were executed, and replayed, when it was called.
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


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a run between its begin, or its resume, and its end, or its suspension."""

    begun: float
    told: bool = False
    executed: int = 0
    replayed: int = 0
    dead: bool = False
    error: dict[str, Any] | None = None
    waits: dict[str, float] = field(default_factory=dict[str, float])
    waiting: tuple[str, float] | None = None
    seen: tuple[Phase, float] | None = None
    written: dict[str, int] | None = None
    actions: defaultdict[str, int] = field(default_factory=_counts)
    retries: defaultdict[str, int] = field(default_factory=_counts)
    calls: defaultdict[tuple[str, str], int] = field(default_factory=_counts)
    agents: defaultdict[tuple[str, str], int] = field(default_factory=_counts)
    open: defaultdict[tuple[str, str], deque[tuple[int, float, dict[str, Any], SpanPath]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
