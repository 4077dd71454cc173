"""Writes to a topic and reads it, with kafka-python as a user would."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition


def write(options: dict[str, Any], topic: str, *values: bytes) -> None:
    """Send values, and wait until the broker has them."""
    producer = KafkaProducer(**options, acks="all", max_block_ms=60_000)
    try:
        for sent in [producer.send(topic, value=value) for value in values]:
            sent.get(timeout=60)
    finally:
        producer.close()


def read(options: dict[str, Any], topic: str) -> list[bytes]:
    """All values of the topic's only partition, up to its present end."""
    consumer = KafkaConsumer(**options, auto_offset_reset="earliest", group_id=None)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        values: list[bytes] = []
        consumer.seek_to_beginning(partition)
        while (consumer.position(partition) or 0) < end:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()
