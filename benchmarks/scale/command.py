"""``python -m benchmarks scale``: layouts, keys and suspended runs beside the model; prints JSON.

``layouts``    inputs per second of one process with one and with two slots, and of two processes, on all
               cores or with a core each (*pinned*); two actions with a counter (``count``), and two durable
               steps with a counter (``durable``)
``keys``       CPU time and memory per key that came once, size of a checkpoint, seconds of a restart
``suspended``  the same for runs that sleep

A size is measured after two smaller ones, from which the model predicts it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import describe_machine
from benchmarks.scale.cluster import Layout, Sample, ScaleJob, running_job
from benchmarks.scale.job import EVERY
from benchmarks.scale.model import InputCost, Line, Prediction, million

PARTS = ("layouts", "keys", "suspended")
ONE_PROCESS = Layout()
ONE_CORE = Layout(pinned=True)
PREDICTED = (Layout(1, 2), Layout(2, 1), Layout(2, 1, pinned=True))
LAYOUTS = (ONE_PROCESS, ONE_CORE, *PREDICTED)
KEYS_OF_LAYOUTS = 5000
COUNTS_PER_STEP = 8
"""So many inputs of ``count`` take the time of one of ``durable``."""

STEADY = (0.3, 0.9)
"""The shares of all inputs between which a rate is measured."""

FEW = 1000
SOME = 300_000
"""The two smaller sizes, unless the size that is predicted from them is small itself."""

GB = 2**30
Figures = dict[str, float]
Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 1 if the model is wrong by more than it may be."""
    options = _parser().parse_args(arguments)
    # A supervisor ends this with SIGTERM: what was started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say: Say = (lambda line: None) if options.json else print
    report = measure(options, say)
    for prediction in report["predictions"]:
        say(
            "{figure}: predicted {predicted:.4g}, measured {measured:.4g}, ratio {ratio:.2f}".format(
                **prediction
            )
        )
    print(json.dumps(report))
    return 0 if all(prediction["met"] for prediction in report["predictions"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale",
        description="Measures layouts, keys and suspended runs on clusters of this machine, and "
        "compares them with a model.",
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--workload", choices=("count", "durable"), help="of the layouts; default: both")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of all layouts; default: 1")
    parser.add_argument("--events", type=int, default=160_000, help="inputs of a layout; default: 160,000")
    parser.add_argument("--keys", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--suspended", type=int, default=50_000, help="suspended runs; default: 50,000")
    parser.add_argument(
        "--backend", choices=("rocksdb", "hashmap"), default="rocksdb", help="default: rocksdb"
    )
    parser.add_argument(
        "--memory", default="1728 mb", help="memory of a TaskManager; default: Flink's 1728 mb"
    )
    return parser


def measure(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Measure the parts that the options name, and return the report."""
    parts = options.part or PARTS
    report: dict[str, Any] = {"case": "scale", "parameters": vars(options) | {"part": list(parts)}}
    predictions: list[Prediction] = []
    load = os.getloadavg()[0]
    if "layouts" in parts:
        inputs_of = {"count": options.events, "durable": options.events // COUNTS_PER_STEP}
        if options.workload is not None:
            inputs_of = {options.workload: inputs_of[options.workload]}
        report["layouts"], more = measure_layouts(inputs_of, options.rounds, say)
        predictions += more
    for part, workload, number in (
        ("keys", "count", options.keys),
        ("suspended", "sleep", options.suspended),
    ):
        if part in parts:
            report[part], more = measure_growth(part, workload, number, options, say)
            predictions += more
    if {"layouts", "keys"} <= set(parts):
        report["million"] = _million(report)
    report["predictions"] = [prediction.judge() for prediction in predictions]
    report["machine"] = describe_machine(load)
    return report


# -- layouts ------------------------------------------------------------------------------


def measure_layouts(
    inputs_of: dict[str, int], rounds: int, say: Say
) -> tuple[dict[str, Any], list[Prediction]]:
    """Measure workloads in each layout, in rounds of all layouts.

    Args:
        inputs_of: The number of inputs by workload.
        rounds: The number of rounds.
        say: Takes a line for each job.
    """
    figures: dict[str, Any] = {}
    predictions: list[Prediction] = []
    for workload, inputs in inputs_of.items():
        measured = [
            {str(layout): _measure_rate(workload, inputs, layout, say) for layout in LAYOUTS}
            for _ in range(rounds)
        ]
        figures[workload] = {
            str(layout): {
                figure: median(of_round[str(layout)][figure] for of_round in measured)
                for figure in measured[0][str(layout)]
            }
            for layout in LAYOUTS
        }
        cost = _cost(figures[workload])
        predictions += [
            Prediction(
                f"{workload}, {layout}: inputs per second",
                cost.rate(layout),
                figures[workload][str(layout)]["inputs_per_second"],
            )
            for layout in PREDICTED
        ]
    return figures, predictions


def _measure_rate(workload: str, inputs: int, layout: Layout, say: Say) -> Figures:
    with tempfile.TemporaryDirectory(prefix="scale-journal-") as folder:
        journal = Path(folder) / "journal.sqlite"
        store = {"action-state.store": "sqlite", "action-state.sqlite.path": str(journal)}
        config = store if workload == "durable" else {}
        with running_job(workload, inputs, KEYS_OF_LAYOUTS, layout, config=config) as job:
            first, last = (job.wait_for_inputs(int(share * inputs)) for share in STEADY)
            stored = sum(file.stat().st_size for file in Path(folder).iterdir())
    figures = _between(first, last) | {"journal_bytes_per_input": stored / last.inputs}
    say(f"{workload}, {layout}: {_line(figures)}")
    return figures


def _between(first: Sample, last: Sample) -> Figures:
    inputs = last.inputs - first.inputs
    return {
        "inputs_per_second": inputs / (last.seconds - first.seconds),
        "cpu_us_per_input": 1e6 * (last.cpu_seconds - first.cpu_seconds) / inputs,
        "resident_gb": last.resident_bytes / GB,
    }


def _cost(layouts: dict[str, Figures]) -> InputCost:
    alone = layouts[str(ONE_PROCESS)]
    rate_on_core = layouts[str(ONE_CORE)]["inputs_per_second"]
    return InputCost(1 / alone["inputs_per_second"], 1 / rate_on_core, alone["journal_bytes_per_input"])


# -- keys and suspended runs --------------------------------------------------------------


def measure_growth(
    part: str, workload: str, number: int, options: argparse.Namespace, say: Say
) -> tuple[dict[str, Any], list[Prediction]]:
    """Measure a number of keys, or of suspended runs, after two smaller numbers.

    Args:
        part: ``keys`` or ``suspended``.
        workload: The workload of the job.
        number: The number.
        options: Those of the command: state backend and memory.
        say: Takes a line for each number.
    """
    numbers = (min(FEW, number // 4), min(SOME, number // 3), number)
    flink = {"state.backend.type": options.backend, "taskmanager.memory.process.size": options.memory}
    figures: dict[int, Figures] = {}
    for size in numbers:
        with running_job(workload, size, size, ONE_CORE, probed=True, options=flink) as job:
            figures[size] = _grow(job, size)
        say(f"{size} {part}: {_line(figures[size])}")
    few, some, many = numbers
    predictions = [
        Prediction(
            f"{many} {part}: {figure}", _line_of(figures, few, some, figure).at(many), figures[many][figure]
        )
        for figure in ("checkpoint_bytes", "resident_bytes", "restart_seconds")
    ]
    cpu = "cpu_us_each"
    predictions.append(Prediction(f"{many} {part}: {cpu}", figures[some][cpu], figures[many][cpu]))
    return {str(size): figures[size] for size in numbers}, predictions


def _grow(job: ScaleJob, size: int) -> Figures:
    first, last = (job.wait_for_inputs(int(share * size)) for share in STEADY)
    job.wait_for_inputs(size - size % EVERY)
    heap_bytes = job.heap_bytes()
    resident_bytes = job.sample().resident_bytes
    checkpoint = job.checkpoint()
    return {
        "inputs_per_second": _between(first, last)["inputs_per_second"],
        "cpu_us_each": _between(first, last)["cpu_us_per_input"],
        "heap_bytes": heap_bytes,
        "resident_bytes": resident_bytes,
        "checkpoint_bytes": checkpoint.bytes,
        "checkpoint_seconds": checkpoint.seconds,
        "restart_seconds": job.restart(),
    }


def _line_of(figures: dict[int, Figures], first: int, second: int, figure: str) -> Line:
    return Line.through((first, figures[first][figure]), (second, figures[second][figure]))


def _million(report: dict[str, Any]) -> dict[str, Any]:
    keys = {int(size): figures for size, figures in report["keys"].items()}
    few, *_, many = sorted(keys)
    lines = [_line_of(keys, few, many, figure) for figure in ("checkpoint_bytes", "restart_seconds")]
    return {
        workload: million(_cost(layouts), layouts[str(ONE_CORE)]["resident_gb"] * GB, *lines)
        for workload, layouts in report["layouts"].items()
    }


def _line(figures: Figures) -> str:
    return ", ".join(f"{figure} {value:.4g}" for figure, value in figures.items())
