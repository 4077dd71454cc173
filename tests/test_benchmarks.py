"""The benchmarks' command line and report, with jobs that are made up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command_line, durable, waiting
from benchmarks.brokers import ADDRESS
from benchmarks.cases import CASES
from benchmarks.hold import Checks
from benchmarks.report import (
    Case,
    Figures,
    Job,
    Target,
    added_in_bare_events,
    measure,
    of_bare,
    run_job,
)

ROOT = Path(__file__).parents[1]
BARE = "bare"
PARTS = ["case", "parameters", "ours", "baselines", "ratio", "difference", "targets", "machine"]


class Jobs:
    """Prints, for each job, the next of its figures, and notes what ran."""

    def __init__(self, figures: dict[str, list[Figures]]) -> None:
        self.figures = {job: iter(values) for job, values in figures.items()}
        self.ran: list[list[str]] = []

    def __call__(self, arguments: list[str]) -> Figures:
        self.ran.append(arguments)
        return next(self.figures[arguments[0]])


def one_case(*targets: Target) -> Case:
    return Case(
        meaning="a case",
        parameters={"events": 10, "seconds": 0.5},
        ours=(Job("first", "first {events}", ("rate",)), Job("second", "second {seconds}", ("delay",))),
        baselines=(Job("limit", "limit 0", ("rate",)), Job("other", "other", ("idle",))),
        targets=targets,
    )


def measured(*targets: Target) -> tuple[dict[str, Any], Jobs]:
    jobs = Jobs(
        {
            "first": [{"rate": 8.0, "unused": 1.0}, {"rate": 30.0}, {"rate": 4.0}],
            "second": [{"delay": 1.0}, {"delay": 2.0}, {"delay": 9.0}],
            "limit": [{"rate": 10.0}, {"rate": 20.0}, {"rate": 2.0}],
            "other": [{"idle": 1.0}, {"idle": 5.0}, {"idle": 3.0}],
        }
    )
    case = one_case(*targets)
    return measure("one", case, case.parameters, 3, jobs), jobs


def test_report_has_all_parts_and_each_figure_its_spread() -> None:
    report, _ = measured()
    assert list(report) == PARTS
    assert report["case"] == "one"
    assert report["parameters"] == {"events": 10, "seconds": 0.5, "rounds": 3, "parallelism": 1}
    assert report["ours"] == {
        "rate": {"min": 4.0, "median": 8.0, "max": 30.0},
        "delay": {"min": 1.0, "median": 2.0, "max": 9.0},
    }
    assert report["baselines"] == {
        "limit": {"rate": {"min": 2.0, "median": 10.0, "max": 20.0}},
        "other": {"idle": {"min": 1.0, "median": 3.0, "max": 5.0}},
    }


def test_jobs_are_compared_round_by_round_where_both_have_the_figure() -> None:
    report, _ = measured()
    assert report["ratio"] == {"rate": {"min": 0.8, "median": 1.5, "max": 2.0}}
    assert report["difference"] == {"rate": {"min": -2.0, "median": 2.0, "max": 10.0}}


def beside_bare() -> tuple[Case, Jobs]:
    """A case whose job and whose baselines print figures of the same name, and two rounds of its figures."""
    case = Case(
        meaning="a case beside the bare function",
        parameters={},
        ours=(Job("ours", "ours", ("rate", "cpu_ms")),),
        baselines=(Job("bare", "bare", ("bare_rate",), prefix="bare_"), Job("direct", "direct", ("cpu_ms",))),
        targets=(
            Target("ratio", "of_bare", "at_least", 0.25),
            Target("difference", "added_in_bare_events", "at_most", 3.0),
        ),
        derived=(of_bare("rate", "bare_rate"), added_in_bare_events("cpu_ms", "bare_rate")),
    )
    jobs = Jobs(
        {
            "ours": [{"rate": 4000.0, "cpu_ms": 0.25}, {"rate": 3000.0, "cpu_ms": 0.5}],
            "bare": [{"rate": 20_000.0}, {"rate": 10_000.0}],
            "direct": [{"cpu_ms": 0.125}, {"cpu_ms": 0.125}],
        }
    )
    return case, jobs


def test_rates_are_compared_with_the_bare_function_of_the_same_round() -> None:
    case, jobs = beside_bare()
    report = measure("one", case, {}, 2, jobs)
    # 0.125 ms more where a bare event takes 0.05 ms, and 0.375 ms more where it takes 0.1 ms.
    assert report["difference"]["added_in_bare_events"] == {"min": 2.5, "median": 3.125, "max": 3.75}
    assert report["ratio"] == {
        "of_bare": {"min": 0.2, "median": 0.25, "max": 0.3},
        "cpu_ms": {"min": 2.0, "median": 3.0, "max": 4.0},
    }
    assert [target["met"] for target in report["targets"]] == [True, False]


def test_prefix_tells_figures_of_one_name_apart() -> None:
    case, jobs = beside_bare()
    report = measure("one", case, {}, 2, jobs)
    assert set(report["baselines"]["bare"]) == {"bare_rate"}
    assert report["baselines"]["bare"]["bare_rate"]["max"] == 20_000.0
    assert "rate" not in report["ratio"], "our rate was divided by the bare one under its own name"


@pytest.mark.parametrize("name", ["static", "async", "durable", "hold"])
def test_case_prints_its_rate_of_the_bare_function(name: str) -> None:
    case = CASES[name]
    assert [job.command.split()[0] for job in case.baselines].count("benchmarks.bare") == 1
    report = measure(name, case, case.parameters, 1, Invented(case))
    assert report["ratio"]["of_bare"] == {"min": 1.0, "median": 1.0, "max": 1.0}


def test_rounds_are_interleaved_and_jobs_get_their_parameters() -> None:
    _, jobs = measured()
    assert jobs.ran == [["limit", "0"], ["other"], ["first", "10"], ["second", "0.5"]] * 3


@pytest.mark.parametrize(
    ("target", "measured_value", "met"),
    [
        (Target("ours", "rate", "at_least", 8), 8.0, True),
        (Target("ours", "rate", "at_least", 9), 8.0, False),
        (Target("ours", "delay", "at_most", 2), 2.0, True),
        (Target("ours", "delay", "at_most", 2, "max"), 9.0, False),
        (Target("ratio", "rate", "at_most", 1.4), 1.5, False),
        (Target("difference", "rate", "at_most", 2), 2.0, True),
    ],
)
def test_targets_are_judged(target: Target, measured_value: float, met: bool) -> None:
    [judged] = measured(target)[0]["targets"]
    assert (judged["part"], judged["figure"]) == (target.part, target.figure)
    assert judged[target.relation] == target.limit
    assert (judged["measured"], judged["met"]) == (measured_value, met)


class Invented(Jobs):
    """Any job prints all figures of its case."""

    def __init__(self, case: Case) -> None:
        super().__init__({})
        self.case = case

    def __call__(self, arguments: list[str]) -> Figures:
        self.ran.append(arguments)
        jobs = (*self.case.ours, *self.case.baselines)
        return {figure.removeprefix(job.prefix): 1.0 for job in jobs for figure in job.figures}


@pytest.mark.parametrize("name", CASES)
def test_case_prints_one_object_with_its_targets_judged(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "prepare_process", lambda: None)
    monkeypatch.setenv(ADDRESS, "nowhere:9092")
    case = CASES[name]
    jobs = Invented(case)
    size = "events" if "events" in case.parameters else "keys"
    command_line.main([name, "--json", "--rounds", "2", f"--{size}", "7"], jobs)
    [line] = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert list(report) == PARTS
    assert report["parameters"][size] == 7
    assert case.parameters[size] != 7, "the command line changed the case itself"
    assert len(report["targets"]) == len(case.targets) > 0
    ours = [figure for job in case.ours for figure in job.figures]
    beside = [figure for job in case.baselines for figure in job.figures]
    assert (len(set(ours)), len(set(beside))) == (len(ours), len(beside)), "two figures of one name"
    derived = {figure.figure for figure in case.derived if figure.part == "ratio"}
    assert set(report["ratio"]) - derived == set(ours) & set(beside) > set(), "nothing beside a baseline"
    alone = {"store alone", BARE} if name != "static" else set[str]()
    assert all(set(report["ratio"]) & set(job.figures) for job in case.baselines if job.name not in alone)
    assert len(jobs.ran) == 2 * (len(case.baselines) + len(case.ours))
    for module, *arguments in jobs.ran:
        assert find_spec(module) is not None
        # The bare function measures the machine, so that the size of a case does not change it.
        assert "7" in arguments or (module, name != "static") == ("benchmarks.bare", True), (
            f"a job that the number of {size} does not reach"
        )
        assert module != waiting.__name__ or arguments[0] in waiting.JOBS
        assert module != durable.__name__ or arguments[0] in durable.JOBS


def test_parameter_that_a_case_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["hold", "--keys", "5"], Jobs({}))
    assert "the case hold has no keys" in capsys.readouterr().err


@pytest.mark.parametrize("store", ["sqlite", "memory", "none"])
def test_the_store_is_what_durable_calls_are_recorded_in(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "prepare_process", lambda: None)
    jobs = Invented(CASES["durable"])
    command_line.main(["durable", "--store", store, "--json", "--rounds", "1"], jobs)
    assert json.loads(capsys.readouterr().out)["parameters"]["store"] == store
    used = [(module, arguments[1]) for module, *arguments in jobs.ran]
    without = [("benchmarks.durable", "none")] * 3
    assert used[0][0] == "benchmarks.bare"
    assert used[1:] == [*without, ("benchmarks.store", store), *[("benchmarks.durable", store)] * 3]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("store", ["sqlite", "none"])
def test_keys_that_come_once_are_measured(store: str) -> None:
    figures = run_job(["benchmarks.keys", "--store", store, "400"])
    [ours], [nothing] = CASES["keys"].ours, CASES["keys"].baselines
    assert set(ours.figures if store == "sqlite" else nothing.figures) < set(figures)


def test_cases_say_how_often_they_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "prepare_process", lambda: None)
    monkeypatch.setenv(ADDRESS, "nowhere:9092")
    for name, case in CASES.items():
        command_line.main([name, "--json"], Invented(case))
        rounds = json.loads(capsys.readouterr().out)["parameters"]["rounds"]
        assert rounds == case.rounds == (1 if name in ("keys", "kit") else 3)


def test_a_store_that_a_case_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["static", "--store", "memory"], Jobs({}))
    assert "the case static has no store" in capsys.readouterr().err


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("store", ["sqlite", "memory", "none"])
def test_the_store_alone_is_measured(store: str) -> None:
    figures = run_job(["benchmarks.store", "--store", store, "--appends", "50"])
    assert set(next(job for job in CASES["durable"].baselines if job.name == "store alone").figures) < set(
        figures
    )


def test_options_of_a_job_name_its_store(tmp_path: Path) -> None:
    assert durable.options("none", str(tmp_path)) == {}
    assert durable.options("memory", str(tmp_path)) == {"action-state.store": "memory"}
    assert Path(durable.options("sqlite", str(tmp_path))["action-state.sqlite.path"]).parent == tmp_path


def test_rate_is_told_for_what_comes_after_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    steady = durable.Steady(10)
    for _ in range(9):
        steady.tick()
    assert capsys.readouterr().out == ""
    steady.tick()
    assert set(json.loads(capsys.readouterr().out)) == set(CASES["durable"].ours[0].figures)


def test_rounds_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["static", "--rounds", "0"], Jobs({}))
    assert "--rounds" in capsys.readouterr().err


def test_progress_is_told_without_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "prepare_process", lambda: None)
    command_line.main(["static", "--rounds", "1"], Invented(CASES["static"]))
    *progress, last = capsys.readouterr().out.splitlines()
    assert progress == [
        "round 1 bare: events_per_second 1.000",
        "round 1 ours: events_per_second 1.000",
    ]
    assert json.loads(last)["case"] == "static"


def test_a_job_is_a_process_whose_last_object_counts() -> None:
    figures = run_job(["benchmarks.waiting", "calls", "3", "1", "0.0"])
    assert set(figures) == {"in_flight", "calls_per_second", "cpu_ms_per_call"}
    assert figures["in_flight"] == 3


def test_a_job_that_fails_says_what_it_printed() -> None:
    with pytest.raises(SystemExit, match=r"(?s)benchmarks\.waiting none .*KeyError: 'none'"):
        run_job(["benchmarks.waiting", "none", "1", "1", "0"])


def test_a_job_that_fails_behind_its_figures_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_job.py").write_text("print('{\"rate\": 1}')\nraise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="failing_job failed"):
        run_job(["failing_job"])


def test_held_outputs_are_checked_and_others_only_counted(capsys: pytest.CaptureFixture[str]) -> None:
    timed = Checks(3, timed=True)
    untimed = Checks(1, timed=False)
    for timestamp, watermark in ((5, 4), (5, 5), (6, 4)):
        timed.see(5, timestamp, watermark)
    untimed.see(5, None, 9)
    held, plain = map(json.loads, capsys.readouterr().out.splitlines())
    assert (held["late"], held["wrong"]) == (1, 1)
    assert set(plain) == {"calls_per_second", "longest_delay_ms"}


def test_help_lists_every_case() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    listed = re.findall(r"^  (\w+) +(.+)$", done.stdout.partition("cases:\n")[2], re.MULTILINE)
    assert dict(listed) == {name: case.meaning for name, case in CASES.items()}


def test_documentation_shows_every_case_with_its_targets() -> None:
    running = (ROOT / "docs" / "design" / "flink-internals.md").read_text("utf-8")
    (cases,) = re.findall(r"^Cases: (.*?)\.", running, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", cases) == list(CASES)
    core = (ROOT / "docs" / "design" / "core.md").read_text("utf-8")
    event_time = (ROOT / "docs" / "design" / "event-time.md").read_text("utf-8")
    calls = "".join(
        (ROOT / "docs" / "design" / page).read_text("utf-8")
        for page in ("durable.md", "kafka.md", "models.md", "resume.md", "time.md")
    )
    for name, case in CASES.items():
        elsewhere = event_time + calls
        assert f"`{name}`" in core or f"benchmarks {name}`" in elsewhere, f"no figures of {name}"
        assert case.meaning


def test_documentation_of_the_report_names_its_parts() -> None:
    running = (ROOT / "docs" / "design" / "flink-internals.md").read_text("utf-8")
    section = running.partition("## Speed")[2]
    for part in PARTS:
        assert f"`{part}`" in section, f"no word on {part}"
