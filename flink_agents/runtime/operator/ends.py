"""Times of the timers that end a bounded input."""

from __future__ import annotations

START = 2**63 - 2**44
"""Event time of the timer that starts what waits when a bounded input ends.

Flink fires no processing-time timer after the end of the input, but every event-time timer
below the last watermark, in the order of their times. So all keys start before the first one is
waited for. Savepoints have timers of that time.
"""

DRAIN = START + 1
"""Event time of the timer that waits for a key's runs when a bounded input ends."""
