"""Counts the suspended runs of a subtask by kind of wait, and reports the age of the oldest wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flink_agents.api.events.approvals import APPROVAL_SIGNAL

TIMER, SIGNAL, APPROVAL = "timer", "signal", "approval"


class _Suspended(NamedTuple):
    since: float
    kinds: tuple[str, ...]


class OpenWaitGauge:
    """The suspended runs that this attempt has seen. Only Flink's thread writes; any thread may read.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        # In the order of their suspension: the first one has waited longest.
        self._runs: dict[tuple[str, int], _Suspended] = {}
        self._counts: Counter[str] = Counter()

    def suspended(self, key_text: str, seq: int, waits: Iterable[Any], since: float | None = None) -> None:
        """Note a suspended run.

        Args:
            key_text: Its key.
            seq: Its sequence number.
            waits: Its waits, each with its ``kind`` and ``name``; see ``runtime.state.suspended``.
            since: When it was suspended, if that was in an earlier attempt.
        """
        self.resumed(key_text, seq)
        kinds = tuple({_kind(wait) for wait in waits})
        self._counts.update(kinds)
        self._runs[key_text, seq] = _Suspended(since or self._now(), kinds)

    def resumed(self, key_text: str, seq: int) -> None:
        """Record that a run resumes, or has ended."""
        if (known := self._runs.pop((key_text, seq), None)) is not None:
            self._counts.subtract(known.kinds)

    def read(self) -> dict[str, int]:
        """Return the gauges: runs by kind of wait, and the age of the oldest wait in milliseconds."""
        try:
            first = next(iter(self._runs.values()), None)
        except RuntimeError:
            # Flink's thread has just changed it. The next reading comes soon.
            first = None
        oldest = 0 if first is None else max(0, int(1000 * (self._now() - first.since)))
        return {kind: self._counts[kind] for kind in (TIMER, SIGNAL, APPROVAL)} | {
            "suspended": len(self._runs),
            "oldest_ms": oldest,
        }


def _kind(wait: Any) -> str:
    return APPROVAL if wait.name == APPROVAL_SIGNAL else wait.kind
