"""Event times of the timers that fire when a bounded input ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
        """The time at which all waiting work starts."""
        return START + 2 * self.level

    @cached_property
    def drain(self) -> int:
        """The time at which Flink's task thread waits for runs that have not ended."""
        return self.start + 1

    def is_foreign(self, timestamp: int) -> bool:
        """Return True if a timer at the end belongs to another level: the job had other agents then."""
        return timestamp >= START and timestamp not in (self.start, self.drain)


FIRST_AGENT = EndTimes()

_MOST_LEVELS = 10_000
"""An upper bound for the agents of a job."""


def is_held(watermark: int) -> bool:
    """Return True if a bounded job holds ``watermark`` because its input has ended and runs are open."""
    return START <= watermark < START + 2 * _MOST_LEVELS
