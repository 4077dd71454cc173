"""Sends requests about keys to a running job, and reads its answers in the logs of its cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.events.key_requests import REPLY_MARK
from flink_agents.api.events.signals import Signal
from flink_agents.connectors.kafka.desk import KafkaApprovals
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.trace.log_lines import marked

PAUSE_SECONDS = 0.5

GRACE_SECONDS = 2.0
"""How long further answers are waited for: each agent that reads the topic gives one."""


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
        """Send a request, and return the last answer of each agent that gave one in time.

        Args:
            request: The request.
            seconds: How long to wait.
            ends: Outcomes to wait for, the best one first: any agent that has that ends the wait. By default,
                all will do.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
            ClusterUnavailableError: The cluster does not answer.
        """
        KafkaApprovals(self.topic, **self.client).send([request])
        if self.rest is None:
            return []
        until, settled = time.monotonic() + seconds, 0.0
        while True:
            found, now = self._answers(self.rest, request.id), time.monotonic()
            outcomes = {str(one.get("outcome")) for one in found}
            if (ends and ends[0] in outcomes) or now >= until:
                return found
            if found and (ends is None or outcomes <= set(ends)):
                settled = settled or now
                if now - settled >= GRACE_SECONDS:
                    return found
            time.sleep(PAUSE_SECONDS)

    def _answers(self, rest: ClusterRest, request: str | None) -> list[dict[str, Any]]:
        found = [one for log in rest.task_logs() for one in marked(log, REPLY_MARK)]
        own = sorted(
            (one for one in found if one.get("request") == request), key=lambda one: one.get("time") or 0
        )
        return list({one.get("agent"): one for one in own}.values())
