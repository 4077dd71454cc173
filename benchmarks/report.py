"""Runs the jobs of a case in rounds, and makes one report of their figures.

The report has the same shape for every case; each figure has its unit in its name:

``case``        its name
``parameters``  the parameters of the jobs, and ``rounds``
``ours``        each figure with ``min``, ``median`` and ``max`` over the rounds
``baselines``   the same by the name of the baseline
``ratio``       ours divided by the baselines of the same round, for each figure that both have; ``of_bare``
                is ours divided by the events that the bare function takes per second
``difference``  ours less the baselines of the same round, for the same figures; ``added_in_bare_events``
                is the additional CPU time of a call, divided by that of a bare event
``targets``     a list: ``part`` of the report, ``figure``, ``statistic``, ``at_least`` or ``at_most``,
                the ``measured`` value, and ``met`` if it reaches the target
``machine``     the machine; ``load`` is the load average before the first round
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import sub, truediv
from statistics import median
from typing import Any, Literal

Figures = dict[str, float]
Parameters = dict[str, int | float | str]
Runner = Callable[[list[str]], Figures]
Rounds = list[Figures]


@dataclass(frozen=True)
class Job:
    """A job in a separate process.

    Attributes:
        name: Its name.
        command: Module and arguments; names in braces are parameters of the case.
        figures: Which figures are reported of those that the job prints.
        prefix: The report puts this before the name of a figure, so that two jobs of a case can print
            a figure of the same name. ``figures`` has the names with it.
    """

    name: str
    command: str
    figures: tuple[str, ...]
    prefix: str = ""

    def arguments(self, parameters: Parameters) -> list[str]:
        """What follows ``python -m``."""
        return self.command.format(**parameters).split()

    def read(self, printed: Figures) -> Figures:
        """Take the figures of the report from those that the job printed."""
        return {figure: printed[figure.removeprefix(self.prefix)] for figure in self.figures}


@dataclass(frozen=True)
class Derived:
    """A figure of the report that a round's other figures yield.

    Attributes:
        part: Part of the report that gets the figure.
        figure: Its name.
        compute: Computes it from the figures of our jobs and of the baselines in one round.
    """

    part: Literal["ratio", "difference"]
    figure: str
    compute: Callable[[Figures, Figures], float]


def of_bare(figure: str, bare: str = "bare_events_per_second") -> Derived:
    """A rate of ours over the rate of the bare function: it can be compared between machines.

    Args:
        figure: Our rate.
        bare: The figure of the baseline that has the bare function's rate.
    """
    return Derived("ratio", "of_bare", lambda ours, beside: ours[figure] / beside[bare])


def of_baseline(figure: str, baseline: str) -> Derived:
    """A figure of ours over one of the baselines that has another name."""
    return Derived("ratio", figure, lambda ours, beside: ours[figure] / beside[baseline])


def added_in_bare_events(figure: str, bare: str = "bare_events_per_second") -> Derived:
    """The time that ours takes longer than its baseline, in units of the time of one bare event.

    Args:
        figure: Milliseconds of processor time that both jobs measure.
        bare: The figure of the baseline that has the bare function's rate.
    """
    return Derived(
        "difference",
        "added_in_bare_events",
        lambda ours, beside: (ours[figure] - beside[figure]) / (1000 / beside[bare]),
    )


@dataclass(frozen=True)
class Target:
    """What a figure should come to.

    Attributes:
        part: Part of the report that has the figure.
        figure: The figure.
        relation: Which side of the limit is good.
        limit: The limit.
        statistic: Which round counts; ``max`` where the worst does.
        of_store: Other limits, by the parameter ``store`` of the case.
    """

    part: Literal["ours", "ratio", "difference"]
    figure: str
    relation: Literal["at_least", "at_most"]
    limit: float
    statistic: Literal["median", "max"] = "median"
    of_store: Mapping[str, float] = field(default_factory=dict[str, float])

    def judge(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """The target's entry in the report."""
        measured = report[self.part][self.figure][self.statistic]
        limit = self.of_store.get(report["parameters"].get("store"), self.limit)
        return {
            "part": self.part,
            "figure": self.figure,
            "statistic": self.statistic,
            self.relation: limit,
            "measured": measured,
            "met": measured >= limit if self.relation == "at_least" else measured <= limit,
        }


@dataclass(frozen=True)
class Case:
    """Our jobs, the baselines beside which they are measured, and what is aimed at.

    Attributes:
        meaning: What is measured, in one sentence.
        parameters: What the jobs are given, unless the command line says otherwise.
        ours: Our jobs; no two have a figure of the same name.
        baselines: The baselines; no two have a figure of the same name.
        targets: The targets.
        derived: Figures that the report computes from those of the jobs.
        rounds: How often each job runs, unless the command line says otherwise.
    """

    meaning: str
    parameters: Parameters
    ours: tuple[Job, ...]
    baselines: tuple[Job, ...]
    targets: tuple[Target, ...]
    derived: tuple[Derived, ...] = ()
    rounds: int = 3


def measure(
    name: str,
    case: Case,
    parameters: Parameters,
    rounds: int,
    run: Runner,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run all jobs of a case, one after the other in each round, and report.

    Args:
        name: Name of the case.
        case: The case.
        parameters: What its jobs are given.
        rounds: How often each job runs.
        run: Runs a job.
        progress: Takes a line for each job that ended.
    """
    load = os.getloadavg()[0]
    ours: Rounds = []
    beside: Rounds = []
    for number in range(rounds):
        for jobs, figures_of_rounds in ((case.baselines, beside), (case.ours, ours)):
            figures_of_rounds.append({})
            for job in jobs:
                figures = job.read(run(job.arguments(parameters)))
                progress(f"round {number + 1} {job.name}: {_line(figures)}")
                figures_of_rounds[-1] |= figures
    report: dict[str, Any] = {
        "case": name,
        "parameters": {**parameters, "rounds": rounds, "parallelism": 1},
        "ours": _summaries(ours),
        "baselines": {job.name: _summaries(beside, job.figures) for job in case.baselines},
        "ratio": _summaries(_compare(case, "ratio", ours, beside)),
        "difference": _summaries(_compare(case, "difference", ours, beside)),
    }
    report["targets"] = [target.judge(report) for target in case.targets]
    report["machine"] = describe_machine(load)
    return report


def describe_machine(load: float) -> dict[str, Any]:
    """Return what a report says about this machine; ``load`` is its load average before the measurement."""
    return {
        "cpus": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def run_job(arguments: list[str]) -> Figures:
    """Run a module in a new process; returns the figures in its last line of JSON."""
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        # Else a round would resume one that was interrupted. Set the variable to measure what that costs.
        env={"FLINK_AGENTS_LOCAL_RESUME": "never", **os.environ},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    figures: Figures = json.loads(lines[-1])
    if "first_output" in figures:
        figures["first_output_seconds"] = figures.pop("first_output") - started
    return figures


def _compare(case: Case, part: Literal["ratio", "difference"], ours: Rounds, beside: Rounds) -> Rounds:
    """Compare the figures that both have, and compute the derived ones, round by round."""
    compare = truediv if part == "ratio" else sub
    return [
        {figure: compare(a[figure], b[figure]) for figure in a if figure in b}
        | {derived.figure: derived.compute(a, b) for derived in case.derived if derived.part == part}
        for a, b in zip(ours, beside, strict=True)
    ]


def _summaries(rounds: Rounds, figures: Iterable[str] | None = None) -> dict[str, Figures]:
    return {
        figure: _summary([round_figures[figure] for round_figures in rounds])
        for figure in figures or rounds[0]
    }


def _summary(values: list[float]) -> Figures:
    return {"min": min(values), "median": median(values), "max": max(values)}


def _line(figures: Figures) -> str:
    return ", ".join(f"{figure} {value:.3f}" for figure, value in figures.items())
