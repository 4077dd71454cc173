"""Follows the topic of approval requests, without reading it from its start each time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents.api.events.approvals import ApprovalRequest
from flink_agents.connectors.kafka.client import translate_client_errors
from flink_agents.connectors.kafka.requests.desk import read_request
from flink_agents.connectors.kafka.requests.latest import LatestValues, UnexpectedRecord

CLOSE_SECONDS = 1.0


class PendingRequests:
    """The pending requests of a topic. Thread-safe.

    Args:
        topic: The topic to which ``approvals_to_kafka`` writes.
        client: Options of kafka-python for the connection.
    """

    def __init__(self, topic: str, client: Mapping[str, Any]) -> None:
        self._values = LatestValues(topic, client, read_request)
        self._reading = threading.Lock()

    @property
    def foreign(self) -> Sequence[UnexpectedRecord]:
        """Records of the topic that are no requests, as of the last :meth:`read`."""
        return self._values.foreign

    def read(self) -> list[ApprovalRequest]:
        """Return the requests that are pending now, the oldest first.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
        """
        with self._reading, translate_client_errors():
            return sorted(self._values.read(), key=lambda request: (request.began_at, request.id))

    def close(self) -> None:
        """Close the connection, unless a read is waiting for brokers. The next read opens a new one."""
        if self._reading.acquire(timeout=CLOSE_SECONDS):
            try:
                self._values.close()
            finally:
                self._reading.release()
