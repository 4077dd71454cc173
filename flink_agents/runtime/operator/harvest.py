"""When Flink's thread looks at an actor next.

Nothing can wake Flink's thread, so a timer per busy key has to guess when its run ends: first
the time that a run takes here, then a fraction of its age. The times lie on a grid that becomes
coarser with the number of busy keys, so that the timers of many keys fire together.
"""

from __future__ import annotations

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop

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
