"""One Kafka broker for all workers of pytest-xdist.

Most tests with a broker wait for it, or for leases to run out. If they share one broker, all workers can run
them at the same time. Each test has its own topics. Tests that pause or kill the broker are in
``tests/kafka/faults``, which has another one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flink_agents.testing.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield the broker of this run; the first use starts it, and who started it stops it."""
    from flink_agents.testing.kafka import KafkaBroker

    base = tmp_path_factory.getbasetemp()
    # Each worker has a folder of its own in that of the run.
    data = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kafka"
    data.mkdir(exist_ok=True)
    with in_use(data / "users") as users, KafkaBroker(data) as broker:
        yield broker
        # Whoever started the broker stops it, once no other worker uses it.
        fcntl.flock(users, fcntl.LOCK_UN)
        fcntl.flock(users, fcntl.LOCK_EX)


@contextmanager
def in_use(path: Path) -> Iterator[IO[bytes]]:
    """Hold a shared lock. The operating system releases it if the worker dies."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield file
