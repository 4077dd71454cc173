"""Put a local job under load, kill it, and fit what its resources grow by.

    python -m tests.soak                          # two hours: both stores, hashmap and RocksDB
    python -m tests.soak --minutes 40 --only 0 3  # shorter; with less for each, nothing can be judged

Each combination of store and backend gets its share of the time. Inputs make steps, sleep, wait for signals,
call a sub-agent, or become dead letters; in some cycles, there are new keys. A sample counts if it is from
the end of a cycle, when state has forgotten these, and if the job is not behind. Each cycle is a point of the
fit, by the median of its samples. Exit code 1 if an input was lost or left twice, or if a resource grows per
1,000 inputs or per new key, has too few cycles, or is larger than its option allows. The directory of a run
that failed stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kafka.admin import KafkaAdminClient

from benchmarks.peers.command import RESULTS
from benchmarks.peers.page import write_page
from benchmarks.peers.soak import FIGURES
from benchmarks.retained import retained_sizes
from flink_agents.testing.kafka import KafkaBroker
from tests.local_chaos.kills import Start
from tests.soak import measures
from tests.soak.load import Load, Outcomes
from tests.soak.measures import CAPS, LIMITS, LOG_FILES, LOG_MB, TRACE_MB
from tests.soak.plan import BUSY, CYCLE, new_keys
from tests.soak.slopes import Limit, Row, growing, slopes_of

COMBINATIONS = [(store, backend) for store in ("sqlite", "kafka") for backend in ("hashmap", "rocksdb")]
TOPICS = ("orders", "answers", "handled", "letters")
KILL_AFTER = 0.2
"""The share of the time after which the kill comes."""
WARM_UP = 0.2
"""The share of the cycles after the kill that do not count."""
FEWEST_CYCLES = 8
"""A resource with fewer cycles is not judged."""
SAMPLE_SECONDS = 4.0
SETTLE_SECONDS = 18.0
"""The time after which state has forgotten keys and signals."""
BEHIND_SECONDS = 20.0
"""A job with more inputs to handle is behind."""
PATIENCE = 600.0
JOURNAL = "soak-journal"
HEAP = "-Xms512m -Xmx512m -XX:+AlwaysPreTouch"
"""All of the Java heap is resident from the start, so that RSS shows the rest."""


class Cycles:
    """Finds the samples that count.

    Args:
        rate: Inputs a second.
    """

    def __init__(self, rate: float) -> None:
        self._most_behind = BEHIND_SECONDS * rate
        self._quiet = -1
        self._since = 0.0

    def settled(self, committed: int, sent: int, now: float) -> int | None:
        """Return the number of the present cycle if its new keys are forgotten; else None.

        Args:
            committed: Inputs with a committed output.
            sent: All inputs.
            now: The time in seconds.
        """
        cycle, place = divmod(committed, CYCLE)
        if place < BUSY or sent // CYCLE != cycle or sent - committed > self._most_behind:
            return None
        if cycle != self._quiet:
            self._quiet = cycle
            self._since = now
        return cycle if now - self._since >= SETTLE_SECONDS else None


class Soak:
    """One job under load.

    Args:
        store: The store of its journals.
        backend: Its state backend.
        seconds: The time under load.
        rate: Inputs a second.
        directory: A directory of its own.
        client: Options of clients.
    """

    def __init__(
        self,
        store: str,
        backend: str,
        seconds: float,
        rate: float,
        directory: Path,
        client: dict[str, Any],
    ) -> None:
        self._seconds = seconds
        self._directory = directory
        config: dict[str, Any] = {
            "memory.short-term.ttl": "3 s",
            "state.idle-key-ttl": "3 s",
            "signals.ttl": "6 s",
            "trace.level": "calls",
            "trace.directory": str(directory / "trace"),
            "trace.file-size-mb": 1,
            "trace.total-size-mb": TRACE_MB,
            "local.state-dir": str(directory / "state"),
            "local.checkpoint-interval": "2 s",
            "local.log-size-mb": LOG_MB,
            "local.log-files": LOG_FILES,
            "action-state.store": store,
            # Known pruned keys are bounded; the bound is reached soon.
            f"action-state.{store}.max-tombstones": 200,
        }
        if store == "kafka":
            config["action-state.kafka.bootstrap-servers"] = client["bootstrap_servers"]
            config["action-state.kafka.topic"] = JOURNAL
        self._settings = {
            "directory": str(directory),
            "backend": backend,
            "brokers": client,
            "config": config,
        }
        self._config = config
        self._store = store
        self._rate = rate
        self._outcomes = Outcomes(client)
        self._load = Load(client, rate, self._outcomes)
        self._cycles: dict[int, list[dict[str, float]]] = {}
        self._largest = dict.fromkeys(CAPS, 0.0)
        self._loads: list[float] = []
        self._folder = directory / "state" / "jobs" / "soak"

    def execute(self) -> dict[str, Any]:
        """Run to the end; return the report."""
        self._outcomes.start()
        self._load.start()
        start = self._begin(self._seconds * KILL_AFTER)
        start.kill("tree")
        # The second start has all that the kill left.
        self._cycles.clear()
        start = self._begin(self._seconds * (1 - KILL_AFTER))
        self._load.complete()
        end = time.monotonic() + PATIENCE
        while len(self._outcomes.counts) < self._load.sent and time.monotonic() < end:
            time.sleep(1)
        # What would come a second time comes now.
        time.sleep(5)
        start.stop()
        self._load.end()
        self._outcomes.end()
        return self._report()

    def _begin(self, seconds: float) -> Start:
        """Start the job; return after a time under load."""
        script = Path(__file__).with_name("job.py")
        started_seconds = time.time()
        cycles = Cycles(self._rate)
        start = Start(self._settings, self._directory / "output", script, HEAP)
        while time.time() < started_seconds + seconds:
            time.sleep(SAMPLE_SECONDS)
            if start.process.poll() is not None:
                raise RuntimeError(f"the script has ended:\n{start.printed()[-3000:]}")
            cycle = cycles.settled(len(self._outcomes.counts), self._load.sent, time.monotonic())
            sample = self._sample(start, started_seconds)
            if cycle is not None:
                samples = self._cycles.setdefault(cycle, [])
                sample |= self._measure_journal(samples)
                samples.append(sample)
            self._loads.append(sample["load"])
            for name, size in self._largest.items():
                self._largest[name] = max(size, sample[name])
            with (self._directory / "samples").open("a") as lines:
                lines.write(json.dumps({"time": time.time(), "cycle": cycle, **sample}) + "\n")
        return start

    def _sample(self, start: Start, begun: float) -> dict[str, float]:
        directory = self._directory
        return {
            "inputs": len(self._outcomes.counts),
            "sent": self._load.sent,
            "load": os.getloadavg()[0],
            **measures.of_processes(start.tree()),
            **measures.newest(
                directory / "objects", begun, {"Python objects": "objects", "Python cycles": "cycles"}
            ),
            **measures.newest(directory / "heap", begun, {"Java heap": "heap"}),
            **measures.of_checkpoint(self._folder / "checkpoints"),
            "trace bytes": measures.size_of(directory / "trace"),
            "log bytes": measures.size_of(directory / ".flink-agents" / "logs"),
        }

    def _measure_journal(self, samples: Sequence[dict[str, float]]) -> dict[str, float]:
        if self._store == "sqlite":
            return measures.of_sqlite(self._folder)
        # Once in a cycle, because it reads the whole topic.
        return {} if samples else _kafka_journal(self._config)

    def _report(self) -> dict[str, Any]:
        counts = self._outcomes.counts
        sent = self._load.sent
        rows = {name: self._rows(name) for name in LIMITS}
        judged = {name: row for name, row in rows.items() if _can_be_judged(row, LIMITS[name])}
        return {
            "inputs": sent,
            "new_keys": new_keys(sent),
            "load": round(median(self._loads), 1) if self._loads else 0.0,
            "lost": sent - len(counts),
            "doubled": sum(count > 1 for count in counts.values()),
            "growing": [
                f"{name} {kind}" for name, row in judged.items() for kind in growing(row, LIMITS[name])
            ],
            "not_judged": [name for name in LIMITS if name not in judged],
            "too_large": {name: size for name, size in self._largest.items() if size > CAPS[name]},
            "cycles": {name: [round(value, 1) for _, _, value in row] for name, row in rows.items()},
            "slopes": {
                name: {
                    kind: [round(slope.value, 4), round(slope.error, 4)]
                    for kind, slope in slopes_of(row, LIMITS[name]).items()
                }
                for name, row in judged.items()
            },
        }

    def _rows(self, name: str) -> list[Row]:
        """Return a row for each cycle that counts."""
        cycles = list(self._cycles.values())
        rows: list[Row] = []
        for samples in cycles[round(WARM_UP * len(cycles)) :]:
            values = [sample[name] for sample in samples if name in sample]
            if values:
                inputs = median(sample["inputs"] for sample in samples)
                rows.append((inputs, new_keys(int(inputs)), median(values)))
        return rows


def _can_be_judged(rows: Sequence[Row], limit: Limit) -> bool:
    with suppress(ValueError):
        growing(rows, limit)
        return len(rows) >= FEWEST_CYCLES
    return False


def _kafka_journal(config: dict[str, Any]) -> dict[str, float]:
    prefix = "action-state.kafka."
    options = {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}
    sizes = retained_sizes(options)
    return {"journal rows": len(sizes), "journal bytes": sum(sizes) / 1024}


def run_combination(store: str, backend: str, seconds: float, rate: float) -> dict[str, Any]:
    """Run a combination in a directory of its own, which stays if something is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    with KafkaBroker(directory / "kafka") as broker:
        client = broker.client_options
        admin: Any = KafkaAdminClient(**client)
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1} for name in TOPICS})
        admin.close()
        report = Soak(store, backend, seconds, rate, directory, client).execute()
    if is_clean(report):
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"kept: {directory}", file=sys.stderr)
    return report


def is_clean(report: dict[str, Any]) -> bool:
    """Return True if nothing was lost or doubled, nothing grows, and all was judged."""
    return not any(report[name] for name in ("lost", "doubled", "growing", "too_large", "not_judged"))


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=120, help="time under load of all combinations")
    parser.add_argument("--rate", type=float, default=25, help="inputs a second, at most 40")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of combinations, from 0")
    parser.add_argument("--record", action="store_true", help="put the figures into docs/performance.md")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    chosen = [COMBINATIONS[number] for number in options.only or range(len(COMBINATIONS))]
    reports: dict[str, Any] = {}
    for store, backend in chosen:
        report = run_combination(store, backend, 60 * options.minutes / len(chosen), options.rate)
        reports[f"{store}, {backend}"] = report
        print(f"{store}, {backend}: {json.dumps(report, indent=1)}", file=sys.stderr, flush=True)
    if options.record:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        figures = {
            "day": day,
            "minutes": options.minutes,
            "rate": options.rate,
            "cpus": os.cpu_count(),
            "limits": {
                name: {"per 1,000 inputs": limit.per_thousand, "per new key": limit.per_key}
                for name, limit in LIMITS.items()
            },
            "reports": reports,
        }
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        write_page(json.loads(RESULTS.read_text()))
    clean = all(is_clean(report) for report in reports.values())
    total: dict[str, Any] = {"clean": clean, "kills": len(chosen)}
    total |= {
        name: sum(report[name] for report in reports.values())
        for name in ("inputs", "new_keys", "lost", "doubled")
    }
    total["growing"] = "; ".join(
        f"{name}: {metric}" for name, report in reports.items() for metric in report["growing"]
    )
    print(json.dumps(total if options.json else total | {"reports": reports}))
    return 0 if clean else 1
