"""Sends requests about keys to a running job, and reads its answers in the logs of its cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.key_requests import REPLY_MARK
from flink_agents.api.signals import Signal
from flink_agents.connectors.kafka.desk import KafkaApprovals
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.trace.log_lines import marked

PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class KeyRequests:
    """Sends requests by a topic of signals.

    Attributes:
        topic: The topic.
        client: How its brokers are reached: options of kafka-python.
        rest: The cluster whose logs have the answers; None to send only.
    """

    topic: str
    client: Mapping[str, Any]
    rest: ClusterRest | None

    def ask(self, request: Signal, seconds: float, ends: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Send a request, and return its answers, the last one last; none if there was none in time.

        Args:
            request: The request.
            seconds: How long to wait.
            ends: Outcomes to wait for; by default, any answer will do.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
            ClusterUnavailableError: The cluster does not answer.
        """
        KafkaApprovals(self.topic, **self.client).send([request])
        until, found = time.monotonic() + seconds, list[dict[str, Any]]()
        while self.rest is not None:
            found = self._answers(self.rest, request.id)
            if found and (ends is None or found[-1].get("outcome") in ends):
                break
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE_SECONDS)
        return found

    def _answers(self, rest: ClusterRest, request: str | None) -> list[dict[str, Any]]:
        found = [one for log in rest.task_logs() for one in marked(log, REPLY_MARK)]
        own = [one for one in found if one.get("request") == request]
        return sorted(own, key=lambda one: one.get("time") or 0)
