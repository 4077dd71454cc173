"""A broker for the jobs of a benchmark, which are separate processes."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flink_agents.testing.kafka import KafkaBroker

ADDRESS = "BENCHMARKS_KAFKA"
"""Variable that names a running broker, for jobs that are started by hand."""


@contextmanager
def broker_for_jobs() -> Iterator[None]:
    """Run a broker, unless the environment names one."""
    if ADDRESS in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as directory, KafkaBroker(directory) as broker:
        os.environ[ADDRESS] = broker.bootstrap_servers
        try:
            yield
        finally:
            del os.environ[ADDRESS]


def kafka_options(prefix: str = "") -> dict[str, Any]:
    """Options of a store in a new topic."""
    return {
        f"{prefix}bootstrap-servers": os.environ[ADDRESS],
        f"{prefix}topic": f"benchmark-{uuid.uuid4().hex}",
    }
