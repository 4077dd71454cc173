"""What can be told of runs, and who is told: the phases of a run, and the base class of observers.

Observers are given to ``apply`` of a job, or to the harness. They are the one source of metrics, traces and
whatever else tells what runs do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from flink_agents.api.errors import ObserverError


class Phase(Enum):
    """What a run is doing. A run is in one phase at a time.

    Attributes:
        QUEUED: Its input was chosen, and waits until the runs of its key before it have ended; or it began on
            Flink's thread, and waits until the event loop continues it.
        RUNNING: The author's code is executed, or awaits something of its own.
        CALL: It waits for a durable call.
        SLOT: It waits for one of the slots of ``run.max-in-flight``.
        LIMIT: It waits for a limit of an action or of a tool.
        RETRY: It pauses before the next attempt.
        CLIENT: It waits until a client is open.
        THREAD: It waits for a thread of the pool.
        RECORDS: Records of its key are being read, which say which run is next; that begins as another one.
        INPUT: It was recorded, and waits for its input to come again.
        SUSPENDED: Only state and records are left of it: it has no coroutine, no thread and no slot. It left
            :data:`RUNNING`, or a wait, when everything that it did was recorded. An entry of its key's state
            names what resumes it; then it is queued again, and a replay leads to where it was.
        FINISHED: All of its actions have ended; its commit is to come.
        COMMITTED: Its effects are in state, and its outputs have left.
        FAILED: An error ended it, and with it the task attempt; or the end of the task attempt did.
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

    # Members are compared by identity. The method that Enum has would hash the name each time.
    __hash__ = object.__hash__


WAITS = frozenset((Phase.CALL, Phase.SLOT, Phase.LIMIT, Phase.RETRY, Phase.CLIENT, Phase.THREAD))
"""The phases in which one of a run's actions waits for the runtime."""

IN_FLIGHT = WAITS | {Phase.RUNNING}
"""The phases of a run that is executed."""

FOLLOWS: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset((Phase.QUEUED, Phase.RUNNING, Phase.RECORDS, Phase.INPUT)),
    Phase.QUEUED: frozenset((Phase.RUNNING, Phase.FAILED)),
    **dict.fromkeys(
        IN_FLIGHT,
        # It is queued where Flink's thread hands it over.
        IN_FLIGHT | {Phase.QUEUED, Phase.SUSPENDED, Phase.FINISHED, Phase.COMMITTED, Phase.FAILED},
    ),
    Phase.RECORDS: frozenset((Phase.FAILED,)),
    Phase.INPUT: frozenset((Phase.QUEUED,)),
    Phase.SUSPENDED: frozenset((Phase.QUEUED,)),
    Phase.FINISHED: frozenset((Phase.COMMITTED,)),
    Phase.COMMITTED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""The phases that can follow each phase, and those that a run can begin with, under None."""


class ObservedRun(Protocol):
    """What an observer can ask of a run."""

    @property
    def key(self) -> Any:
        """The key."""
        ...

    @property
    def sequence_number(self) -> int:
        """The number of the run within its key."""
        ...

    @property
    def key_text(self) -> str:
        """Canonical text of the key."""
        ...

    @property
    def identity(self) -> str:
        """Identity of the job that the run began in; empty until that is known."""
        ...

    @property
    def parent(self) -> str | None:
        """Id of the message that was the input; of a delayed event, of the run that sent it; or None."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The trace context (W3C) that came with the input, or None."""
        ...

    @property
    def open_waits(self) -> Sequence[Any]:
        """What would end each wait of a suspended run: ``name`` of the signal or None, ``deadline`` in ms."""
        ...

    @property
    def phase(self) -> Phase:
        """What the run is doing."""
        ...

    @property
    def since(self) -> float:
        """When that phase began (``time.monotonic``); 0.0 where no time was taken, on Flink's thread."""
        ...

    @property
    def waits_for(self) -> str:
        """What the run waits for, in words; empty where the phase says it all."""
        ...


class RunObserver:
    """Is told what runs do. A subclass overrides the methods that it wants to be called.

    Methods are called by the thread that executes the run: Flink's, the agent loop's or one of the pool, and
    so by several at a time. They must not block. What one raises harms no run: it is counted in the metric
    ``observer_errors``, and the first error of each method is logged.

    A replay reports what it repeats. So what an observer counts depends on failures of the job, as metrics
    do.
    """

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        """Note that ``run`` has left the phase ``before``; None where it begins."""

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        """Note how long an attempt of an action took, on Flink's thread where ``inline``."""

    def events_sent(self, run: ObservedRun, action: str, event_types: Sequence[str]) -> None:
        """Note which events an attempt of an action sent. Called right before :meth:`action_ended`."""

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Note that an attempt of an action raised."""

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Note that an action is to be executed for the ``attempt``-th time."""

    def action_replayed(self, run: ObservedRun, action: str) -> None:
        """Note that the whole of an action came from its record."""

    def action_mismatched(self, run: ObservedRun, action: str) -> None:
        """Note that a replay of an action did not make the calls that were recorded."""

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        """Note that a run continues without an event."""

    def call_begun(self, run: ObservedRun, action: str, function: str, again: bool) -> None:
        """Note that a durable call is made: ``again`` where a replay found no record of it."""

    def call_attempt_failed(
        self, run: ObservedRun, action: str, function: str, attempt: int, error: BaseException
    ) -> None:
        """Note that the ``attempt``-th attempt of a durable call raised, and that another one follows."""

    def call_retried(self, run: ObservedRun, action: str, function: str, attempt: int) -> None:
        """Note that a durable call is to be made for the ``attempt``-th time."""

    def call_recorded(self, run: ObservedRun, action: str, function: str) -> None:
        """Note that the result of a durable call was recorded."""

    def call_content(self, run: ObservedRun, action: str, function: str, what: str, value: Any) -> None:
        """Note a ``value`` of a durable call: ``what`` is ``"request"`` or ``"result"``."""

    def call_failed(self, run: ObservedRun, action: str, function: str, error: BaseException) -> None:
        """Note that a durable call failed for good."""

    def call_replayed(self, run: ObservedRun, action: str, function: str) -> None:
        """Note that a durable call got its recorded outcome."""

    def agent_called(self, run: ObservedRun, action: str, agent: str) -> None:
        """Note that an action calls another agent. What that does is told between this and the answer."""

    def agent_answered(
        self, run: ObservedRun, action: str, agent: str, seconds: float, error: BaseException | None
    ) -> None:
        """Note that a called agent has answered, or has failed by ``error``. Called in the same context."""

    def recorded(self, run: ObservedRun, action: str, records: int) -> None:
        """Note that the store has acknowledged ``records`` records of calls, waits and ends of actions."""

    def memory_written(self, run: ObservedRun, values: Mapping[str, int]) -> None:
        """Note which short-term memory a run wrote: the size of each value in bytes, 0 if it was removed."""

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        """Note a commit, ``seconds`` after the end of the run; None for a run on Flink's thread."""

    def request_answered(self, key_text: str, answer: Mapping[str, Any]) -> None:
        """Note the answer to a request about a key: to inspect it, to end a run, or to erase it."""

    def closed(self) -> None:
        """Note that the task attempt of the subtask ends. Runs may still fail after that."""


ObserverSource = RunObserver | Callable[[], RunObserver]
"""What gives a subtask an observer: an instance, of which each subtask gets a copy, or a class or a function
without arguments, which makes one there."""


def check_observers(sources: Sequence[ObserverSource]) -> tuple[ObserverSource, ...]:
    """Return ``sources`` as a tuple, if each of them may give an observer.

    Raises:
        ObserverError: One of them is neither a ``RunObserver``, nor a class of one, nor a function.
    """
    for source in sources:
        fits = issubclass(source, RunObserver) if isinstance(source, type) else callable(source)
        if not (fits or isinstance(source, RunObserver)):
            raise ObserverError(
                "what is given as an observer gives none",
                expected="an instance or a subclass of RunObserver, or a function that returns an instance",
                found=repr(source)[:200],
                fix="derive the class from flink_agents.RunObserver",
            )
    return tuple(sources)
