"""Kill TaskManagers of a real cluster while runs sleep and wait for answers; check that each resumes once.

    python -m tests.chaos_waits sleeps --inputs 200 --seconds 4 --json
    python -m tests.chaos_waits approvals --inputs 500 --json
    python -m tests.chaos_waits approvals --inputs 500 --keys 20 --json
    python -m tests.chaos_waits savepoint --inputs 10000 --json

``sleeps`` kills at a quarter to a half of the pauses, and once more when some have ended. ``approvals``
answers in a random order: a third before a kill, a third during the restart, a third after it; with
``--keys``, inputs overtake the waiting runs of a key, and all of them count in one path of its memory.
``savepoint`` stops the job while all runs wait, and resumes with another parallelism.

Exit code 1 if a run was lost or repeated, slept for too short a time, or got the answer of another run, or
if the job failed for any reason but a killed process.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.waits_run import WaitsReport, approvals, rescaled, sleeps


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos_waits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("sleeps", "approvals", "savepoint"))
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of a sleep")
    parser.add_argument("--keys", type=int, help="for approvals: number of keys, whose runs inputs overtake")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, directory: Path) -> WaitsReport:
    """Run in a cluster of its own."""
    with FlinkCluster(directory / "flink") as cluster:
        if options.what == "sleeps":
            return sleeps(cluster, directory, options.inputs, options.seconds, options.seed)
        if options.what == "approvals":
            return approvals(cluster, directory, options.inputs, options.seed, options.keys)
        return rescaled(cluster, directory, options.inputs, options.seed, options.backend)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    directory = Path(tempfile.mkdtemp(prefix="chaos-waits-"))
    report = run(options, directory)
    figures = {"what": options.what, "seed": options.seed, **asdict(report), "clean": report.clean}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<14} {value}")
    if report.clean:
        shutil.rmtree(directory)
    return 0 if report.clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
