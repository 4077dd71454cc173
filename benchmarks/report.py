"""Runs the jobs of a case in rounds, and makes one report of what they measured.

The report has the same shape for every case; each figure has its unit in its name:

``case``        its name
``parameters``  what the jobs were given, and ``rounds``
``ours``        each figure with ``min``, ``median`` and ``max`` over the rounds
``baselines``   the same by the name of the baseline
``ratio``       ours divided by the baselines of the same round, for each figure that both have
``difference``  ours less the baselines of the same round, for the same figures
``targets``     a list: ``part`` of the report, ``figure``, ``statistic``, ``at_least`` or ``at_most``,
                what was ``measured``, and whether that is ``met``
``machine``     where it ran; ``load`` is the load average before the first round
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
from statistics import median
from typing import Any, Literal

Figures = dict[str, float]
Parameters = dict[str, int | float | str]
Runner = Callable[[list[str]], Figures]
Rounds = list[Figures]


@dataclass(frozen=True)
class Job:
    """A job with a process of its own.

    Attributes:
        name: Its name.
        command: Module and arguments; names in braces are parameters of the case.
        figures: Which of the figures that it prints are reported.
    """

    name: str
    command: str
    figures: tuple[str, ...]

    def arguments(self, parameters: Parameters) -> list[str]:
        """What follows ``python -m``."""
        return self.command.format(**parameters).split()


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
        rounds: How often each job runs, unless the command line says otherwise.
    """

    meaning: str
    parameters: Parameters
    ours: tuple[Job, ...]
    baselines: tuple[Job, ...]
    targets: tuple[Target, ...]
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
        for jobs, found in ((case.baselines, beside), (case.ours, ours)):
            found.append({})
            for job in jobs:
                printed = run(job.arguments(parameters))
                figures = {figure: printed[figure] for figure in job.figures}
                progress(f"round {number + 1} {job.name}: {_line(figures)}")
                found[-1] |= figures
    report: dict[str, Any] = {
        "case": name,
        "parameters": {**parameters, "rounds": rounds, "parallelism": 1},
        "ours": _summaries(ours),
        "baselines": {job.name: _summaries(beside, job.figures) for job in case.baselines},
        "ratio": _summaries(_compare(ours, beside, lambda a, b: a / b)),
        "difference": _summaries(_compare(ours, beside, lambda a, b: a - b)),
    }
    report["targets"] = [target.judge(report) for target in case.targets]
    report["machine"] = {
        "cpus": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    return report


def run_job(arguments: list[str]) -> Figures:
    """Run a module in a process of its own; returns the figures in its last line of JSON."""
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    figures: Figures = json.loads(lines[-1])
    if "first_output" in figures:
        figures["first_output_seconds"] = figures.pop("first_output") - started
    return figures


def _compare(ours: Rounds, beside: Rounds, how: Callable[[float, float], float]) -> Rounds:
    """Figures that both have, round by round."""
    return [
        {figure: how(a[figure], b[figure]) for figure in a if figure in b}
        for a, b in zip(ours, beside, strict=True)
    ]


def _summaries(rounds: Rounds, figures: Iterable[str] | None = None) -> dict[str, Figures]:
    return {figure: _summary([one[figure] for one in rounds]) for figure in figures or rounds[0]}


def _summary(values: list[float]) -> Figures:
    return {"min": min(values), "median": median(values), "max": max(values)}


def _line(figures: Figures) -> str:
    return ", ".join(f"{figure} {value:.3f}" for figure, value in figures.items())
