"""Kill a local job at random moments and start it again, until it has finished; check all its results.

    python -m tests.chaos --local --kills 100 --seed 1 --json

Each combination of input, journal and state backend gets its share of the kills. The whole tree, the script
alone or its JVM alone is killed: while the job runs, in its first second, while it restores, during a
checkpoint, when all effects are there, and twice in a row. After each fifth kill the job is stopped with a
savepoint.

Exit code 1 if an order was lost or left twice, a call was made again after its record or under another
idempotency key, orders of a customer changed places, or a job did not come to its end. The directory of a run
that failed stays.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from flink_agents import ApprovalResponse
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.testing.kafka import KafkaBroker
from tests.local_chaos.judge import STEPS, Verdict, World, judge
from tests.local_chaos.kills import MOMENTS, VICTIMS, Killer, Start, Stuck
from tests.local_chaos.orders import APART_MS

ORDERS = 480
KEYS = 12
TOPICS = ("orders", "answers", "approvals", "booked", "totals", "late")


@dataclass(frozen=True)
class Combination:
    """What a job is made of."""

    source: str
    journal: str
    backend: str

    def __str__(self) -> str:
        return f"{self.source}, journal in {self.journal}, {self.backend}"


COMBINATIONS = tuple(
    Combination(*row) for row in product(("kafka", "list"), ("sqlite", "kafka"), ("hashmap", "rocksdb"))
)


class Broker:
    """What the driver does with Kafka: writes orders and answers, reads outputs."""

    def __init__(self, client: dict[str, Any]) -> None:
        self.client = client

    def prepare(self) -> None:
        """Make the topics, and write all orders and signals."""
        admin: Any = KafkaAdminClient(**self.client)
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1} for name in TOPICS})
        admin.close()
        producer: Any = KafkaProducer(**self.client)
        # A broker deletes records whose timestamps are too old.
        start_ms = int(time.time() * 1000) - 3_600_000
        for number in range(ORDERS):
            order = {"number": number, "customer": f"c{number % KEYS}"}
            producer.send("orders", json.dumps(order).encode(), timestamp_ms=start_ms + APART_MS * number)
            if number % 7 == 0:
                signal = {"name": f"paid-{number}", "key": order["customer"], "value": f"paid{number}"}
                producer.send("answers", json.dumps({**signal, "id": f"paid-{number}"}).encode())
        # A watermark has to pass the last window.
        last = {"number": ORDERS, "customer": "last"}
        producer.send("orders", json.dumps(last).encode(), timestamp_ms=start_ms + APART_MS * ORDERS + 60_000)
        producer.close()

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return what is committed."""
        consumer: Any = KafkaConsumer(
            **self.client, group_id=None, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            consumer.seek_to_beginning(partition)
            rows: list[dict[str, Any]] = []
            while consumer.position(partition) < end:
                for records in consumer.poll(timeout_ms=500).values():
                    rows += [json.loads(record.value) for record in records]
            return rows
        finally:
            consumer.close()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Approve what is asked, a moment later."""
        desk, ended = KafkaApprovals("answers", "approvals", **self.client), threading.Event()

        def answer() -> None:
            answered: set[str] = set()
            while not ended.wait(0.5):
                for request in desk.pending():
                    if request.id not in answered:
                        answered.add(request.id)
                        desk.answer(ApprovalResponse(id=request.id, approved=True, by="chaos"))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class Run:
    """One job run of a combination.

    Args:
        combination: What the job is made of.
        kills: How often it is killed.
        chance: Chooses moments and victims.
        directory: A directory of its own.
        broker: The broker, or None if nothing needs one.
    """

    def __init__(
        self,
        combination: Combination,
        kills: int,
        chance: random.Random,
        directory: Path,
        broker: Broker | None,
    ) -> None:
        self.combination = combination
        self.chance = chance
        self.directory = directory
        self.broker = broker if combination.source == "kafka" else None
        config: dict[str, Any] = {}
        if combination.journal == "kafka" and broker is not None:
            config["action-state.store"] = "kafka"
            config["action-state.kafka.bootstrap-servers"] = broker.client["bootstrap_servers"]
            config["action-state.kafka.topic"] = f"journal-{directory.name}"
        self.settings: dict[str, Any] = {
            "directory": str(directory),
            "backend": combination.backend,
            "brokers": self.broker and self.broker.client,
            "config": config,
            "orders": ORDERS,
            "keys": KEYS,
        }
        self.kills = kills
        self.starts = 0
        self.struck: Counter[str] = Counter()
        self._log = directory / "log"
        self._outputs = directory / "outputs"
        folder = directory / "state" / "jobs" / "orders"
        self._killer = Killer(folder, lambda: self._world().count, ORDERS * len(STEPS), chance)

    def execute(self) -> Verdict:
        """Run to the end, and judge."""
        failure = ""
        try:
            self._strike_all()
            self._finish()
        except Stuck as stuck:
            failure = str(stuck)
        return self._judge(failure)

    def _strike_all(self) -> None:
        plan = [MOMENTS[number % len(MOMENTS)] for number in range(self.kills)]
        self.chance.shuffle(plan)
        # A bounded job ends when all effects are there, so that is the last thing that can happen to it.
        plan.sort(key=lambda moment: moment == "end")
        if self.combination.source == "list":
            plan = [planned_moment for planned_moment in plan if planned_moment != "end"] + [
                planned_moment for planned_moment in plan if planned_moment == "end"
            ][:1]
        total = ORDERS * len(STEPS)
        for number, moment in enumerate(plan):
            reached = int(total * 0.9 * (number + self.chance.random()) / (len(plan) + 1))
            victim = self.chance.choice(VICTIMS)
            start = self._start()
            if not self._killer.strike(start, moment, victim, reached):
                self._check_end(start)
                return
            self.struck[f"{moment}, {victim}"] += 1
            if self._outputs.exists():
                return
            if number % 5 == 4:
                self._start_and_stop()

    def _start_and_stop(self) -> None:
        start = self._start()
        if self._killer.wait_until(start, "the job to run", lambda: "log in" in start.printed()):
            time.sleep(self.chance.uniform(3, 6))
            code = start.stop()
            if code not in (143, 0):
                raise Stuck(f"a stop ended with {code}\n{start.printed()[-3000:]}")

    def _finish(self) -> None:
        if self._outputs.exists():
            return
        start = self._start()
        if self.broker is None:
            self._killer.wait_until(start, "the end", lambda: False)
            self._check_end(start)
            return
        broker = self.broker

        def all_there() -> bool:
            time.sleep(1)
            in_windows = {number for total in broker.read("totals") for number in total["orders"]}
            in_windows.update(order["number"] for order in broker.read("late"))
            return len({output["number"] for output in broker.read("booked")}) > ORDERS <= len(in_windows)

        if not self._killer.wait_until(start, "all outputs", all_there):
            self._check_end(start)
        # What would come a second time comes now.
        time.sleep(3)
        start.stop()

    def _check_end(self, start: Start) -> None:
        code = start.process.wait()
        if code != 0:
            raise Stuck(f"the script ended with {code}\n{start.printed()[-3000:]}")

    def _start(self) -> Start:
        self.starts += 1
        # Another parallelism must change nothing.
        return Start({**self.settings, "parallelism": self.chance.choice((1, 2))}, self._log)

    def _world(self) -> World:
        return World.read(self.directory / "world")

    def _judge(self, failure: str) -> Verdict:
        outputs: list[dict[str, Any]] = []
        totals: list[dict[str, Any]] | None = None
        late: list[dict[str, Any]] = []
        if self.broker is not None:
            # One more order pushes the last windows out.
            outputs = [output for output in self.broker.read("booked") if output["number"] < ORDERS]
            totals = self.broker.read("totals")
            late = self.broker.read("late")
        elif self._outputs.exists():
            outputs = [json.loads(line) for line in self._outputs.read_text().splitlines()]
        printed = self._log.read_text(errors="replace") if self._log.exists() else ""
        resumed = printed.count("resuming 'orders' from")
        figures = {"kills": dict(self.struck), "starts": self.starts, "resumed": resumed, "failure": failure}
        return judge(self._world(), ORDERS, outputs, totals, late, keys=KEYS, **figures)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments after ``--local``."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos --local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=16, help="number of kills in all combinations together")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of combinations, from 0")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command."""
    options = parse_arguments(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    chosen = [COMBINATIONS[number] for number in options.only or range(len(COMBINATIONS))]
    print(f"seed {seed}", file=sys.stderr, flush=True)
    verdicts = {}
    for number, combination in enumerate(chosen):
        share = options.kills * (number + 1) // len(chosen) - options.kills * number // len(chosen)
        verdict = run_one(combination, share, random.Random(f"{seed} {combination}"))
        verdicts[str(combination)] = verdict
        print(f"{combination}: {verdict.as_json()}", file=sys.stderr, flush=True)
    kills = sum((Counter(run_verdict.kills) for run_verdict in verdicts.values()), Counter[str]())
    clean = all(run_verdict.clean for run_verdict in verdicts.values())
    total: dict[str, Any] = {
        "seed": seed,
        "clean": clean,
        "kills": sum(kills.values()),
        "by_kind": dict(kills),
    }
    total |= {
        name: sum(getattr(run_verdict, name) for run_verdict in verdicts.values())
        for name in ("starts", "resumed", "called_again", "other_totals")
    }
    total["late"] = sum(len(run_verdict.late) for run_verdict in verdicts.values())
    print(json.dumps(total) if options.json else total)
    return 0 if clean else 1


def run_one(combination: Combination, kills: int, chance: random.Random) -> Verdict:
    """Run a combination in a directory of its own, which stays if something is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-local-"))

    def run(broker: Broker | None) -> Verdict:
        return Run(combination, kills, chance, directory, broker).execute()

    if "kafka" in (combination.source, combination.journal):
        with KafkaBroker(directory / "kafka") as kafka:
            broker = Broker(kafka.client_options)
            verdict = _with_answers(broker, combination, run)
    else:
        verdict = run(None)
    if verdict.clean:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"kept: {directory}", file=sys.stderr)
    return verdict


def _with_answers(broker: Broker, combination: Combination, run: Callable[[Broker], Verdict]) -> Verdict:
    if combination.source != "kafka":
        return run(broker)
    broker.prepare()
    with broker.answering():
        return run(broker)
