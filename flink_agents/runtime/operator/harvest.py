"""When Flink's thread looks at an actor next.

Nothing can wake Flink's thread, so a timer has to guess when a run ends: first the time that a run
takes here, then a fraction of its age. Where each busy key has a timer, the times lie on a grid that
becomes coarser with their number, so that the timers of many keys fire together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from flink_agents.api.agents.observers import Phase
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop

START = 2**63 - 2**44
"""Event time of the timer that starts what waits when a bounded input ends.

Flink fires no processing-time timer after the end of the input, but every event-time timer
below the last watermark, in the order of their times. So all keys start before the first one is
waited for. Savepoints have timers of that time.
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
        """When all that waits starts."""
        return START + 2 * self.level

    @cached_property
    def drain(self) -> int:
        """When Flink's thread waits for the runs that are still open."""
        return self.start + 1

    def is_foreign(self, timestamp: int) -> bool:
        """Return True if a timer at the end belongs to another level: the job had other agents then."""
        return timestamp >= START and timestamp not in (self.start, self.drain)


FIRST_AGENT = EndTimes()

_MOST_LEVELS = 10_000
"""More agents than a job ever has."""


def is_held(watermark: int) -> bool:
    """Return True if a bounded job holds a watermark there: the input has ended, and runs are open."""
    return START <= watermark < START + 2 * _MOST_LEVELS


MAX_DELAY_MS = 500
MANY_KEYS = 1024
"""With so many busy keys, looks in vain cost more than results that wait."""

MAX_DELAY_OF_MANY_MS = 2000
"""The longest delay among many busy keys, where all runs take about the same time."""


def next_look(now: int, loop: AgentLoop, actor: KeyActor, busy_keys: int) -> int:
    """When to look at the actor, in milliseconds since the epoch."""
    grid = grid_ms(busy_keys)
    many = busy_keys >= MANY_KEYS
    alike = loop.deviation <= loop.expected / 8
    # A look in vain costs more than a result that waits until the next point of the grid.
    expected = 1000 * (loop.expected if grid == 1 else loop.expected + 2 * loop.deviation)
    age = loop.age(actor) * 1000 if actor.running else 0.0
    delay = expected - age if age < expected else age / (4 if many else 16)
    longest = MAX_DELAY_OF_MANY_MS if many and alike and age < expected else MAX_DELAY_MS
    return (now + min(longest, int(delay)) + grid) // grid * grid


def grid_ms(busy_keys: int) -> int:
    """Distance of the points of the grid."""
    return 1 if busy_keys < 64 else 5 if busy_keys < MANY_KEYS else 20


FEW_KEYS = 64
"""Up to so many busy keys, a beat is timed by each of them."""

BEAT_OF_MANY_MS = 5
"""The least distance of two beats among more busy keys."""


def next_beat(now: int, loop: AgentLoop, busy_keys: int, actors: Iterable[KeyActor]) -> int:
    """When to look at what has finished, of all actors, in milliseconds since the epoch.

    Flink fires a timer of the present time a millisecond later.

    Args:
        now: The present.
        loop: What executes their runs.
        busy_keys: How many actors there are.
        actors: Those of which one may finish first; not needed where there are many.
    """
    expected = 1000 * loop.expected
    if busy_keys >= FEW_KEYS:
        # Runs that began at any time end at so many in a second.
        delay = int(min(MAX_DELAY_MS, expected / max(1, loop.in_flight)))
        return -(-(now + delay) // BEAT_OF_MANY_MS) * BEAT_OF_MANY_MS
    shortest: float = MAX_DELAY_MS
    for actor in actors:
        state = actor.state
        if state is None or state.phase is not Phase.INPUT:
            age = loop.age(actor) * 1000 if actor.running else 0.0
            shortest = min(shortest, expected - age if age < expected else age / 16)
    return now + int(shortest)
