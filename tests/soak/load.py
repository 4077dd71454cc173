"""Sends the inputs of a soak, and counts its outputs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from tests.soak.plan import awaits_signal, due, key_of

RESEND_SECONDS = 5.0


class Outcomes(threading.Thread):
    """Counts the inputs of which an output or a dead letter is committed.

    Args:
        client: Options of clients.
    """

    def __init__(self, client: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._ends = threading.Event()
        self.counts: Counter[int] = Counter()

    def run(self) -> None:
        """Read until the end."""
        consumer: Any = KafkaConsumer(
            *("handled", "letters"),
            **self._client,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        while not self._ends.is_set():
            for records in consumer.poll(timeout_ms=500).values():
                self.counts.update(json.loads(record.value)["number"] for record in records)
        consumer.close()

    def end(self) -> None:
        """Stop."""
        self._ends.set()
        self.join()


class Load(threading.Thread):
    """Sends inputs at a rate, each with its signal.

    It repeats a signal until the output is committed: a job that is behind forgets those that come too early.

    Args:
        client: Options of clients.
        rate: Inputs a second.
        outcomes: The committed outputs.
    """

    def __init__(self, client: dict[str, Any], rate: float, outcomes: Outcomes) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._rate = rate
        self._outcomes = outcomes
        self._signals: deque[tuple[float, int]] = deque()
        self._complete = threading.Event()
        self._ends = threading.Event()
        self.sent = 0

    def run(self) -> None:
        """Send until the end."""
        producer: Any = KafkaProducer(**self._client)
        start_seconds = time.monotonic()
        while not self._ends.is_set():
            now = time.monotonic()
            while not self._complete.is_set() and due(self.sent) < (now - start_seconds) * self._rate:
                producer.send("orders", json.dumps({"number": self.sent}).encode())
                if awaits_signal(self.sent):
                    self._signal(producer, self.sent)
                self.sent += 1
            while self._signals and self._signals[0][0] < now - RESEND_SECONDS:
                _, number = self._signals.popleft()
                if number not in self._outcomes.counts:
                    self._signal(producer, number)
            time.sleep(0.05)
        producer.flush()
        producer.close()

    def _signal(self, producer: Any, number: int) -> None:
        name = f"paid-{number}"
        signal = {"name": name, "key": key_of(number), "value": 1, "id": name}
        producer.send("answers", json.dumps(signal).encode())
        self._signals.append((time.monotonic(), number))

    def complete(self) -> None:
        """Send no more inputs."""
        self._complete.set()

    def end(self) -> None:
        """Stop."""
        self._ends.set()
        self.join()
