"""Runs a benchmark case against its baseline, rounds interleaved, and prints one JSON object.

``python -m benchmarks static --json``: steady events per second of two chained actions with a
counter in short-term memory, beside a bare ``KeyedProcessFunction`` with one state value.
``python -m benchmarks startup --json``: seconds from process start to the first output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from flink_agents.runtime.jvm import prepare_process

Figures = dict[str, float]


def main() -> None:
    """Run the case that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, help="default: 80000 (static), 1000 (startup)")
    parser.add_argument("--keys", type=int, default=100)
    arguments = parser.parse_args()
    prepare_process()  # Only ours would find Java and Python by itself.
    progress: Callable[[str], None] = (lambda line: None) if arguments.json else print
    print(json.dumps(CASES[arguments.case](arguments, progress)))


def static(arguments: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Steady throughput; higher is better."""
    events = arguments.events or 80_000
    ours, bare = _rounds(arguments.rounds, events, arguments.keys, "events_per_second", progress)
    return _report("static", arguments, events, "events/s", ours, bare)


def startup(arguments: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Seconds to the first output; the difference to the bare function counts."""
    events = arguments.events or 1000
    ours, bare = _rounds(arguments.rounds, events, arguments.keys, "first_output_seconds", progress)
    report = _report("startup", arguments, events, "s", ours, bare)
    report["difference"] = _summary([a - b for a, b in zip(ours, bare, strict=True)])
    return report


CASES: dict[str, Callable[..., dict[str, Any]]] = {"static": static, "startup": startup}


def _rounds(
    rounds: int, events: int, keys: int, figure: str, progress: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    measured: dict[str, list[float]] = {"bare": [], "ours": []}
    for number in range(rounds):
        for job in ("bare", "ours"):
            value = _job(job, events, keys)[figure]
            measured[job].append(value)
            progress(f"round {number + 1} {job}: {value:.3f}")
    return measured["ours"], measured["bare"]


def _job(job: str, events: int, keys: int) -> Figures:
    """Run the module of that name in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.{job}", str(events), str(keys)]
    started = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout}\n{done.stderr}")
    figures: Figures = json.loads(lines[-1])
    figures["first_output_seconds"] = figures.pop("first_output") - started
    return figures


def _report(
    case: str, arguments: argparse.Namespace, events: int, unit: str, ours: list[float], bare: list[float]
) -> dict[str, Any]:
    return {
        "case": case,
        "parameters": {
            "events": events,
            "keys": arguments.keys,
            "rounds": arguments.rounds,
            "parallelism": 1,
            "unit": unit,
        },
        "ours": _summary(ours),
        "baselines": {"bare": _summary(bare)},
        "ratio": _summary([a / b for a, b in zip(ours, bare, strict=True)]),
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }


def _summary(values: list[float]) -> Figures:
    return {"min": min(values), "median": median(values), "max": max(values)}


if __name__ == "__main__":
    main()
