"""Orders come from Kafka, prices go to Kafka. Run it with ``python examples/kafka_in_out.py [HOST:PORT]``.

Without an address, the example starts a broker and stops it at the end. One order does not have the type
that the source declares: it goes to the topic of dead letters unchanged, and the job continues.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from pydantic import BaseModel

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.testing.kafka import KafkaBroker

ORDERS = [
    b'{"customer": "ada", "amount": 400}',
    b'{"customer": "alan", "amount": "much"}',
    b'{"customer": "ada", "amount": 50.5}',
]


class Order(BaseModel):
    customer: str
    amount: float


class Account(BaseModel):
    customer: str
    total: float


class Accounts(Agent):
    """Adds up the orders of each customer, who is the key."""

    @action(InputEvent)
    def book(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order = event.input
        total = ctx.short_term_memory.get("total", 0.0) + order.amount
        ctx.short_term_memory.set("total", total)
        return OutputEvent(output=Account(customer=order.customer, total=total))


def run_job(brokers: dict[str, Any]) -> None:
    """Read what is in the topic of orders, and write the accounts, each change exactly once."""
    env = AgentsExecutionEnvironment.get_execution_environment()
    env.stream_env.set_parallelism(1)
    env.stream_env.enable_checkpointing(1000)
    orders = kafka_source(env, "orders", value=Order, stop="latest", dead_letters="orders-dead", **brokers)
    accounts = env.from_datastream(orders, lambda order: order.customer).apply(Accounts, lineage=True)
    exactly_once: dict[str, Any] = {"delivery": "exactly-once", "transactional_id": "accounts-job"}
    sink = kafka_sink("accounts", key=lambda account: account.customer, **exactly_once, **brokers)
    accounts.to_datastream().sink_to(sink)
    env.execute("accounts")


def write_orders(brokers: dict[str, Any]) -> None:
    producer = KafkaProducer(**brokers)
    for order in ORDERS:
        producer.send("orders", value=order)
    producer.close()


def print_topic(topic: str, count: int, header: str, brokers: dict[str, Any]) -> None:
    """Print that many records of a topic, each with one of its headers."""
    consumer: Any = KafkaConsumer(
        topic, auto_offset_reset="earliest", group_id=None, isolation_level="read_committed", **brokers
    )
    for record in islice(consumer, count):
        print(f"{topic}: {record.value.decode()} {header}={dict(record.headers)[header].decode()}")
    consumer.close()


def main(brokers: dict[str, Any]) -> None:
    write_orders(brokers)
    run_job(brokers)
    print_topic("accounts", 2, "flink-agents-sequence", brokers)
    print_topic("orders-dead", 1, "flink-agents-error-type", brokers)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main({"bootstrap_servers": sys.argv[1]})
    else:
        with tempfile.TemporaryDirectory() as directory, KafkaBroker(directory) as broker:
            main(broker.client_options)
