"""Kill either of two jobs with a topic between them, again and again; trace each order to its parcel.

    python -m tests.chaos_two_jobs --orders 300 --kills 8 --json

The jobs are those of ``examples/two_jobs_over_kafka.py``. Each one is killed with its JVM and resumes from
its last checkpoint, while the other one continues. The times and the order of the kills are random; each job
gets half of them. The script starts a broker.

Exit code 1 if an order was lost or came twice, an agent counted one twice or not at all, a call came with two
idempotency keys, or a parcel cannot be traced back to its order.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer

from examples import two_jobs_over_kafka as example
from flink_agents.testing.kafka import KafkaBroker

JOBS: tuple[str, ...] = ("pricing", "shipping")
PROGRESS_SECONDS = 240
QUIET_SECONDS = 5.0
"""How long nothing more must come behind the last parcel."""


@dataclass(frozen=True)
class TwoJobsReport:
    """What came of a run.

    Attributes:
        orders: How many there were.
        kills: How often each job was killed.
        lost: Orders without a parcel.
        repeated: Orders with several prices or parcels.
        miscounted: Customers whose parcels are not numbered from 1 without gaps, so that memory is wrong.
        called_again: Calls that were made again, as those in flight at a kill are.
        keys_differ: Orders whose calls came with several idempotency keys.
        untraced: Parcels that do not lead back to one message of ``orders`` each.
    """

    orders: int
    kills: dict[str, int]
    lost: Sequence[int]
    repeated: Sequence[int]
    miscounted: Sequence[str]
    called_again: int
    keys_differ: Sequence[str]
    untraced: Sequence[int]

    @property
    def clean(self) -> bool:
        """Whether all is as it has to be."""
        return not (self.lost or self.repeated or self.miscounted or self.keys_differ or self.untraced)


class Progress:
    """Counts what each job has done.

    Args:
        directory: Where the service keeps its calls.
        brokers: Options of clients.
    """

    def __init__(self, directory: Path, brokers: dict[str, Any]) -> None:
        self._directory = directory
        self._parcels = 0
        self._consumer: Any = KafkaConsumer(
            "parcels",
            auto_offset_reset="earliest",
            group_id=None,
            isolation_level="read_committed",
            **brokers,
        )

    def count_of(self, job: str) -> int:
        """Calls of the first job, or parcels that the second one has committed."""
        if job == "pricing":
            return len(example.calls_in(self._directory))
        self._parcels += sum(map(len, self._consumer.poll(timeout_ms=50).values()))
        return self._parcels

    def close(self) -> None:
        """Let the broker go."""
        self._consumer.close()


class TwoJobs:
    """Both jobs, and what is done to them.

    Args:
        directory: Where they write.
        brokers: Options of clients.
        orders: How many there are.
        chance: Chooses victims and moments.
    """

    def __init__(self, directory: Path, brokers: dict[str, Any], orders: int, chance: random.Random) -> None:
        self.kills = dict.fromkeys(JOBS, 0)
        self._directory = directory
        self._brokers = brokers
        self._orders = orders
        self._chance = chance
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, kills: int) -> None:
        """Run both to the end, and kill one or the other meanwhile."""
        victims = [JOBS[number % 2] for number in range(kills)]
        self._chance.shuffle(victims)
        progress = Progress(self._directory, self._brokers)
        try:
            for job in JOBS:
                self._start(job)
            for number, job in enumerate(victims):
                reached = int(self._orders * (number + self._chance.random()) / (kills + 1))
                self._wait_until(
                    f"{job} to have done {reached} and to have a checkpoint",
                    lambda job=job, reached=reached: progress.count_of(job) >= reached and self._is_kept(job),
                )
                self._kill(job)
                self._start(job)
            self._wait_until("all parcels", lambda: progress.count_of("shipping") >= self._orders)
        finally:
            progress.close()
            for job in self._running.values():
                example.kill(job)

    def _start(self, job: str) -> None:
        self._running[job] = example.start(job, self._directory, self._brokers)

    def _kill(self, job: str) -> None:
        example.kill(self._running[job])
        self.kills[job] += 1

    def _is_kept(self, job: str) -> bool:
        return example.last_checkpoint(self._directory / job) is not None

    def _wait_until(self, what: str, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + PROGRESS_SECONDS
        while not reached():
            ended = [name for name, job in self._running.items() if job.poll() is not None]
            if ended or time.monotonic() > until:
                raise AssertionError(f"waited for {what}; ended: {ended}; done: {self.kills} kills")
            time.sleep(0.02)


def judge(directory: Path, brokers: dict[str, Any], orders: int, kills: dict[str, int]) -> TwoJobsReport:
    """Compare what is committed with what has to be."""
    priced, parcels = (
        example.records_of(topic, 2 * orders, QUIET_SECONDS, brokers) for topic in ("priced", "parcels")
    )
    parcel_values = [json.loads(record.value) for record in parcels]
    counts = [Counter(json.loads(record.value)["number"] for record in topic) for topic in (priced, parcels)]
    numbered: dict[str, list[int]] = defaultdict(list)
    for parcel in parcel_values:
        numbered[parcel["customer"]].append(parcel["parcel"])
    keys: dict[str, set[str]] = defaultdict(set)
    calls = example.calls_in(directory)
    for number, key in calls:
        keys[number].add(key)
    return TwoJobsReport(
        orders,
        kills,
        sorted(set(range(orders)) - set(counts[1])),
        sorted({number for count in counts for number, times in count.items() if times > 1}),
        sorted(
            name
            for name, parcel_numbers in numbered.items()
            if sorted(parcel_numbers) != list(range(1, len(parcel_numbers) + 1))
        ),
        len(calls) - len(keys),
        sorted(number for number, call_keys in keys.items() if len(call_keys) > 1),
        untraced(priced, parcels),
    )


def untraced(priced: list[Any], parcels: list[Any]) -> list[int]:
    """Numbers of parcels that do not lead back, by a price of the same order, to a message of their own."""
    by_id = {example.header(record, "flink-agents-id"): record for record in priced}
    numbers: list[int] = []
    origins = set[str]()
    for parcel in parcels:
        number = json.loads(parcel.value)["number"]
        price = by_id.get(example.header(parcel, "flink-agents-parent"))
        origin = None if price is None else example.header(price, "flink-agents-parent")
        is_same = price is not None and json.loads(price.value)["number"] == number
        if origin is None or origin in origins or not is_same:
            numbers.append(number)
        else:
            origins.add(origin)
    return numbers


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos_two_jobs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--orders", type=int, default=300)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    with tempfile.TemporaryDirectory(prefix="chaos-two-jobs-") as name:
        directory = Path(name)
        with KafkaBroker(directory / "kafka") as broker:
            brokers = broker.client_options
            example.ORDERS = options.orders
            example.write_orders(brokers)
            jobs = TwoJobs(directory, brokers, options.orders, random.Random(seed))
            jobs.run(options.kills)
            report = judge(directory, brokers, options.orders, jobs.kills)
    figures = {"seed": seed, **asdict(report), "clean": report.clean}
    print(json.dumps(figures) if options.json else "\n".join(f"{key:<14} {figures[key]}" for key in figures))
    return 0 if report.clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
