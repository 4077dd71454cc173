"""Kill TaskManagers of a real cluster while a durable job runs; check each output and each effect.

    python -m tests.chaos --store sqlite --events 5000 --keys 50 --kills 5 --seed 1 --json

Exit code 1 if anything was lost, duplicated, reordered, repeated after its record, or differs from
the model, or if the job stopped moving. The directory of a failed run stays.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path

from tests.cluster.durable_check import Workload
from tests.cluster.durable_run import Chaos, DurableRun, Report, tell
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import Combination


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", default="sqlite", help="name of the store")
    parser.add_argument(
        "--store-option", action="append", default=[], metavar="NAME=VALUE", help="an option of the store"
    )
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--per-second", type=float, default=250, help="speed of the source")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    parser.add_argument("--unaligned", action="store_true", help="barriers overtake records")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--taskmanagers", type=int, default=2, help="at 2, one lives on")
    parser.add_argument("--stuck-after", type=float, default=60, help="seconds without new output")
    parser.add_argument("--directory", type=Path, help="where the run is kept; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.parallelism % options.taskmanagers:
        parser.error("the parallelism must be a multiple of the number of TaskManagers")
    if unfit := [option for option in options.store_option if "=" not in option]:
        parser.error(f"--store-option takes NAME=VALUE, not {unfit[0]!r}")
    return options


def chaos_of(options: argparse.Namespace) -> Chaos:
    """What the arguments ask for."""
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    combination = Combination(options.backend, options.unaligned, options.parallelism, options.taskmanagers)
    workload = Workload(options.events, options.keys)
    return Chaos(workload, options.kills, seed, options.per_second, combination, options.stuck_after)


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run in a cluster of its own."""
    given = dict(option.split("=", 1) for option in options.store_option)
    chaos, store = chaos_of(options), RunStore.of(options.store, directory, given)
    tell(f"seed {chaos.seed}, {chaos.combination}, in {directory}")
    with FlinkCluster(directory / "flink") as cluster:
        return DurableRun(cluster, directory, chaos, store).execute()


def show(report: Report, as_json: bool) -> int:
    """Print a report; returns the exit code."""
    if report.failure is not None:
        tell(report.failure)
    found = report.as_json()
    if as_json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<22} {value}")
    return 0 if report.clean else 1


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    report = run(options, directory.absolute())
    if report.clean and options.directory is None:
        shutil.rmtree(directory)
    return show(report, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
