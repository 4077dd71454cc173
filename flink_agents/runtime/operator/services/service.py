"""Key services: features that keep data per key, or watch what happens to keys.

``assembly.py`` lists the services of an operator in the order in which they are called, with the reasons. The
module also has what services and operator exchange: outputs (``Emission``) and the times of the timers at the
end of a bounded input (``EndTimes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.heads import Heads, KeyCache
from flink_agents.runtime.operator.loop_access import LoopAccess
from flink_agents.runtime.state.keyed_state import Head, Keys, Timers

START = 2**63 - 2**44
"""Event time of the timer that starts all waiting work when a bounded input ends.

After the end of the input, Flink fires no processing-time timers, but it fires every event-time timer below
the last watermark, in the order of their times. So all keys start before the operator waits for the first
one. Savepoints contain timers with this time.
"""

DRAIN = START + 1
"""Event time of the timer that waits for a key's runs when a bounded input ends."""


@dataclass(frozen=True)
class EndTimes:
    """The event times of the two timers that an agent has at the end of its input.

    A bounded job with checkpoints keeps the watermark of an agent at ``start`` until the agent has no open
    runs. Flink forwards this watermark to the next agent, so the timers of that agent are later.

    Args:
        level: How many agents of the job were applied before this one.
    """

    level: int = 0

    @cached_property
    def start(self) -> int:
        """Event time, in milliseconds, of the timer that starts all waiting work."""
        return START + 2 * self.level

    @cached_property
    def drain(self) -> int:
        """Event time, in milliseconds, of the timer at which Flink's task thread waits for open runs."""
        return self.start + 1

    def is_foreign(self, timestamp: int) -> bool:
        """Return True for a timer at the end of the input that another level registered, before a savepoint.

        The job had other agents when the savepoint was taken.
        """
        return timestamp >= START and timestamp not in (self.start, self.drain)


FIRST_AGENT = EndTimes()
"""The times of the first agent of a job, which no other agent is upstream of."""

_MOST_LEVELS = 10_000
"""An upper bound for the number of agents in a job, each with a level of its own."""


def is_held(watermark: int) -> bool:
    """Return True if a bounded job holds ``watermark`` because its input has ended and runs are open."""
    return START <= watermark < START + 2 * _MOST_LEVELS


@dataclass(slots=True)
class Emission:
    """The outputs of a call of the operator, which its caller emits when the call has returned.

    Attributes:
        outputs: Values for the main output, in order.
        side_outputs: Pairs of a side output's tag and a value, in order.
        timestamps: Event time of each output, in milliseconds or None; empty if the agent was applied without
            ``EventTime.hold_watermarks``.
        side_timestamps: Event time of each side output, in the same form.
    """

    outputs: list[object] = field(default_factory=list)
    side_outputs: list[tuple[str, object]] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    side_timestamps: list[int | None] = field(default_factory=list)

    def take_timed(self, run: Run) -> None:
        """Append all outputs of a run, each with the event time of the run's input."""
        self.outputs += run.outputs
        self.side_outputs += run.side_outputs
        self.timestamps += [run.timestamp] * len(run.outputs)
        self.side_timestamps += [run.timestamp] * len(run.side_outputs)

    def followed_by(self, next_emission: Emission) -> Emission:
        """Append the values of ``next_emission`` to this emission, and return this one."""
        self.outputs += next_emission.outputs
        self.side_outputs += next_emission.side_outputs
        self.timestamps += next_emission.timestamps
        self.side_timestamps += next_emission.side_timestamps
        return self


NOTHING = Emission()
"""The shared empty emission, for calls that commit nothing. Never change it."""


class Schedule(Protocol):
    """The part of ``Heartbeat`` that the operator and its services use. The key is current."""

    def open(self, timers: Timers | None) -> None:
        """Find the restored keys that have work; there are timers only if there is restored state."""

    def added(self, actor: KeyActor, timers: Timers) -> None:
        """Schedule the first check of a new actor: does it have runs to commit?"""

    def arm(self, timers: Timers, new: KeyActor | None = None) -> None:
        """Schedule the next check of all actors.

        Args:
            timers: Timers of the current key.
            new: The only actor with new work since the last call; None if any actor may have some.
        """

    def released(self, actor: KeyActor) -> None:
        """Stop checking an actor whose key has no waiting inputs."""

    def see_the_end(self, timers: Timers) -> None:
        """Register a timer at the end of a bounded input."""


class Operator(Protocol):
    """The part of ``AgentProcessor`` that services use."""

    actors: dict[str, KeyActor]
    cache: KeyCache
    heads: Heads
    loop_access: LoopAccess
    schedule: Schedule
    has_key_timers: bool

    def head_of(self, key_text: str) -> Head | None:
        """Return the head of the current key, from actor, cache or state; None for a key that never came."""
        ...

    def is_blocked(self, head: Head) -> bool:
        """Return True if inputs of a key without an actor stay in state, because suspended runs go first."""
        ...

    def is_held_back(self, key_text: str) -> bool:
        """Return True if the inputs of a key wait for another input, which may be late."""
        ...

    def blocked(self, key_text: str, head: Head) -> None:
        """Notify services that inputs of a key stay in state until a suspended run ends, maybe for days."""

    def make_actor(self, head: Head, key_text: str, pending: bool, timers: Timers) -> KeyActor:
        """Create the actor of a key that has inputs in state."""
        ...

    def feed(self, actor: KeyActor, timers: Timers) -> None:
        """Hand inputs from state to the actor, as far as there is room, and schedule the next check."""

    def withdraw(self, actor: KeyActor) -> None:
        """Remove the actor of a key whose last run was suspended. Its other inputs stay in state."""


class KeyService:
    """A feature that attaches to the operator. Only Flink's task thread calls it, and the key is current.

    A service overrides the hooks that it needs. The operator never calls a hook that no service overrides.

    Attributes:
        has_key_timers: True if keys may have timers of this service from the start; see :meth:`fired`.
    """

    has_key_timers: bool = False
    operator: Operator

    def attach(self, operator: Operator) -> None:
        """Store the operator that the service belongs to."""
        self.operator = operator
        operator.has_key_timers = operator.has_key_timers or self.has_key_timers

    # -- the operator opens -----------------------------------------------------------

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find the data of this service in restored state. May change Flink's current key.

        Args:
            keys: The keys of the subtask.
            waiting: The keys with inputs in state.
            timers: Timers; None if there is no restored state.

        Returns:
            True if the operator has to schedule a heartbeat for that data.
        """
        raise NotImplementedError

    # -- inputs -----------------------------------------------------------------------

    def blocked(self, key_text: str, head: Head) -> None:
        """Note that inputs of a key stay in state until a suspended run ends, maybe for days."""

    # -- timers -----------------------------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Do the due work of the current key. The timer may belong to another service.

        The operator calls it only if ``AgentProcessor.has_key_timers`` is set.

        Args:
            key_text: The current key, as canonical text.
            at: The time of the timer in milliseconds: event time from ``START`` on, else wall-clock time or
                event time.
            timers: Timers of the key.
            out: Receives outputs.
        """


class Hooks:
    """The hooks of one operator, each resolved once. Only for Flink's task thread.

    A hook is a tuple of bound methods, in the order of the services. It is empty if no service overrides it.

    Args:
        services: The services, in the order in which they are called.

    Attributes:
        services: The services.
    """

    restored: tuple[Callable[..., bool], ...]
    blocked: tuple[Callable[..., None], ...]
    fired: tuple[Callable[..., None], ...]

    def __init__(self, services: Iterable[KeyService]) -> None:
        self.services = tuple(services)
        for name in HOOKS:
            hooks = [getattr(service, name) for service in self.services]
            inherited = getattr(KeyService, name)
            own_hooks = (hook for hook in hooks if hook.__func__ is not inherited)
            setattr(self, name, tuple(own_hooks))


HOOKS = tuple(Hooks.__annotations__)
"""The names of the hooks, as ``KeyService`` documents them."""
