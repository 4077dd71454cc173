"""A job whose runs sleep or wait for answers, on a cluster: submitted, disturbed, and checked."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster.counting_check import CommittedOutput
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.flink_rest import ClusterJob

SCRIPT = Path(__file__).with_name("waits_job.py")

MOST_BYTES = 2048
"""What a run that waits may have in state."""

QUIET_SECONDS = 2.0
"""How long a job that never ends may still put out what it must not, behind its last output."""


@dataclass(frozen=True)
class WaitsReport:
    """What came of a run, and in what it differs from what it had to.

    Attributes:
        runs: How many lines were put out.
        restored: How often the job was restored.
        lost: Numbers that never came.
        repeated: Numbers that came more than once.
        early: Lines of runs that slept for less than they were to.
        wrong: Lines of runs that have another answer than their own.
        unmatched: Answers that no run took, and why.
        asked_twice: Numbers that asked more than once.
        miscounted: Keys whose runs were not counted one by one.
        failures: What made the job fail, apart from the death of processes.
        bytes_per_run: What a savepoint of runs that all wait has for each of them; 0 where none was taken.
    """

    runs: int
    restored: int
    lost: Sequence[int] = ()
    repeated: Sequence[int] = ()
    early: Sequence[str] = ()
    wrong: Sequence[str] = ()
    unmatched: Sequence[str] = ()
    asked_twice: Sequence[int] = ()
    miscounted: Sequence[int] = ()
    failures: Sequence[str] = ()
    bytes_per_run: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether there is no difference, and state is as small as it should be."""
        wrong_runs = self.lost or self.repeated or self.early or self.wrong or self.asked_twice
        wrong_runs = wrong_runs or self.miscounted
        return not (wrong_runs or self.unmatched or self.failures) and self.bytes_per_run <= MOST_BYTES


class WaitsRun:
    """One run of the job over all its submissions, with one sink.

    Args:
        cluster: Where it runs.
        directory: Where it writes.
        inputs: How many runs there are.
        seconds: How long each sleeps; None where they wait for answers.
        slots: Of the one TaskManager.
        options: Flink options of the job.
        keys: How many keys they have, and overtake the runs of; None where each has a key of its own.
    """

    def __init__(
        self,
        cluster: FlinkCluster,
        directory: Path,
        inputs: int,
        seconds: float | None = None,
        slots: int = 2,
        options: dict[str, str] | None = None,
        keys: int | None = None,
    ) -> None:
        self.output = CommittedOutput(directory / "out" / "out")
        self.asked = CommittedOutput(directory / "out" / "asked")
        self.unmatched_signals = CommittedOutput(directory / "out" / "unmatched")
        self._cluster = cluster
        self._directory = directory
        self._inputs = inputs
        self._seconds = seconds
        self._keys = keys
        self._slots = slots
        self._options = options or {}
        self._answers = directory / "answers"
        self._answers.mkdir(parents=True)
        self._files = 0
        self._arguments = ["--output", str(directory / "out"), "--inputs", str(inputs)]
        self._arguments += ["--answers", self._answers.as_uri()]
        if seconds is not None:
            self._arguments += ["--seconds", str(seconds)]
        if keys is not None:
            self._arguments += ["--keys", str(keys)]

    def submit(self, parallelism: int, savepoint: str | None = None) -> ClusterJob:
        """Start the job on a new TaskManager, or go on from a savepoint."""
        self._cluster.fresh_taskmanagers(1, self._slots)
        if savepoint is not None:
            # Flink restores it anew for each time that it finds no slots.
            fresh = self._cluster.taskmanagers[0]
            self._cluster.wait_for("the TaskManager", lambda: self._cluster.knows(fresh))
        return self._cluster.submit(
            SCRIPT, *self._arguments, parallelism=parallelism, savepoint=savepoint, options=self._options
        )

    def answer(self, numbers: Sequence[int]) -> None:
        """Answer some runs, in that order."""
        self._files += 1
        waits = dict.fromkeys(numbers, "")
        if self._keys is not None:
            # Several runs of a key wait.
            asked_words = (line.split(" ") for line in self.asked.lines())
            waits = {int(number): f" {wait}" for number, wait, _ in asked_words}
        lines = "".join(
            f"{self._key_of(number)} {answer_to(number)} a{number}{waits[number]}\n" for number in numbers
        )
        hidden = self._directory / "answers.new"
        hidden.write_text(lines, encoding="utf-8")
        # The source reads a file that is there, whole.
        hidden.rename(self._answers / f"answers-{self._files:06}")

    def kill(self, job: ClusterJob) -> None:
        """Kill the TaskManager and start another."""
        self._cluster.kill(self._cluster.taskmanagers[0])
        self._cluster.start_taskmanager(self._slots)

    def wait_for_output(self, job: ClusterJob, count: int) -> None:
        """Wait until at least ``count`` lines are committed; fail where nothing moves any more."""
        self._wait_for(job, self.output, count, "outputs")

    def wait_for_questions(self, job: ClusterJob, count: int) -> None:
        """Wait until at least ``count`` runs have asked."""
        self._wait_for(job, self.asked, count, "questions")

    def wait_for_restore(self, job: ClusterJob, count: int) -> None:
        """Wait until the job was restored ``count`` times, and runs."""
        self._cluster.wait_for(
            f"{count} restores",
            lambda: job.checkpoints()["restored"] >= count and job.state() == "RUNNING",
            job,
        )

    def _wait_for(self, job: ClusterJob, output: CommittedOutput, count: int, what: str) -> None:
        while (line_count := output.count()) < count:
            self._cluster.wait_for(
                f"more than {line_count} of {count} {what}",
                lambda seen=line_count: output.count() > seen,
                job,
            )

    def report(self, job: ClusterJob) -> WaitsReport:
        """End the job, and judge what it has put out."""
        time.sleep(QUIET_SECONDS)
        restored = job.checkpoints()["restored"]
        failures = job.python_failures()
        job.cancel()
        lines = self.output.lines()
        counts = Counter(int(line.split(" ")[0]) for line in lines)
        asked_counts = Counter(int(line.split(" ")[0]) for line in self.asked.lines())
        return WaitsReport(
            len(lines),
            restored,
            sorted(set(range(self._inputs)) - set(counts)),
            sorted(number for number, times in counts.items() if times > 1),
            [line for line in lines if self._is_early(line)],
            [line for line in lines if self._is_wrong(line)],
            self.unmatched_signals.lines(),
            sorted(number for number, times in asked_counts.items() if times > 1),
            self._miscounted(lines),
            failures,
        )

    def _key_of(self, number: int) -> int:
        return number if self._keys is None else number % self._keys

    def _miscounted(self, lines: Sequence[str]) -> list[int]:
        """The keys whose runs did not count up to their number, each by one, before the wait or behind it."""
        if self._keys is None:
            return []
        counts: dict[int, list[list[int]]] = {key: [[], []] for key in range(self._keys)}
        for place, counted_lines in enumerate((self.asked.lines(), lines)):
            for number, _, count in (line.split(" ") for line in counted_lines):
                counts[self._key_of(int(number))][place].append(int(count))
        expected = [range(1, len(range(key, self._inputs, self._keys)) + 1) for key in range(self._keys)]
        return [
            key
            for key, key_counts in counts.items()
            if any(sorted(run_counts) != [*expected[key]] for run_counts in key_counts)
        ]

    def _is_early(self, line: str) -> bool:
        return self._seconds is not None and float(line.split(" ")[2]) < self._seconds

    def _is_wrong(self, line: str) -> bool:
        if self._seconds is not None:
            return False
        number, answer, *_ = line.split(" ")
        return answer != answer_to(int(number))


def answer_to(number: int) -> str:
    """What a run is answered."""
    return f"yes-{7919 * number % 10007}"


# -- what is done ----------------------------------------------------------------------------------


def sleeps(cluster: FlinkCluster, directory: Path, inputs: int, seconds: float, seed: int) -> WaitsReport:
    """Kill at a quarter to a half of the pauses, and at a quarter to a half of their ends."""
    chance = random.Random(seed)
    run = WaitsRun(cluster, directory, inputs, seconds)
    job = run.submit(2)
    cluster.wait_for("a checkpoint", lambda: job.checkpoints()["completed"] > 0, job)
    time.sleep(chance.uniform(0.25, 0.5) * seconds)
    run.kill(job)
    run.wait_for_output(job, max(1, inputs // 4))
    time.sleep(chance.uniform(0, 0.3))
    run.kill(job)
    run.wait_for_output(job, inputs)
    # The second kill may have come behind the last output.
    run.wait_for_restore(job, 1)
    return run.report(job)


def approvals(
    cluster: FlinkCluster, directory: Path, inputs: int, seed: int, keys: int | None = None
) -> WaitsReport:
    """Answer in a random order: a third before a restart, a third during it, a third after it."""
    chance = random.Random(seed)
    run = WaitsRun(cluster, directory, inputs, keys=keys)
    job = run.submit(2)
    order = chance.sample(range(inputs), inputs)
    third = inputs // 3
    run.wait_for_questions(job, inputs)
    _answer_in_parts(run, chance, order[:third])
    # Some of these are answered and not committed, when the process dies.
    run.wait_for_output(job, third // 4)
    run.kill(job)
    _answer_in_parts(run, chance, order[third : 2 * third])
    run.wait_for_restore(job, 1)
    _answer_in_parts(run, chance, order[2 * third :])
    run.wait_for_output(job, inputs)
    return run.report(job)


def rescaled(
    cluster: FlinkCluster, directory: Path, inputs: int, seed: int, backend: str = "hashmap"
) -> WaitsReport:
    """Stop with a savepoint while all runs wait, go on at twice the parallelism, and answer."""
    chance = random.Random(seed)
    run = WaitsRun(cluster, directory, inputs, options={"state.backend.type": backend})
    job = run.submit(1)
    run.wait_for_questions(job, inputs)
    # Flink refuses a savepoint, and starts the job anew, where a source ends as it is asked for one.
    cluster.wait_for("the end of the inputs", lambda: bool(job.ended_tasks()), job)
    savepoint = job.stop_with_savepoint(directory / "savepoints")
    cluster.wait_for("the end of the stopped job", lambda: job.state() == "FINISHED", job)
    failures = job.python_failures()
    order = chance.sample(range(inputs), inputs)
    # Some answers come while the job is not there.
    run.answer(order[: inputs // 2])
    resumed = run.submit(2, savepoint)
    _answer_in_parts(run, chance, order[inputs // 2 :])
    run.wait_for_output(resumed, inputs)
    written = sum(file.stat().st_size for file in (directory / "savepoints").rglob("*") if file.is_file())
    report = run.report(resumed)
    return replace(report, failures=[*failures, *report.failures], bytes_per_run=round(written / inputs, 1))


def _answer_in_parts(run: WaitsRun, chance: random.Random, numbers: Sequence[int]) -> None:
    """Answer in files of random sizes."""
    at = 0
    while at < len(numbers):
        size = chance.randint(1, max(1, len(numbers) // 5))
        run.answer(numbers[at : at + size])
        at += size
