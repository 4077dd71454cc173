"""A chaos run: the durable job on a cluster whose TaskManagers are killed, watched and checked."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from flink_agents.api.errors import AgentsError
from tests.cluster.blows import Blown, Blows, blow_plan
from tests.cluster.branching_check import judge
from tests.cluster.broker_trouble import BrokerTrouble, Troubles
from tests.cluster.counting_check import CommittedOutput
from tests.cluster.durable_check import Verdict, Workload
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.flink_rest import ClusterJob
from tests.cluster.settings import Combination

SCRIPT = Path(__file__).with_name("durable_job.py")
STUCK_KEYS = 10
LOOK_SECONDS = 5.0
RUNS_OF_A_STUCK_KEY = 2

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
        rebuilds: How many of the kills fall into the rebuild of a store in a broker.
        overlaps: How many attempts stand still, and go on beside their successors.
    """

    workload: Workload
    kills: int
    seed: int
    per_second: float = 250
    combination: Combination = field(default_factory=lambda: Combination("hashmap", unaligned=False))
    stuck_after: float = 60
    rebuilds: int = 0
    overlaps: int = 0


class RunFiles:
    """What the durable job writes.

    Args:
        directory: Where its sinks write.
        effects: The file for the effects of calls. Default: one in the directory.
    """

    def __init__(self, directory: Path, effects: Path | None = None) -> None:
        self.outputs = CommittedOutput(directory / "out")
        self.windows = CommittedOutput(directory / "windows")
        self._directory = directory
        self._effects = effects or directory / "effects"

    def arguments(self, workload: Workload, per_second: float, seed: int) -> list[str]:
        """Arguments of the job that writes them."""
        return [
            *("--output", str(self._directory / "out"), "--windows", str(self._directory / "windows")),
            *("--effects", str(self._effects), "--events", str(workload.events)),
            *(
                "--job",
                workload.job,
                "--keys",
                str(workload.keys),
                "--per-second",
                str(per_second),
                "--seed",
                str(seed),
            ),
        ]

    def effect_bytes(self) -> int:
        """Length of the file of effects."""
        return self._effects.stat().st_size if self._effects.exists() else 0

    def effects(self, begin: int = 0) -> list[str]:
        """The lines of the file of effects, from a position on."""
        text = self._effects.read_bytes()[begin:].decode("ascii") if self._effects.exists() else ""
        # A job that did not end may be writing a line.
        return [line[:-1] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def verdict(
        self, workload: Workload, effects: Iterable[str] | None = None, killed: Collection[int] = ()
    ) -> Verdict:
        """In what they differ from the model.

        Args:
            workload: What the job had to do.
            effects: The lines of effects that count; None for all.
            killed: Ids of processes that were killed.
        """
        lines = self.effects() if effects is None else effects
        return judge(self.outputs.lines(), self.windows.lines(), lines, workload, killed)


@dataclass
class Report:
    """What came of a run.

    Attributes:
        chaos: What it was made of.
        store: Name of the store.
        verdict: Differences from the model.
        done: What was done to TaskManagers.
        broker: What was done to the broker of the store; None for a store without one.
        checkpoints: How many completed.
        recoveries: How often the job was restored from one.
        recovery_seconds: From each kill, or the last of some in a row, until there was new output.
        replaced: How many TaskManagers could run no Python any more.
        failure: Why the run did not come to its end; None where it did.
    """

    chaos: Chaos
    store: str
    verdict: Verdict = field(default_factory=Verdict)
    done: Blown = field(default_factory=Blown)
    broker: Troubles | None = None
    checkpoints: int = 0
    recoveries: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    replaced: int = 0
    failure: str | None = None

    @property
    def clean(self) -> bool:
        """Whether it came to its end, as the model says."""
        return self.failure is None and self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """One object with all counters; the failure by its first line."""
        seconds = self.recovery_seconds
        spread = {"p50": median(seconds), "max": max(seconds)} if seconds else {}
        done = asdict(self.done)
        done["late_effects"] = len(done.pop("late"))
        figures: dict[str, Any] = {
            "store": self.store,
            "seed": self.chaos.seed,
            "job": self.chaos.workload.job,
            "events": self.verdict.events,
            "keys": self.chaos.workload.keys,
            "combination": str(self.chaos.combination),
            **done,
            **self.verdict.counts(),
            "checkpoints": self.checkpoints,
            "recoveries": self.recoveries,
            "replaced": self.replaced,
            "recovery_seconds": {name: round(value, 1) for name, value in spread.items()},
        }
        if self.broker is not None:
            longest = round(self.broker.longest_seconds, 1)
            figures["broker"] = {**asdict(self.broker), "longest_seconds": longest}
        if examples := self.verdict.examples():
            figures["examples"] = examples
        if self.failure is not None:
            figures["failure"] = self.failure.splitlines()[0]
        return figures


class DurableRun:
    """See the module.

    Args:
        cluster: Where it runs; its TaskManagers are replaced.
        directory: Where the job writes.
        chaos: What it is made of.
        store: Where durable calls are recorded.
        trouble: What the broker of the store has to go through; None for a store without one.
    """

    def __init__(
        self,
        cluster: FlinkCluster,
        directory: Path,
        chaos: Chaos,
        store: RunStore,
        trouble: BrokerTrouble | None = None,
    ) -> None:
        self._cluster = cluster
        self._chaos = chaos
        self._store = store
        self._trouble = trouble
        self.files = RunFiles(directory)
        self._chance = random.Random(chaos.seed)
        self._replaced = 0
        self._looked = time.monotonic()
        self._slots = chaos.combination.parallelism // chaos.combination.taskmanagers
        self._arguments = self.files.arguments(chaos.workload, chaos.per_second, chaos.seed)

    def execute(self) -> Report:
        """Run the job to its end, kill meanwhile, and compare."""
        chaos = self._chaos
        report = Report(self._chaos, self._store.name)
        self._cluster.fresh_taskmanagers(chaos.combination.taskmanagers, self._slots)
        options = {**OPTIONS, **chaos.combination.options, **self._store.flink_options}
        options |= chaos.workload.options
        job = self._cluster.submit(
            SCRIPT, *self._arguments, parallelism=chaos.combination.parallelism, options=options
        )
        try:
            with self._trouble or nullcontext():
                self._hurt(job, report)
                self.advance(job, "the end of the job", lambda: job.state() == "FINISHED")
        except AssertionError as error:
            report.failure = str(error)
        report.broker = self._trouble.done if self._trouble else None
        report.replaced = self._replaced
        # Whatever is missing after a failure must not hide it.
        with suppress(OSError, AssertionError):
            counts = job.checkpoints()
            report.checkpoints = counts["completed"]
            report.recoveries = counts["restored"]
            if report.failure is not None:
                job.cancel()
        report.verdict = self._verdict(report.done)
        try:
            report.verdict.repeated_after_record += self._store.recorded_twice()
        except AgentsError as error:
            report.failure = report.failure or f"the store cannot be read: {error}"
        return report

    def _hurt(self, job: ClusterJob, report: Report) -> None:
        """Do to TaskManagers what follows from the seed."""
        chaos = self._chaos
        watched = _Watched(self, job)
        blows = Blows(self._cluster, self._slots, self._store, watched, self._chance, self._trouble)
        report.done = blows.done
        for blow in blow_plan(self._chance, chaos.kills, chaos.rebuilds, chaos.overlaps):
            wanted = int(blow.part * chaos.workload.events)
            self.advance(job, f"{wanted} outputs", partial(self._has_outputs, wanted))
            blows.strike(blow)
            if blow.kind != "overlap":  # there was output before it ended, and the job may have ended since
                struck = time.monotonic()
                watched.wait_for_output()
                report.recovery_seconds.append(time.monotonic() - struck)
            done = f"{blow.kind}: {report.done.kills} of {chaos.kills} killed"
            print_line(f"{done}, {self.files.outputs.count()} outputs")

    # -- watching ---------------------------------------------------------------------

    def progress(self) -> int:
        """How many lines of output there are."""
        return self.files.outputs.count() + self.files.windows.count()

    def _has_outputs(self, count: int) -> bool:
        return self.files.outputs.count() >= count

    def has_all_output(self, job: ClusterJob) -> bool:
        """Whether the job has ended, and nothing more will come."""
        return self._has_outputs(self._chaos.workload.events) and job.state() == "FINISHED"

    def _has_more_than(self, progress: int) -> bool:
        return self.progress() > progress

    def advance(self, job: ClusterJob, what: str, reached: Callable[[], bool]) -> None:
        """Wait as long as there is new output, until ``reached``."""
        while not reached():
            progress = self.progress()

            def moved(before: int = progress) -> bool:
                self._replace_broken(job)
                return self._has_more_than(before) or reached()

            try:
                awaited = f"{what}, or more than {progress} lines of output"
                self._cluster.wait_for(awaited, moved, job, self._chaos.stuck_after)
            except AssertionError as error:
                raise StuckError(f"{error}\n{self._stuck_keys()}") from None

    def _replace_broken(self, job: ClusterJob) -> None:
        """Replace TaskManagers that can run no Python any more, now and then."""
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._looked = time.monotonic()
            self._replaced += self._cluster.replace_broken(job, self._slots)

    def _stuck_keys(self) -> str:
        """The journals of keys that are the farthest behind, from their first run without output."""
        work = self._chaos.workload
        came = {int(line.split()[1]) for line in self.files.outputs.lines()}
        missing_numbers = [number for number in reversed(range(work.events)) if number not in came]
        missing = {work.key_of(number): number // work.keys for number in missing_numbers}
        behind = sorted(missing.items(), key=itemgetter(1))[:STUCK_KEYS]
        runs = [(key, seq + more) for key, seq in behind for more in range(RUNS_OF_A_STUCK_KEY)]
        return self._store.show(runs)

    def _verdict(self, done: Blown) -> Verdict:
        # What a stale attempt did by itself is judged by its results, which must not be anybody's.
        late = set(done.late)
        effects = [line for line in self.files.effects() if line not in late]
        return self.files.verdict(self._chaos.workload, effects, self._cluster.killed)


class _Watched:
    """The job of a run, as blows see it."""

    def __init__(self, run: DurableRun, job: ClusterJob) -> None:
        self._run = run
        self._job = job

    def effect_bytes(self) -> int:
        return self._run.files.effect_bytes()

    def effects_behind(self, position: int) -> list[str]:
        return self._run.files.effects(position)

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        def reached_in_time() -> bool:
            if not reached() and self._job.state() == "FINISHED":
                raise StuckError(f"the job ended before {what}: it needs more events, or fewer a second")
            return reached()

        self._run.advance(self._job, what, reached_in_time)

    def wait_for_output(self) -> None:
        progress = self._run.progress()

        def came() -> bool:
            return self._run.progress() > progress or self._run.has_all_output(self._job)

        self._run.advance(self._job, "new output", came)


def print_line(line: str) -> None:
    """A line for people, beside the JSON on standard output."""
    print(line, file=sys.stderr, flush=True)
