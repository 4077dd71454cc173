"""A chaos run notices what happens to its job; the cluster is a stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flink_agents.api.action_state import Record, RecordKind
from tests.cluster.durable_files import WORK, Files, fill
from tests.cluster.durable_run import Chaos, DurableRun, Report
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.waiting import wait_until


class FakeCluster:
    """A cluster and its job; the job's output is there when it is submitted.

    Args:
        directory: Where the job writes.
        ends: Whether it ever ends.
    """

    def __init__(self, directory: Path, ends: bool = True) -> None:
        self.taskmanagers = ["first"]
        self.killed: list[str] = []
        self.cancelled = False
        self.options: dict[str, str] = {}
        self._directory = directory
        self._ends = ends

    def write(self, files: Files) -> None:
        for name, lines in (("out", files.outputs), ("windows", files.windows)):
            (self._directory / name).mkdir(exist_ok=True)
            text = "".join(f"{line}\n" for line in lines)
            (self._directory / name / f"part-{len(self.killed)}").write_text(text)
        (self._directory / "effects").write_text("".join(f"{line}\n" for line in files.effects))

    # -- of the cluster -----------------------------------------------------------------

    def fresh_taskmanagers(self, count: int, slots: int) -> None:
        assert (count, slots) == (1, 2)

    def submit(self, script: Path, *arguments: str, parallelism: int, options: dict[str, str]) -> Any:
        self.options = options
        return self

    def kill(self, taskmanager: str) -> None:
        self.killed.append(taskmanager)

    def start_taskmanager(self, slots: int) -> None:
        (self._directory / "out" / f"part-more-{len(self.killed)}").write_text("0 0 more\n")

    def wait_for(self, what: str, condition: Callable[[], Any], job: Any, seconds: float) -> Any:
        return wait_until(what, condition, seconds, lambda: "the ends of all logs")

    # -- of the job ---------------------------------------------------------------------

    def state(self) -> str:
        return "FINISHED" if self._ends else "RUNNING"

    def checkpoints(self) -> dict[str, int]:
        return {"completed": 7, "restored": len(self.killed)}

    def cancel(self) -> None:
        self.cancelled = True
        raise AssertionError("409: the job is gone")


def execute(cluster: FakeCluster, directory: Path, kills: int = 0) -> Report:
    store = RunStore.for_directory("sqlite", directory)
    # The file is there when the job runs.
    asyncio.run(fill(store, Record(RecordKind.CALL, 3, "0/reserve", 0, b"?")))
    chaos = Chaos(WORK, kills, seed=1, stuck_after=0.2)
    return DurableRun(cast(FlinkCluster, cluster), directory, chaos, store).execute()


def test_a_job_that_does_what_it_should(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    cluster.write(Files())
    report = execute(cluster, tmp_path)
    assert report.clean, report
    assert (report.checkpoints, report.verdict.events, cluster.cancelled) == (7, 900, False)
    assert cluster.options["flink-agents.action-state.store"] == "sqlite"


def test_kills_are_counted(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    cluster.write(Files())
    report = execute(cluster, tmp_path, kills=1)
    assert (report.done.kills, report.recoveries, len(report.recovery_seconds)) == (1, 1, 1)
    assert report.as_json()["recovery_seconds"].keys() == {"p50", "max"}
    assert report.as_json()["duplicated"] == 1, "the stand-in's line after a kill"


def test_a_job_that_stops_moving(tmp_path: Path) -> None:
    files = Files()
    # Key 3 comes to its runs 0 to 2, all others are complete.
    files.outputs = [line for line in files.outputs if line[0] != "3" or int(line.split()[1]) < 12]
    cluster = FakeCluster(tmp_path, ends=False)
    cluster.write(files)
    report = execute(cluster, tmp_path)
    assert report.failure is not None and not report.clean
    assert report.failure.startswith("waited 0.2 s in vain for the end of the job")
    assert "the ends of all logs" in report.failure
    assert report.failure.count("--- journal of key 3, run ") == 2
    assert '"step": "0/reserve"' in report.failure, "run 3 has a record"
    assert report.failure.count("--- journal") == 2, "other keys are not stuck"
    assert cluster.cancelled
    assert len(report.verdict.lost) == 225 - 3
    assert report.as_json()["failure"].startswith("waited 0.2 s in vain")


def test_a_call_that_the_store_has_twice(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    cluster.write(Files())
    again = Record(RecordKind.CALL, 3, "0/reserve", 0, b"again")
    asyncio.run(fill(RunStore.for_directory("sqlite", tmp_path), again))
    report = execute(cluster, tmp_path)
    assert len(report.verdict.repeated_after_record) == 1
    assert not report.clean


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    cluster.write(Files())
    with (tmp_path / "effects").open("a") as effects:
        effects.write("effect 1 5 cha")
    assert execute(cluster, tmp_path).clean


def test_a_store_that_is_broken_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(tmp_path)
    cluster.write(Files())

    def submit(*arguments: Any, **settings: Any) -> Any:
        (tmp_path / "action-state.sqlite").write_bytes(b"no database" * 1000)
        return cluster

    monkeypatch.setattr(cluster, "submit", submit)
    report = execute(cluster, tmp_path)
    assert report.failure is not None and report.failure.startswith("the store cannot be read")
