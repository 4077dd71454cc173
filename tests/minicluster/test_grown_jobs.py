"""Jobs that get further parts when an input has ended: they restore their state, or say what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents import AgentsExecutionEnvironment
from flink_agents.api.errors import StateMismatchError
from tests.cluster.local_job import LocalJob
from tests.minicluster.growing_job import FURTHER, HISTORY, KEYS, build, lines

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

ENDS = ["list", "stream", "table"]
"""Inputs of which nothing goes on, so the agent behind them finishes."""

GOES_ON = ["joined", "signals"]

PARTS = ["", "agent", "list", "chained", "source", "signals", "reader", "table", "sink", "letters"]


class GrowingJobs:
    """Starts of one job.

    Args:
        make: Creates an environment.
        directory: Its directory.
        kind: The input of the historian.
        waits: True if the historian's runs wait.
    """

    def __init__(self, make: MakeEnvironment, directory: Path, kind: str, waits: bool = False) -> None:
        self.make = make
        self.directory = directory
        self.kind = kind
        self.waits = waits
        # A key of which an input waits takes no other one.
        self.counted = KEYS if waits else HISTORY

    def start(self, savepoint: str | None = None, parts: str = "", **flink: str) -> LocalJob:
        """Start the job with parts; their names are separated by commas."""
        options = {"execution.checkpointing.interval": "200 ms", **flink}
        if savepoint is not None:
            options["execution.state-recovery.path"] = savepoint
        env = self.make(flink=options)
        build(env, self.directory, self.kind, set(parts.split(",")), self.waits)
        return LocalJob(env, self.directory / "live")

    def savepoint(self) -> str:
        """Run the job until its input has ended, and stop it."""
        with self.start() as job:
            job.wait_for("the history", lambda: len(self.lines("history")) >= self.counted)
            job.wait_for("the end of its input", lambda: self._has_ended(job))
            savepoint = job.stop_with_savepoint(self.directory / "savepoints")
        return str(savepoint)

    def _has_ended(self, job: LocalJob) -> bool:
        tasks = " ".join(job.finished())
        return ("agent historian" in tasks) if self.kind in ENDS and not self.waits else bool(tasks)

    def lines(self, file: str) -> list[str]:
        """The lines that an agent has written."""
        return lines(self.directory, file)

    def goes_on(self, savepoint: str, parts: str) -> None:
        """Check that the job resumes with further parts: nothing is lost or read again."""
        previous_lines = self.lines("live")
        with self.start(savepoint, parts) as job:
            job.wait_for("live numbers", lambda: len(self.lines("live")) > len(previous_lines))
            if "list" in parts:
                job.wait_for("the added list", lambda: len(self.lines("list")) >= FURTHER)
        # A run in flight may write its line again. The count of its key is the same then.
        for file in ("live", "history"):
            assert len(self.numbers(file)) == len(set(self.lines(file)))
        assert set(range(self.counted)) <= self.numbers("history")
        assert self.numbers("list") in (set(), set(range(100, 100 + FURTHER)))

    def numbers(self, file: str) -> set[int]:
        """The numbers that an agent has counted."""
        return {int(line.split()[0]) for line in self.lines(file)}


def rejected(kind: str, part: str) -> bool:
    """Return True if a part cannot be added: it would change the input of an agent that has finished."""
    return kind in ENDS and part in ("source", "signals", "reader")


def fits(kind: str, part: str) -> bool:
    """Return True if the job does not have the part."""
    return not (part == "source" and kind in ("list", "signals", "table")) and part != kind


NIGHTLY = [pytest.param(kind, marks=pytest.mark.nightly) for kind in ("stream", "table", "signals")]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("kind", ["list", "joined", *NIGHTLY])
def test_a_job_gets_parts_after_an_input_has_ended(
    agents_environment: MakeEnvironment, tmp_path: Path, kind: str
) -> None:
    jobs = GrowingJobs(agents_environment, tmp_path, kind)
    savepoint = jobs.savepoint()
    parts = [part for part in PARTS if fits(kind, part) and not rejected(kind, part)]
    jobs.goes_on(savepoint, ",".join(parts))
    for part in PARTS:
        if fits(kind, part) and rejected(kind, part):
            with pytest.raises(StateMismatchError, match="historian.*had finished"):
                jobs.start(savepoint, part)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "part"), [(kind, part) for kind in (*ENDS, *GOES_ON) for part in PARTS if fits(kind, part)]
)
def test_each_part_alone(agents_environment: MakeEnvironment, tmp_path: Path, kind: str, part: str) -> None:
    jobs = GrowingJobs(agents_environment, tmp_path, kind)
    savepoint = jobs.savepoint()
    if rejected(kind, part):
        with pytest.raises(StateMismatchError, match="historian.*had finished"):
            jobs.start(savepoint, part)
    else:
        jobs.goes_on(savepoint, part)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "part"),
    [("stream", "source"), *(pytest.param(kind, "signals", marks=pytest.mark.nightly) for kind in ENDS)],
)
def test_an_agent_whose_input_has_ended_and_whose_runs_wait_gets_an_endless_input(
    agents_environment: MakeEnvironment, tmp_path: Path, kind: str, part: str
) -> None:
    jobs = GrowingJobs(agents_environment, tmp_path, kind, waits=True)
    jobs.goes_on(jobs.savepoint(), part)
