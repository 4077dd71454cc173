"""Kill TaskManagers of a real cluster while a durable job runs; check each output and each effect.

    python -m tests.chaos --store sqlite --events 5000 --keys 50 --kills 5 --seed 1 --json
    python -m tests.chaos --job branching --events 5000 --kills 5
    python -m tests.chaos --store kafka --events 100000 --kills 30 --overlaps 3 --outage 60 --json
    python -m tests.chaos --local --kills 100

With ``--local`` the job runs in its script, which is killed and started again: see ``tests.local_chaos``.

With the store kafka, a broker is started for the run. It is paused, stopped or killed for up to two seconds
again and again, and some kills hit the recovery from the previous kill.

Exit code 1 if anything was lost, duplicated, reordered, repeated after its record, or differs from
the model, or if the job made no more progress. The directory of a failed run is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.blows import HEARTBEATS, PATIENT
from tests.cluster.branching_check import workload_of
from tests.cluster.broker_trouble import BrokerTrouble
from tests.cluster.durable_run import Chaos, DurableRun, Report, print_line
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import DURABLE_JOBS, Combination
from tests.local_chaos import command as local

BROKERED = "kafka"
"""The store that needs a broker."""

CLIENT_SECONDS = 30.0
"""The longest pause of a client between two attempts to reach a broker."""


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
    parser.add_argument("--job", choices=DURABLE_JOBS, default="chain", help="the agent to run")
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--per-second", type=float, default=250, help="speed of the source")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    parser.add_argument("--unaligned", action="store_true", help="barriers overtake records")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--taskmanagers", type=int, default=2, help="with 2, one survives each kill")
    parser.add_argument("--stuck-after", type=float, default=60, help="seconds without new output")
    parser.add_argument("--directory", type=Path, help="directory of the run; default: a temporary one")
    parser.add_argument(
        "--overlaps", type=int, default=0, help="attempts that continue while their successors run"
    )
    parser.add_argument("--rebuilds", type=int, help="kills in a rebuild; default: one in six, with a broker")
    parser.add_argument("--outage", type=float, default=0, help="seconds of one outage of the broker")
    parser.add_argument("--calm-broker", action="store_true", help="only the outage, and kills in a rebuild")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.parallelism % options.taskmanagers:
        parser.error("the parallelism must be a multiple of the number of TaskManagers")
    if unfit := [option for option in options.store_option if "=" not in option]:
        parser.error(f"--store-option takes NAME=VALUE, not {unfit[0]!r}")
    if options.rebuilds is None:
        options.rebuilds = -(-options.kills // 6) if options.store == BROKERED and options.kills > 1 else 0
    if options.rebuilds and options.store != BROKERED:
        parser.error(f"only the store {BROKERED} is rebuilt")
    if 2 * options.rebuilds > options.kills:
        parser.error("--rebuilds takes two of the --kills each")
    return options


def chaos_of(options: argparse.Namespace) -> Chaos:
    """What the arguments ask for."""
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    combination = Combination(options.backend, options.unaligned, options.parallelism, options.taskmanagers)
    workload = workload_of(options.job, options.events, options.keys)
    # A client of a broker that was away comes back after its pause between two attempts, at most.
    stuck_after = options.stuck_after + options.outage + (CLIENT_SECONDS if options.store == BROKERED else 0)
    return Chaos(
        workload,
        options.kills,
        seed,
        options.per_second,
        combination,
        stuck_after,
        options.rebuilds,
        options.overlaps,
    )


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run in a cluster of its own."""
    store_options = dict(option.split("=", 1) for option in options.store_option)
    chaos = chaos_of(options)
    print_line(f"seed {chaos.seed}, {chaos.combination}, in {directory}")
    with ExitStack() as stack:
        trouble: BrokerTrouble | None = None
        store = RunStore.for_directory(options.store, directory, store_options)
        if options.store == BROKERED:
            broker = stack.enter_context(KafkaBroker(directory / "kafka"))
            store = RunStore.in_kafka(broker.bootstrap_servers, store_options)
            trouble = BrokerTrouble(broker, chaos.seed, options.outage, not options.calm_broker)
        flink = (HEARTBEATS, PATIENT) if chaos.overlaps else (None, None)
        cluster = stack.enter_context(FlinkCluster(directory / "flink", *flink))
        return DurableRun(cluster, directory, chaos, store, trouble).execute()


def show(report: Report, as_json: bool) -> int:
    """Print a report; returns the exit code."""
    if report.failure is not None:
        print_line(report.failure)
    figures = report.as_json()
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<22} {value}")
    return 0 if report.clean else 1


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--local" in arguments:
        return local.main([argument for argument in arguments if argument != "--local"])
    options = parse_arguments(arguments)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    report = run(options, directory.absolute())
    if report.clean and options.directory is None:
        shutil.rmtree(directory)
    return show(report, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
