"""How long and how wide the cluster tests run: CI's measure, or that of ``scripts/chaos``."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Combination:
    """A way to run the job.

    Attributes:
        backend: State backend.
        unaligned: Whether barriers overtake records.
        taskmanagers: Number of TaskManagers; at 2, one of them lives on when the other is killed.
    """

    backend: str
    unaligned: bool
    taskmanagers: int

    def __str__(self) -> str:
        return f"{self.backend}-{'unaligned' if self.unaligned else 'aligned'}-{self.taskmanagers}tm"

    @property
    def options(self) -> dict[str, str]:
        """Flink's options for it."""
        return {
            "state.backend.type": self.backend,
            "execution.checkpointing.unaligned.enabled": str(self.unaligned).lower(),
        }


@dataclass(frozen=True)
class Settings:
    """Measures of the tests.

    Attributes:
        seed: Of durations and of the moments of kills.
        kills: How many TaskManagers are killed.
        records: How many records a job has.
        combinations: For the test of kills.
        rescales: Pairs of parallelism, before and after.
    """

    seed: int
    kills: int
    records: int
    combinations: Sequence[Combination]
    rescales: Sequence[tuple[int, int]]

    @classmethod
    def from_environment(cls) -> Settings:
        """``CHAOS_LONG`` chooses the long version; the others set one value each."""
        long = os.environ.get("CHAOS_LONG", "") not in ("", "0")
        kills = int(os.environ.get("CHAOS_KILLS", 10 if long else 2))
        all_ = [Combination(*each) for each in product(("hashmap", "rocksdb"), (False, True), (1, 2))]
        return cls(
            seed=int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1_000_000))),
            kills=kills,
            records=int(os.environ.get("CHAOS_RECORDS", 2000 * (kills + 1) if long else 4000)),
            combinations=all_ if long else [Combination("rocksdb", unaligned=True, taskmanagers=1)],
            rescales=[(2, 1), (2, 3), (1, 2), (3, 1)] if long else [(2, 1)],
        )


SETTINGS = Settings.from_environment()
