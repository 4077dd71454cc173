"""The size of a store in Kafka after compaction.

The size of the log files depends on when the cleaner last ran. The result of compaction does not: it is
the last message of each key, unless it is a tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.connectors.action_state.kafka.settings import KafkaSettings

MESSAGE_BYTES = 70
"""About the bytes of the header of a message in a log, in its own batch."""


def retained_bytes(options: Mapping[str, Any]) -> int:
    """Return the bytes of the messages that compaction leaves in the topics of a store."""
    return sum(retained_sizes(options))


def retained_sizes(options: Mapping[str, Any]) -> list[int]:
    """Return the bytes of each of these messages."""
    from kafka.structs import TopicPartition

    settings = KafkaSettings.from_options(options)
    consumer: Any = settings.create_consumer()
    message_sizes: dict[tuple[str, int, bytes], int] = {}
    try:
        names = (settings.topic, settings.claims_topic)
        places = [
            TopicPartition(name, number)
            for name in names
            for number in consumer.partitions_for_topic(name) or ()
        ]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for place, messages in consumer.poll(timeout_ms=1000).items():
                for message in messages:
                    key = (place.topic, place.partition, message.key or b"")
                    message_sizes.pop(key, None)
                    if message.value is not None:
                        message_sizes[key] = MESSAGE_BYTES + len(key[2]) + len(message.value)
    finally:
        consumer.close()
    return list(message_sizes.values())
