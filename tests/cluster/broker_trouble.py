"""Pauses, stops or kills a broker again and again while a job uses it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from flink_agents.connectors.action_state.kafka.layout import unpack_claim
from flink_agents.connectors.action_state.kafka.settings import quiet_client
from flink_agents.testing.kafka import KafkaBroker

EVERY = 5.0, 40.0
"""Seconds between two troubles, from the end of one to the next."""

SECONDS = 0.0, 2.0
"""How long the broker is away each time, and the time beside that which its start takes."""

BEFORE_OUTAGE = 3
"""After so many troubles comes the long one."""

POLL_MS = 1000

KINDS = ("pause", "stop", "kill")
"""SIGSTOP, an end in order, and SIGKILL."""


@dataclass
class Troubles:
    """What was done to a broker.

    Attributes:
        pauses: How often it stood still.
        stops: How often it was stopped in order and started again.
        kills: How often it was killed and started again.
        outages: How many of these were long.
        longest_seconds: The longest time for which it did not answer.
    """

    pauses: int = 0
    stops: int = 0
    kills: int = 0
    outages: int = 0
    longest_seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return self.pauses + self.stops + self.kills


class BrokerTrouble:
    """Gives a broker trouble as long as the ``with`` block lasts; afterwards it runs.

    Args:
        broker: A broker that runs.
        seed: Of moments, kinds and durations.
        outage: How long the one long trouble is, in seconds; 0 for none.
        often: Whether there are short ones as well.

    Attributes:
        done: What was done.
    """

    def __init__(self, broker: KafkaBroker, seed: int, outage: float = 0.0, often: bool = True) -> None:
        self.broker = broker
        self.done = Troubles()
        self._outage = outage
        self._often = often
        self._chance = random.Random(f"broker {seed}")
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="broker-trouble", daemon=True)

    def __enter__(self) -> BrokerTrouble:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise AssertionError(f"the broker did not come back: {self._error}") from self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The broker stands still inside of the block, and has no other trouble."""
        with self._lock:
            began = time.monotonic()
            self.broker.pause()
            try:
                yield
            finally:
                self.broker.resume()
            self._note("pause", began)

    # -- the thread -------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._end.wait(self._chance.uniform(*EVERY)):
                seconds = self._chance.uniform(*SECONDS)
                if self._outage and (self.done.count >= BEFORE_OUTAGE or not self._often):
                    seconds = self._outage
                    self._outage = 0.0
                    self.done.outages += 1
                elif not self._often:
                    continue
                self._trouble(self._chance.choice(KINDS), seconds)
        except BaseException as error:
            self._error = error

    def _trouble(self, kind: str, seconds: float) -> None:
        with self._lock:
            began = time.monotonic()
            getattr(self.broker, kind)()
            self._end.wait(seconds)
            if kind == "pause":
                self.broker.resume()
            else:
                self.broker.start()
            self._note(kind, began)

    def _note(self, kind: str, began: float) -> None:
        setattr(self.done, f"{kind}s", getattr(self.done, f"{kind}s") + 1)
        self.done.longest_seconds = max(self.done.longest_seconds, time.monotonic() - began)


class FenceWatch:
    """Tells when another attempt takes over a store ``kafka``. What it has to read, it reads afterwards.

    Args:
        client_options: How to reach the broker.
        topic: The topic of journals; its claims are watched from now on.
    """

    def __init__(self, client_options: dict[str, Any], topic: str) -> None:
        quiet_client()
        self._consumer = KafkaConsumer(
            **client_options,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            reconnect_backoff_max_ms=500,
        )
        partition = TopicPartition(f"{topic}-claims", 0)
        self._consumer.assign([partition])
        self._consumer.seek_to_end(partition)
        self._consumer.position(partition)
        self._seen = False

    def __enter__(self) -> FenceWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def has_new_owner(self) -> bool:
        """Whether somebody has taken over; waits a little for it, so that it is known at once."""
        if self._seen:
            return True
        claim_records = [
            record for records in self._consumer.poll(timeout_ms=POLL_MS).values() for record in records
        ]
        claims = [unpack_claim(record.key, record.value) for record in claim_records]
        self._seen = any(claim is not None and claim[0] == "fence" for claim in claims)
        return self._seen
