"""Two jobs with a topic between them; the first one is killed, and resumes from its last checkpoint.

::

    orders ──> job 1: Pricing ──> priced ──> job 2: Shipping ──> parcels
               (one call for      (values as JSON, lineage
                each order)        in the headers)

Each job is a separate process. Job 1 is killed with SIGKILL in its middle, and started again from its last
checkpoint, while job 2 starts: each order is priced and shipped once, and each parcel can be traced back to
its order. Run it with ``python examples/two_jobs_over_kafka.py [HOST:PORT]``. Without an
address, the example starts a broker and stops it at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from pydantic import BaseModel
from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.connectors.kafka import KafkaRecord, kafka_sink, kafka_source
from flink_agents.testing.kafka import KafkaBroker

ORDERS = 40
CUSTOMERS = ("ada", "alan", "grace")
CALLS_BEFORE_THE_KILL = 12
CALL_SECONDS = 0.15
PATIENCE_SECONDS = 120


class Order(BaseModel):
    number: int
    customer: str


class Priced(BaseModel):
    number: int
    customer: str
    price: int


class Parcel(BaseModel):
    number: int
    customer: str
    parcel: int


def price_of(number: int, calls: str, idempotency_key: str) -> int:
    """Stands for a service that is not to be called twice; it keeps a list of its calls."""
    time.sleep(CALL_SECONDS)
    with open(calls, "a", encoding="utf-8") as file:
        file.write(f"{number} {idempotency_key}\n")
    return 10 * number


class Pricing(Agent):
    """Finds the price of an order.

    Args:
        calls: The file in which the service keeps its calls.
    """

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.calls = calls

    @action(InputEvent)
    async def price(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order = event.input.value
        price = await ctx.durable_execute_async(price_of, order.number, self.calls)
        return OutputEvent(output=Priced(number=order.number, customer=order.customer, price=price))


class Shipping(Agent):
    """Ships what was priced, and numbers the parcels of each customer, who is the key."""

    @action(InputEvent)
    def ship(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        priced: Priced = event.input.value
        parcel = ctx.short_term_memory.get("parcels", 0) + 1
        ctx.short_term_memory.set("parcels", parcel)
        return OutputEvent(output=Parcel(number=priced.number, customer=priced.customer, parcel=parcel))


# -- the jobs --------------------------------------------------------------------------------------


def run_job(name: str, directory: Path, brokers: dict[str, Any]) -> None:
    """Run a job until it is killed, from its last checkpoint if it has one."""
    checkpoints = directory / name
    flink = Configuration()
    flink.set_string("execution.checkpointing.dir", checkpoints.as_uri())
    flink.set_string("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
    last = last_checkpoint(checkpoints)
    if last is not None:
        flink.set_string("execution.state-recovery.path", last.as_uri())
    stream_env = StreamExecutionEnvironment.get_execution_environment(flink)
    stream_env.set_parallelism(1)
    stream_env.enable_checkpointing(500)
    config = {"job-identifier": name, "action-state.store": "sqlite"}
    config["action-state.sqlite.path"] = str(directory / f"{name}.sqlite")
    env = AgentsExecutionEnvironment.get_execution_environment(stream_env, config=config)
    read: dict[str, Any] = {"records": True, **brokers}
    write: dict[str, Any] = {"delivery": "exactly-once", "transactional_id": name, **brokers}
    if name == "pricing":
        orders = kafka_source(env, "orders", value=Order, dead_letters="orders-dead", **read)
        applied = env.from_datastream(orders, customer_of).apply(
            Pricing(str(directory / "calls.txt")), lineage=True
        )
        sink = kafka_sink("priced", key=lambda order: order.customer, **write)
    else:
        priced = kafka_source(env, "priced", value=Priced, dead_letters="priced-dead", **read)
        applied = env.from_datastream(priced, customer_of).apply(Shipping, lineage=True)
        sink = kafka_sink("parcels", key=lambda parcel: parcel.customer, **write)
    applied.to_datastream().sink_to(sink)
    env.execute(name)


def customer_of(record: KafkaRecord[Any]) -> str:
    """The key of an order."""
    return record.value.customer


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint of a job, of whose files Flink writes this one last."""
    complete = sorted(checkpoints.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)
    return complete[-1].parent if complete else None


# -- what happens ----------------------------------------------------------------------------------


def start(name: str, directory: Path, brokers: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a job in a new process group."""
    command = [sys.executable, __file__, "--job", name, str(directory), json.dumps(brokers)]
    return subprocess.Popen(command, start_new_session=True)


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kill a job and its JVM."""
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def kill_in_the_middle(job: subprocess.Popen[bytes], directory: Path) -> None:
    """Kill a job and its JVM when it has made some calls, and has a checkpoint."""
    until = time.monotonic() + PATIENCE_SECONDS
    while len(calls_in(directory)) < CALLS_BEFORE_THE_KILL or last_checkpoint(directory / "pricing") is None:
        if job.poll() is not None or time.monotonic() > until:
            raise SystemExit("the job did not come to its middle")
        time.sleep(0.02)
    kill(job)


def calls_in(directory: Path) -> list[list[str]]:
    """The calls that the service has seen: number of the order, and idempotency key."""
    file = directory / "calls.txt"
    return [line.split() for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def write_orders(brokers: dict[str, Any]) -> None:
    producer = KafkaProducer(**brokers)
    for number in range(ORDERS):
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        order = Order(number=number, customer=customer)
        producer.send("orders", key=customer.encode(), value=order.model_dump_json().encode())
    producer.close()


def records_of(topic: str, count: int, seconds: float, brokers: dict[str, Any]) -> list[Any]:
    """The committed records of a topic: up to ``count``, until none comes for so many seconds."""
    consumer: Any = KafkaConsumer(
        topic,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level="read_committed",
        consumer_timeout_ms=int(seconds * 1000),
        **brokers,
    )
    records = list(islice(consumer, count))
    consumer.close()
    return records


def header(record: Any, name: str) -> str:
    return dict(record.headers)[name].decode()


def report(directory: Path, brokers: dict[str, Any]) -> None:
    """Print what became of the orders."""
    priced, parcels = (records_of(topic, ORDERS + 1, 5, brokers) for topic in ("priced", "parcels"))
    shipped = Counter(json.loads(parcel.value)["number"] for parcel in parcels)
    print(f"{len(priced)} orders priced, {len(parcels)} shipped, each once: {set(shipped.values()) == {1}}")
    calls = calls_in(directory)
    keys = {number: {key for called_number, key in calls if called_number == number} for number, _ in calls}
    has_one_key = all(len(order_keys) == 1 for order_keys in keys.values())
    print(f"prices asked for {len(keys)} orders, one key each: {has_one_key}")
    by_id = {header(record, "flink-agents-id"): record for record in priced}
    origins = {
        header(by_id[header(parcel, "flink-agents-parent")], "flink-agents-parent") for parcel in parcels
    }
    print(f"the parcels come from {len(origins)} messages of the topic orders")
    last = next(parcel for parcel in parcels if json.loads(parcel.value)["number"] == ORDERS - 1)
    parent_record = by_id[header(last, "flink-agents-parent")]
    way = [header(record, "flink-agents-agent") for record in (parent_record, last)]
    print(f"the last one: {header(parent_record, 'flink-agents-parent')} -> {' -> '.join(way)}")


def main(brokers: dict[str, Any], directory: Path) -> None:
    write_orders(brokers)
    pricing = start("pricing", directory, brokers)
    kill_in_the_middle(pricing, directory)
    print(f"job 1 killed after {len(calls_in(directory))} calls", flush=True)
    jobs = [start(name, directory, brokers) for name in ("pricing", "shipping")]
    try:
        records_of("parcels", ORDERS, PATIENCE_SECONDS, brokers)
        report(directory, brokers)
    finally:
        for job in jobs:
            kill(job)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        run_job(sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory() as name:
            if len(sys.argv) > 1:
                main({"bootstrap_servers": sys.argv[1]}, Path(name))
            else:
                with KafkaBroker(Path(name) / "kafka") as broker:
                    main(broker.client_options, Path(name))
