"""The job around the agent, with Kafka in and out."""

from datetime import timedelta
from typing import Any

from shop import Order, Phases, Shop, settings

from flink_agents import (
    AgentsExecutionEnvironment,
    EventTime,
    Signal,
    UnmatchedReason,
    UnmatchedSignal,
)
from flink_agents.connectors.kafka import (
    KafkaApprovals,
    KafkaClientOptions,
    KafkaDeadLetter,
    KafkaHeaders,
    KafkaRecord,
    KafkaStream,
    approvals_to_kafka,
    kafka_signals,
    kafka_sink,
    kafka_source,
)

KAFKA: KafkaClientOptions = {"bootstrap_servers": "127.0.0.1:9092", "security_protocol": "PLAINTEXT"}


def customer_of(order: Order) -> str:
    return order.customer


def describe(signal: UnmatchedSignal) -> str:
    sent_signal: Signal = signal.signal
    return f"{sent_signal.name} {signal.reason is UnmatchedReason.EXPIRED}"


def text_of(letter: KafkaDeadLetter) -> KafkaRecord[Any]:
    headers: KafkaHeaders = KafkaHeaders.of(letter.record.headers) | {"reason": letter.error.encode()}
    return KafkaRecord(letter.record.value, letter.record.key, headers)


def main() -> None:
    env = AgentsExecutionEnvironment.get_execution_environment(config={"job-identifier": "shop"})
    assert settings()
    orders: KafkaStream = kafka_source(env, "orders", value=Order, dead_letters="rejected", **KAFKA)
    answers = kafka_signals(env, "answers", dead_letters="rejected", **KAFKA)
    shop = (
        env.from_datastream(orders, customer_of)
        .with_signals(answers)
        .apply(
            Shop(limit=10), event_time=EventTime.hold_watermarks(timedelta(seconds=10)), observers=[Phases]
        )
    )
    approvals_to_kafka(shop.approvals(), "approvals", **KAFKA)
    shop.to_datastream().sink_to(
        kafka_sink("receipts", delivery="exactly-once", transactional_id="shop", **KAFKA)
    )
    shop.dead_letters().sink_to(kafka_sink("failed", **KAFKA))
    env.execute("shop")


def approve_all() -> None:
    desk = KafkaApprovals("answers", "approvals", **KAFKA)
    desk.send([request.approve(by="Ada") for request in desk.pending()])


if __name__ == "__main__":
    main()
