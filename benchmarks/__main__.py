"""Runs a benchmark case and its baseline in interleaved rounds, and prints one JSON object.

``python -m benchmarks CASE --json``. ``--help`` lists the cases; ``benchmarks.report`` describes the
report.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from benchmarks.brokers import broker_for_jobs
from benchmarks.cases import CASES
from benchmarks.report import Runner, measure, run_job
from flink_agents.runtime.flink.launch.jvm import prepare_process

PARAMETERS = ("events", "keys")
"""Numbers among the parameters of cases that the command line can change."""

STORES = ("sqlite", "kafka", "memory", "none")


def main(arguments: Sequence[str] | None = None, run: Runner = run_job) -> None:
    """Run the case that the command line names.

    Args:
        arguments: The command line; that of this process by default.
        run: Runs a job.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["peers"]:
        from benchmarks.peers.command import main as peers

        sys.exit(peers(words[1:]))
    if words[:1] == ["scale"]:
        from benchmarks.scale.command import main as scale

        sys.exit(scale(words[1:]))
    parser = _parser()
    options = parser.parse_args(words)
    case = CASES[options.case]
    parameters = dict(case.parameters)
    for name in (*PARAMETERS, "store"):
        value = getattr(options, name)
        if value is None:
            continue
        if name not in parameters:
            parser.error(f"the case {options.case} has no {name}")
        parameters[name] = value
    prepare_process()  # Only ours would find Java and Python by itself.
    progress: Callable[[str], None] = (lambda line: None) if options.json else print
    with broker_for_jobs() if parameters.get("store") == "kafka" else nullcontext():
        report = measure(options.case, case, parameters, options.rounds or case.rounds, run, progress)
    print(json.dumps(report))


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, CASES)) + 2
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Runs a case beside its baseline, rounds interleaved, and prints one JSON object. "
        "For other systems with one workload: python -m benchmarks peers --help. "
        "For layouts of a cluster, many keys and suspended runs: python -m benchmarks scale --help",
        epilog="cases:\n" + "\n".join(f"  {name:{width}}{case.meaning}" for name, case in CASES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    often = ", ".join(f"{case.rounds} ({name})" for name, case in CASES.items() if case.rounds != 3)
    parser.add_argument("--rounds", type=_positive, help=f"number of runs of each job; default: 3, {often}")
    for name in PARAMETERS:
        defaults = ", ".join(
            f"{case.parameters[name]} ({case_name})"
            for case_name, case in CASES.items()
            if name in case.parameters
        )
        parser.add_argument(f"--{name}", type=_positive, help=f"default: {defaults}")
    parser.add_argument(
        "--store",
        choices=STORES,
        help="where durable calls are recorded, nowhere with none; default: "
        + ", ".join(
            f"{case.parameters['store']} ({case_name})"
            for case_name, case in CASES.items()
            if "store" in case.parameters
        ),
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    main()
