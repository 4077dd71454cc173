"""From one process and two small jobs to layouts, many keys, and a million inputs per second.

The model has three assumptions:

1. A process runs Python code on one core at a time, so its inputs per second do not depend on its slots.
2. Processes share nothing but cores: their rates add up until each core has one.
3. What keys and suspended runs cost is a line through two small jobs.

``million`` adds what a deployment chooses: how busy a process may be, the size of a record, the time between
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from benchmarks.scale.cluster import Layout

TOLERANCE = 0.2
"""A prediction may be wrong by this share of what was measured."""

MILLION = 1_000_000
UTILISATION = 0.6
"""The share of its possible inputs that a process gets, so that it can catch up after a restart."""

RECORD_BYTES = 500
CHECKPOINT_SECONDS = 10
KEYS = 1_000_000_000


@dataclass(frozen=True)
class InputCost:
    """What an input costs.

    Attributes:
        seconds: The time until the next input in one process with one slot.
        core_seconds: The same if all threads of the process share one core.
        journal_bytes: What its durable steps add to the journal.
    """

    seconds: float
    core_seconds: float
    journal_bytes: float = 0.0

    def rate(self, layout: Layout) -> float:
        """Return the inputs per second of a layout with at most as many processes as cores."""
        return layout.taskmanagers / (self.core_seconds if layout.pinned else self.seconds)


@dataclass(frozen=True)
class Line:
    """A figure that grows with the number of keys or runs."""

    fixed: float
    each: float

    @classmethod
    def through(cls, first: tuple[int, float], second: tuple[int, float]) -> Line:
        """Return the line through two points ``(number, figure)``; it never falls."""
        each = max(0.0, (second[1] - first[1]) / (second[0] - first[0]))
        return cls(second[1] - each * second[0], each)

    def at(self, number: int) -> float:
        """Return the figure for a number of keys or runs."""
        return self.fixed + self.each * number


@dataclass(frozen=True)
class Prediction:
    """A prediction beside what was measured."""

    figure: str
    predicted: float
    measured: float

    def judge(self) -> dict[str, object]:
        """Return the prediction's entry in the report."""
        ratio = self.predicted / self.measured
        return {
            "figure": self.figure,
            "predicted": self.predicted,
            "measured": self.measured,
            "ratio": ratio,
            "met": abs(ratio - 1) <= TOLERANCE,
        }


def million(cost: InputCost, resident_bytes: float, key_bytes: Line, restart: Line) -> dict[str, float]:
    """Return what a million inputs per second need.

    Args:
        cost: The cost of an input.
        resident_bytes: The memory of a process.
        key_bytes: The size of a checkpoint by the number of keys.
        restart: The seconds of a restart by the number of keys of a process.
    """
    processes = ceil(MILLION * cost.core_seconds / UTILISATION)
    return {
        "processes_and_cores": processes,
        "memory_gb": processes * resident_bytes / 1e9,
        "shuffle_mb_per_second": MILLION * RECORD_BYTES * (processes - 1) / processes / 1e6,
        "journal_mb_per_second": MILLION * cost.journal_bytes / 1e6,
        "journal_gb_of_a_restart": MILLION * cost.journal_bytes * CHECKPOINT_SECONDS / 1e9,
        "state_gb": KEYS * key_bytes.each / 1e9,
        "restart_seconds": restart.at(KEYS // processes),
    }
