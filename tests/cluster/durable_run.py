"""A chaos run: the durable job on a cluster whose TaskManagers are killed, watched and judged."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from flink_agents.api.errors import AgentsError
from tests.cluster.counting_check import CommittedOutput
from tests.cluster.durable_check import Verdict, Workload, judge
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.flink_rest import ClusterJob
from tests.cluster.settings import Combination

SCRIPT = Path(__file__).with_name("durable_job.py")
STUCK_KEYS = 10
RUNS_OF_A_STUCK_KEY = 2

AGAIN = 0.25
"""How many of the kills fall into the recovery from the kill before."""

AGAIN_SECONDS = 10.0
"""How long after that one, at most."""

OPTIONS = {"execution.checkpointing.interval": "500 ms"}
"""Flink options of the job: fewer files, and more than one record between two checkpoints."""


class StuckError(AssertionError):
    """The output did not advance, or the job died."""


@dataclass(frozen=True)
class Chaos:
    """What a run is made of.

    Attributes:
        workload: What the job does.
        kills: How many TaskManagers are killed.
        seed: Of durations and of the moments of kills.
        per_second: Speed of the source.
        combination: How Flink runs the job.
        stuck_after: Seconds without any new output after which the run fails.
    """

    workload: Workload
    kills: int
    seed: int
    per_second: float = 250
    combination: Combination = field(default_factory=lambda: Combination("hashmap", unaligned=False))
    stuck_after: float = 60


@dataclass
class Report:
    """What came of a run.

    Attributes:
        chaos: What it was made of.
        store: Name of the store.
        verdict: Differences from the model.
        kills: How many TaskManagers were killed.
        checkpoints: How many completed.
        recoveries: How often the job was restored from one.
        recovery_seconds: From each kill, or the last of some in a row, until there was new output.
        failure: Why the run did not come to its end; None where it did.
    """

    chaos: Chaos
    store: str
    verdict: Verdict = field(default_factory=Verdict)
    kills: int = 0
    checkpoints: int = 0
    recoveries: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def clean(self) -> bool:
        """Whether it came to its end, as the model says."""
        return self.failure is None and self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """One object with all counters; the failure by its first line."""
        seconds = sorted(self.recovery_seconds)
        seconds = self.recovery_seconds
        spread = {"p50": median(seconds), "max": max(seconds)} if seconds else {}
        found: dict[str, Any] = {
            "store": self.store,
            "seed": self.chaos.seed,
            "events": self.verdict.events,
            "keys": self.chaos.workload.keys,
            "combination": str(self.chaos.combination),
            "kills": self.kills,
            **self.verdict.counts(),
            "checkpoints": self.checkpoints,
            "recoveries": self.recoveries,
            "recovery_seconds": {name: round(value, 1) for name, value in spread.items()},
        }
        if examples := self.verdict.examples():
            found["examples"] = examples
        if self.failure is not None:
            found["failure"] = self.failure.splitlines()[0]
        return found


class DurableRun:
    """See the module.

    Args:
        cluster: Where it runs; its TaskManagers are replaced.
        directory: Where the job writes.
        chaos: What it is made of.
        store: Where durable calls are recorded.
    """

    def __init__(self, cluster: FlinkCluster, directory: Path, chaos: Chaos, store: RunStore) -> None:
        self._cluster = cluster
        self._chaos = chaos
        self._store = store
        self._outputs = CommittedOutput(directory / "out")
        self._windows = CommittedOutput(directory / "windows")
        self._effects = directory / "effects"
        self._chance = random.Random(chaos.seed)
        self._slots = chaos.combination.parallelism // chaos.combination.taskmanagers
        self._arguments = [
            *("--output", str(directory / "out"), "--windows", str(directory / "windows")),
            *("--effects", str(self._effects), "--events", str(chaos.workload.events)),
            *("--keys", str(chaos.workload.keys), "--per-second", str(chaos.per_second)),
            *("--seed", str(chaos.seed)),
        ]

    def execute(self) -> Report:
        """Run the job to its end, kill meanwhile, and compare."""
        chaos, report = self._chaos, Report(self._chaos, self._store.name)
        self._cluster.fresh_taskmanagers(chaos.combination.taskmanagers, self._slots)
        options = {**OPTIONS, **chaos.combination.options, **self._store.flink_options}
        job = self._cluster.submit(
            SCRIPT, *self._arguments, parallelism=chaos.combination.parallelism, options=options
        )
        try:
            self._hurt(job, report)
            self._advance(job, "the end of the job", lambda: job.state() == "FINISHED")
        except StuckError as error:
            report.failure = str(error)
        # Whatever is missing after a failure must not hide it.
        with suppress(OSError, AssertionError):
            counts = job.checkpoints()
            report.checkpoints, report.recoveries = counts["completed"], counts["restored"]
            if report.failure is not None:
                job.cancel()
        report.verdict = self._verdict()
        try:
            report.verdict.repeated_after_record += self._store.recorded_twice()
        except AgentsError as error:
            report.failure = report.failure or f"the store cannot be read: {error}"
        return report

    def _hurt(self, job: ClusterJob, report: Report) -> None:
        """Kill TaskManagers at moments that follow from the seed."""
        for part, pauses in kill_plan(self._chance, self._chaos.kills):
            wanted = int(part * self._chaos.workload.events)
            self._advance(job, f"{wanted} outputs", partial(self._has_outputs, wanted))
            for pause in pauses:
                time.sleep(pause)
                self._cluster.kill(self._chance.choice(self._cluster.taskmanagers))
                self._cluster.start_taskmanager(self._slots)
                report.kills += 1
            killed, before = time.monotonic(), self._progress()
            self._advance(job, "new output after a kill", partial(self._has_more_than, before))
            report.recovery_seconds.append(time.monotonic() - killed)
            tell(f"{report.kills} of {self._chaos.kills} killed, {self._outputs.count()} outputs")

    # -- watching ---------------------------------------------------------------------

    def _progress(self) -> int:
        return self._outputs.count() + self._windows.count()

    def _has_outputs(self, count: int) -> bool:
        return self._outputs.count() >= count

    def _has_more_than(self, progress: int) -> bool:
        return self._progress() > progress

    def _advance(self, job: ClusterJob, what: str, reached: Callable[[], bool]) -> None:
        """Wait as long as there is new output, until ``reached``."""
        while not reached():
            before = self._progress()

            def moved(before: int = before) -> bool:
                return self._has_more_than(before) or reached()

            try:
                awaited = f"{what}, or more than {before} lines of output"
                self._cluster.wait_for(awaited, moved, job, self._chaos.stuck_after)
            except AssertionError as error:
                raise StuckError(f"{error}\n{self._stuck_keys()}") from None

    def _stuck_keys(self) -> str:
        """The journals of keys that are the farthest behind, from their first run without output."""
        events, keys = self._chaos.workload.events, self._chaos.workload.keys
        came = {int(line.split()[1]) for line in self._outputs.lines()}
        missing = {number % keys: number // keys for number in reversed(range(events)) if number not in came}
        behind = sorted(missing.items(), key=itemgetter(1))[:STUCK_KEYS]
        runs = [(key, seq + more) for key, seq in behind for more in range(RUNS_OF_A_STUCK_KEY)]
        return self._store.show(runs)

    def _verdict(self) -> Verdict:
        text = self._effects.read_text(encoding="ascii") if self._effects.exists() else ""
        # A job that did not end may be writing a line.
        effects = [line[:-1] for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return judge(self._outputs.lines(), self._windows.lines(), effects, self._chaos.workload)


def kill_plan(chance: random.Random, kills: int) -> list[tuple[float, list[float]]]:
    """When to kill: after which part of the output, and the seconds to wait before each kill there."""
    pauses: list[list[float]] = []
    for _ in range(kills):
        if pauses and chance.random() < AGAIN:
            pauses[-1].append(chance.uniform(0, AGAIN_SECONDS))
        else:
            # Output grows when a checkpoint completes; the kill must be able to fall anywhere else.
            pauses.append([chance.uniform(0, 1)])
    return list(zip(sorted(chance.uniform(0.05, 0.8) for _ in pauses), pauses, strict=True))


def tell(line: str) -> None:
    """A line for people, beside the JSON on standard output."""
    print(line, file=sys.stderr, flush=True)
