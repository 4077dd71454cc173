"""Closes kafka-python clients completely, which the library leaves to its users."""

from __future__ import annotations

from typing import Any


def close_producer(producer: Any, seconds: float) -> None:
    """Close a producer of kafka-python, and end its thread.

    If records are still unsent after ``seconds``, ``KafkaProducer.close`` raises before it stops its thread.
    The thread would then run as long as the process.

    Args:
        producer: The producer.
        seconds: Time limit for records that are not acknowledged yet.

    Raises:
        KafkaTimeoutError: Records were dropped.
    """
    try:
        producer.close(timeout=seconds)
    except BaseException:
        producer._sender.force_close()
        raise
