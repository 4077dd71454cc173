"""The report and the model of ``python -m benchmarks scale``, mostly with clusters that are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import __main__ as command_line
from benchmarks.scale import command
from benchmarks.scale.cluster import Checkpoint, Layout, Sample
from benchmarks.scale.model import InputCost, Line, Prediction, million
from tests.suite.tables import each_case

REPORT = ["case", "parameters", "layouts", "keys", "suspended", "million", "predictions", "machine"]


class ModelJob:
    """A job that behaves as the model says: 100 µs for an input of each process, and 100 bytes for a key."""

    def __init__(self, processes: int, size: int) -> None:
        self.processes = processes
        self.size = size

    def wait_for_inputs(self, inputs: int) -> Sample:
        return Sample(1e-4 * inputs / self.processes, inputs, 1e-4 * inputs, self.resident_bytes)

    @property
    def resident_bytes(self) -> int:
        return 10**9 + 50 * self.size

    def sample(self) -> Sample:
        return self.wait_for_inputs(self.size)

    def heap_bytes(self) -> float:
        return 1e8

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(10**6 + 100 * self.size, 1.0)

    def restart(self) -> float:
        return 10 + 1e-5 * self.size


def run_scale(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, list[tuple[str, int, str]]]:
    """Run the command with jobs of the model; returns its exit status and the jobs."""
    ran: list[tuple[str, int, str]] = []

    @contextmanager
    def running_job(
        workload: str, inputs: int, keys: int, layout: Layout | None = None, **_: Any
    ) -> Iterator[ModelJob]:
        layout = layout or Layout()
        ran.append((workload, inputs, str(layout)))
        yield ModelJob(layout.taskmanagers, inputs)

    monkeypatch.setattr(command, "running_job", running_job)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["scale", *arguments])
    return int(str(ended.value)), ran


def test_all_parts_are_measured_and_compared_with_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--events", "8000", "--keys", "9000", "--suspended", "6000")
    status, ran = run_scale(monkeypatch, "--json", "--rounds", "2", *sizes)
    [line] = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert list(report) == REPORT
    layouts = ["1x1", "1x1 pinned", "1x2", "2x1", "2x1 pinned"]
    of_layouts = [
        (workload, inputs, layout)
        for workload, inputs in (("count", 8000), ("durable", 1000))
        for layout in layouts * 2
    ]
    growing = [("count", size, "1x1 pinned") for size in (1000, 3000, 9000)]
    growing += [("sleep", size, "1x1 pinned") for size in (1000, 2000, 6000)]
    assert ran == [*of_layouts, *growing]
    assert [list(report["layouts"][workload]) for workload in ("count", "durable")] == [layouts, layouts]
    assert report["layouts"]["count"]["2x1"]["inputs_per_second"] == pytest.approx(20_000)
    assert report["keys"]["9000"]["checkpoint_bytes"] == 10**6 + 900_000
    assert len(report["predictions"]) == 2 * 3 + 2 * 4
    assert all(prediction["ratio"] == pytest.approx(1) for prediction in report["predictions"])
    assert status == 0


def test_a_wrong_model_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ModelJob, "restart", lambda job: 2.0**job.size)
    status, ran = run_scale(monkeypatch, "--part", "keys", "--keys", "30")
    *lines, last = capsys.readouterr().out.splitlines()
    missed = [prediction["figure"] for prediction in json.loads(last)["predictions"] if not prediction["met"]]
    assert (status, missed) == (1, ["30 keys: restart_seconds"])
    assert len(ran) == 3
    assert [line.partition(":")[0] for line in lines[:3]] == ["7 keys", "10 keys", "30 keys"]


@each_case("layout, rate", [((1, 1), 100), ((1, 2), 100), ((2, 1), 200), ((2, 1, True), 250)])
def test_slots_add_nothing_and_processes_add_up(layout: tuple[Any, ...], rate: int) -> None:
    assert InputCost(seconds=0.01, core_seconds=0.008).rate(Layout(*layout)) == pytest.approx(rate)


def test_a_line_leads_from_two_small_jobs_to_a_big_one() -> None:
    assert Line.through((10, 7.0), (20, 9.0)).at(100) == 25
    assert Line.through((10, 7.0), (20, 6.0)).at(100) == 6, "noise of a figure that does not grow"


@each_case("predicted, met", [(81, True), (119, True), (79, False), (121, False)])
def test_a_prediction_may_be_wrong_by_a_fifth(predicted: float, met: bool) -> None:
    assert Prediction("a figure", predicted, 100.0).judge()["met"] is met


def test_a_million_inputs_need_processes_for_their_rate_and_memory_for_each_process() -> None:
    needs = million(InputCost(1e-4, 1.5e-4, 300), 10**9, Line(0, 100), Line(10, 1e-5))
    assert (needs["processes_and_cores"], needs["memory_gb"]) == (250, 250)
    assert (needs["journal_mb_per_second"], needs["state_gb"]) == (300, 100)
    assert needs["restart_seconds"] == pytest.approx(10 + 1e9 / 250 * 1e-5, rel=0.01)


@pytest.mark.nightly
@each_case("part", command.PARTS)
def test_small_jobs_are_measured_on_clusters(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--events", "4000", "--keys", "3000", "--suspended", "3000")
    with pytest.raises(SystemExit):
        command_line.main(["scale", "--json", "--part", part, *sizes])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(prediction["measured"] > 0 for prediction in report["predictions"])
