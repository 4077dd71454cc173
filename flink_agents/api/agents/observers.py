"""Observation of runs: the phases of a run, and the base class of observers.

Pass observers to ``apply``, or to the harness. Metrics, traces and all other reports about runs come from
observers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import ObserverError


class Phase(Enum):
    """The present phase of a run. A run is in one phase at a time.

    Attributes:
        QUEUED: Its input was chosen, and waits until earlier runs of its key have ended; or it started on
            Flink's thread, and waits for the event loop.
        RUNNING: The author's code runs, or awaits its own awaitables.
        CALL: It waits for a durable step.
        SLOT: It waits for one of the slots of ``run.max-in-flight``.
        LIMIT: It waits for a limit of an action or of a tool.
        RETRY: It pauses before the next attempt.
        CLIENT: It waits until a client is open.
        THREAD: It waits for a thread of the pool.
        RECORDS: Records of its key are being read to find out which run is next; that run starts as another
            one.
        INPUT: It has records, and waits for its input to come again.
        SUSPENDED: It exists only in state and records: it has no coroutine, thread or slot. It left
            :data:`RUNNING`, or a wait, when all its steps were recorded. An entry in its key's state
            describes the event that resumes it; then it is queued again, and a replay continues where it
            stopped.
        FINISHED: All of its actions have ended; it is not committed yet.
        COMMITTED: Its effects are in state, and its outputs are emitted.
        FAILED: An error ended the run and the task attempt; or the task attempt ended first.
    """

    QUEUED = "queued"
    RUNNING = "running"
    CALL = "waits for a durable call"
    SLOT = "waits for a slot"
    LIMIT = "waits for a limit"
    RETRY = "pauses before the next attempt"
    CLIENT = "waits for a client"
    THREAD = "waits for a thread"
    RECORDS = "waits for its records"
    INPUT = "waits for its input"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    COMMITTED = "committed"
    FAILED = "failed"

    # Members are compared by identity. Enum's own method would hash the name each time.
    __hash__ = object.__hash__


WAITS = frozenset((Phase.CALL, Phase.SLOT, Phase.LIMIT, Phase.RETRY, Phase.CLIENT, Phase.THREAD))
"""The phases in which an action of the run waits for the runtime."""

IN_FLIGHT = WAITS | {Phase.RUNNING}
"""The phases of a running run."""

FOLLOWS: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset((Phase.QUEUED, Phase.RUNNING, Phase.RECORDS, Phase.INPUT)),
    Phase.QUEUED: frozenset((Phase.RUNNING, Phase.FAILED)),
    **dict.fromkeys(
        IN_FLIGHT,
        # It is queued when Flink's thread passes it on.
        IN_FLIGHT | {Phase.QUEUED, Phase.SUSPENDED, Phase.FINISHED, Phase.COMMITTED, Phase.FAILED},
    ),
    Phase.RECORDS: frozenset((Phase.FAILED,)),
    Phase.INPUT: frozenset((Phase.QUEUED,)),
    Phase.SUSPENDED: frozenset((Phase.QUEUED,)),
    Phase.FINISHED: frozenset((Phase.COMMITTED,)),
    Phase.COMMITTED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""The phases that can follow each phase; under None, those in which a run can start."""


class ObservedRun(Protocol):
    """Properties of a run for observers."""

    @property
    def agent(self) -> str:
        """Name of the agent."""
        ...

    @property
    def run_id(self) -> str:
        """Id of the run, as dead letters and traces name it; empty until ``identity`` is known.

        Computed when you read it.
        """
        ...

    @property
    def key(self) -> Any:
        """The key of the run, as the key selector returned it."""
        ...

    @property
    def sequence_number(self) -> int:
        """The number of the run within its key, from 0."""
        ...

    @property
    def key_text(self) -> str:
        """Canonical text of the key, under which the store has its journal."""
        ...

    @property
    def identity(self) -> str:
        """Identity of the job in which the run started; empty until it is known."""
        ...

    @property
    def parent(self) -> str | None:
        """Id of the input message; for a delayed event, id of the run that sent it; None if unknown."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The trace context (W3C) that came with the input, or None."""
        ...

    @property
    def open_waits(self) -> Sequence[Any]:
        """The open waits of a suspended run.

        Each has the ``name`` of its signal or None, and its ``deadline`` in milliseconds since the epoch.
        """
        ...

    @property
    def phase(self) -> Phase:
        """The present phase of the run."""
        ...

    @property
    def since(self) -> float:
        """Start of that phase (``time.monotonic``); 0.0 if it was not measured, on Flink's thread."""
        ...

    @property
    def waits_for(self) -> str:
        """The reason why the run waits, in words; empty if the phase is enough."""
        ...


class CallNumber(Protocol):
    """The place of a durable step in the execution of its action. A replay gives the same one."""

    @property
    def task(self) -> str:
        """Path of the task that makes the call; empty for the action itself."""
        ...

    @property
    def nth(self) -> int:
        """Number of earlier calls of that task."""
        ...


class CallOutcome(Protocol):
    """The recorded outcome of a durable step."""

    @property
    def attempts(self) -> int:
        """The number of attempts that the step took."""
        ...

    @property
    def ended_at(self) -> int:
        """Time at which the step ended, in milliseconds since the epoch."""
        ...

    @property
    def error(self) -> Mapping[str, Any] | None:
        """``type`` and ``message`` of its error; None if it returned."""
        ...


ReplayedCall = tuple[str, CallNumber, CallOutcome]
"""The function, the number and the outcome of a durable step in the record of its action."""


class RunObserver:
    """Observes runs. A subclass overrides the methods that it needs.

    The thread that executes the run calls the methods: Flink's, the agent loop's or one of the pool, so
    several at a time. They must not block. An exception does not affect the run: it is counted in the metric
    ``observer_errors``, and the first error of each method is logged.

    A replay reports repeated steps again. So counts of an observer depend on failures of the job, as metrics
    do.
    """

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        """Called when ``run`` has left the phase ``before``, which is None if it starts."""

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        """Called when an attempt of an action ended, after ``seconds``; ``inline`` if on Flink's thread."""

    def events_sent(self, run: ObservedRun, action: str, event_types: Sequence[str]) -> None:
        """Called with the events that an attempt of an action sent, right before :meth:`action_ended`."""

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Called when an attempt of an action raised."""

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Called before the ``attempt``-th execution of an action."""

    def action_replayed(
        self, run: ObservedRun, action: str, calls: Sequence[ReplayedCall], letter: DeadLetter | None
    ) -> None:
        """Called when a whole action was replayed from its record, in which it made ``calls``.

        ``letter`` is the dead letter that it became, or None.
        """

    def action_mismatched(self, run: ObservedRun, action: str) -> None:
        """Called when a replay of an action made other durable calls than were recorded."""

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        """Called when a run continues without an event; ``dead_letter`` if the event became one."""

    def call_begun(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, again: bool
    ) -> None:
        """Called when a durable step starts; ``again`` if a replay found no record of it."""

    def call_attempt_failed(
        self,
        run: ObservedRun,
        action: str,
        function: str,
        number: CallNumber,
        attempt: int,
        error: BaseException,
    ) -> None:
        """Called when the ``attempt``-th attempt of a durable step raised, and another one follows."""

    def call_retried(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, attempt: int
    ) -> None:
        """Called before the ``attempt``-th attempt of a durable step."""

    def call_recorded(self, run: ObservedRun, action: str, function: str, number: CallNumber) -> None:
        """Called when the result of a durable step was recorded."""

    def call_content(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, what: str, value: Any
    ) -> None:
        """Called with a ``value`` of a durable step: ``what`` is ``"request"`` or ``"result"``."""

    def call_failed(
        self,
        run: ObservedRun,
        action: str,
        function: str,
        number: CallNumber,
        error: BaseException,
        ended_at: int,
    ) -> None:
        """Called when a durable step failed for good, at ``ended_at`` in milliseconds since the epoch."""

    def call_replayed(
        self, run: ObservedRun, action: str, function: str, number: CallNumber, outcome: CallOutcome
    ) -> None:
        """Called when a durable step returned its recorded outcome."""

    def agent_called(self, run: ObservedRun, action: str, agent: str) -> None:
        """Called when an action calls another agent; steps of that agent follow, before its answer."""

    def agent_answered(
        self, run: ObservedRun, action: str, agent: str, seconds: float, error: BaseException | None
    ) -> None:
        """Called when a called agent has answered, or failed with ``error``, after ``seconds``.

        It runs in the same context (``contextvars``) as :meth:`agent_called`.
        """

    def recorded(self, run: ObservedRun, action: str, records: int) -> None:
        """Called when the store has acknowledged ``records`` records of calls, waits and ends of actions."""

    def memory_written(self, run: ObservedRun, values: Mapping[str, int]) -> None:
        """Called with the short-term memory that a run wrote: each value's size in bytes, 0 if removed."""

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        """Called at a commit, ``seconds`` after the end of the run; None for a run on Flink's thread."""

    def request_answered(self, key_text: str, answer: Mapping[str, Any]) -> None:
        """Called with the answer to a request about a key: to inspect it, to end a run, or to erase it."""

    def closed(self) -> None:
        """Called when the task attempt of the subtask ends. Runs may still fail after that."""


ObserverSource = RunObserver | Callable[[], RunObserver]
"""An observer for each subtask: an instance, of which each subtask gets a copy, or a class or function
without arguments that creates one there.
"""


def check_observers(sources: Sequence[ObserverSource]) -> tuple[ObserverSource, ...]:
    """Return ``sources`` as a tuple, if each of them can be an observer.

    Raises:
        ObserverError: A source is neither a ``RunObserver``, nor a class of one, nor a function.
    """
    for source in sources:
        fits = issubclass(source, RunObserver) if isinstance(source, type) else callable(source)
        if not (fits or isinstance(source, RunObserver)):
            raise ObserverError(
                "invalid observer",
                expected="an instance or a subclass of RunObserver, or a function that returns an instance",
                found=repr(source)[:200],
                fix="derive the class from flink_agents.RunObserver",
            )
    return tuple(sources)
