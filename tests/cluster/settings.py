"""Duration and parallelism of the cluster tests: those of CI, or those of ``scripts/chaos``."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

DURABLE_JOBS = ("chain", "branching")
"""The jobs that make durable calls. Each one runs with one store in CI, and with both in the long version."""


@dataclass(frozen=True)
class Combination:
    """A way to run the job.

    Attributes:
        backend: State backend.
        unaligned: Whether barriers overtake records.
        parallelism: Of the agent, and the number of all slots.
        taskmanagers: Number of TaskManagers; at 2, one of them lives on when the other is killed.
    """

    backend: str
    unaligned: bool
    parallelism: int = 2
    taskmanagers: int = 1

    def __str__(self) -> str:
        alignment = "unaligned" if self.unaligned else "aligned"
        return f"{self.backend}-{alignment}-p{self.parallelism}-{self.taskmanagers}tm"

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
        many_keys: Number of keys of the test with many of them, and how often each comes.
        many_keys_in: How that one runs.
        rescales: How the job runs first, and its parallelism afterwards.
        durable_kills: How many TaskManagers are killed while durable calls are made.
        durable_events: How many events that job has.
        durable_in: How it runs, and which job it is.
        restored_from: Stores of the jobs that begin at what another one left.
        kafka_jobs: Which jobs run with the store kafka.
        kafka_events: How many events they have.
        kafka_overlaps: How many attempts then go on beside their successors.
        kafka_outage: For how many seconds the broker is away once.
    """

    seed: int
    kills: int
    records: int
    combinations: Sequence[Combination]
    many_keys: tuple[int, int]
    many_keys_in: Sequence[Combination]
    rescales: Sequence[tuple[Combination, int]]
    durable_kills: int
    durable_events: int
    durable_in: Sequence[tuple[Combination, str]]
    restored_from: tuple[str, ...]
    kafka_jobs: tuple[str, ...]
    kafka_events: int
    kafka_overlaps: int
    kafka_outage: float

    @classmethod
    def from_environment(cls) -> Settings:
        """``CHAOS_LONG`` chooses the long version; the others set one value each."""
        long = os.environ.get("CHAOS_LONG", "") not in ("", "0")
        kills = int(os.environ.get("CHAOS_KILLS", 10 if long else 2))
        durable_kills = int(os.environ.get("CHAOS_KILLS", 30 if long else 3))
        modes = list(product(("hashmap", "rocksdb"), (False, True)))
        all_ = [Combination(*mode, *slots) for mode in modes for slots in ((1, 1), (2, 1), (2, 2))]
        pairs = [(2, 1), (2, 3), (1, 2), (3, 1)]
        rescales = [
            (Combination(*mode, initial_parallelism), after)
            for mode in modes
            for initial_parallelism, after in pairs
        ]
        durable = [Combination("hashmap", False, 2, 2), Combination("rocksdb", unaligned=True)]
        # Together, the three tests of the short version have each backend, alignment and parallelism.
        return cls(
            seed=int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1_000_000))),
            kills=kills,
            records=int(os.environ.get("CHAOS_RECORDS", 2000 * (kills + 1) if long else 4000)),
            combinations=all_ if long else [Combination("rocksdb", unaligned=True)],
            many_keys=(5000, 10 if long else 2),
            many_keys_in=all_ if long else [Combination("hashmap", unaligned=False, parallelism=1)],
            rescales=rescales if long else [(Combination("hashmap", unaligned=True), 1)],
            durable_kills=durable_kills,
            durable_events=int(os.environ.get("CHAOS_EVENTS", 500 * (durable_kills + 1))),
            durable_in=list(product(durable, DURABLE_JOBS)) if long else [(durable[0], "branching")],
            restored_from=("sqlite", "kafka") if long else ("sqlite",),
            kafka_jobs=DURABLE_JOBS if long else ("chain",),
            kafka_events=int(os.environ.get("CHAOS_EVENTS", 100_000 if long else 500 * (durable_kills + 1))),
            kafka_overlaps=3 if long else 0,
            kafka_outage=60 if long else 0,
        )


SETTINGS = Settings.from_environment()
