"""A TaskManager that can run no Python any more is found by Flink's own words, and replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.flink_cluster import FlinkCluster, FlinkProcess
from tests.cluster.flink_rest import ClusterJob, FlinkRest

INTERRUPTED = """java.lang.Error: java.lang.InterruptedException
\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:406)
"""
OTHER = "java.lang.RuntimeException: no\nCaused by: java.lang.InterruptedException\n"


class Answers(FlinkRest):
    """A JobManager with a history of failures: of each the TaskManager and the text."""

    def __init__(self, *failures: tuple[str | None, str]) -> None:
        super().__init__("http://localhost:1")
        self._failures = failures

    def get(self, path: str) -> Any:
        assert path == "/jobs/j1/exceptions"
        entries = [{"taskManagerId": name, "stacktrace": text} for name, text in self._failures]
        return {"exceptionHistory": {"entries": entries}}


class Replacing(FlinkCluster):
    """Three TaskManagers that are no processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.taskmanagers = [self._make_process(number) for number in range(3)]

    def _make_process(self, number: int) -> FlinkProcess:
        return FlinkProcess(f"taskmanager-{number}", cast(Any, None), self.directory / "log")

    def kill(self, taskmanager: FlinkProcess) -> None:
        self.taskmanagers.remove(taskmanager)

    def start_taskmanager(self, slots: int) -> FlinkProcess:
        self.taskmanagers.append(self._make_process(3))
        return self.taskmanagers[-1]


@pytest.mark.parametrize(
    ("failures", "left"),
    [
        ([], [0, 1, 2]),
        ([("taskmanager-1", OTHER), (None, OTHER)], [0, 1, 2]),
        (
            [("taskmanager-1", INTERRUPTED), ("taskmanager-2", OTHER), ("taskmanager-1", INTERRUPTED)],
            [0, 2, 3],
        ),
        # What was replaced before stays in Flink's history.
        ([("taskmanager-7", INTERRUPTED)], [0, 1, 2]),
    ],
)
def test_the_broken_one_is_replaced(
    tmp_path: Path, failures: list[tuple[str | None, str]], left: list[int]
) -> None:
    cluster = Replacing(tmp_path / "cluster")
    replaced = cluster.replace_broken(ClusterJob(Answers(*failures), "j1"), 1)
    assert [process.name for process in cluster.taskmanagers] == [f"taskmanager-{number}" for number in left]
    assert replaced == (3 in left)
