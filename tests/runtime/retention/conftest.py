"""A pruner for each attempt of a harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_tools import Flink
from durable_tools import forget
from pruning_tools import JOB, Pruned

from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.operator.assembly import OperatorHost
from flink_agents.runtime.retention.checkpoints import CheckpointPoller
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.testing import OperatorHarness


@pytest.fixture
def pruners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pruned]]:
    """The pruner of each attempt of a harness, all beside one model of Flink."""
    forget()
    attempts: list[Pruned] = []
    flink = Flink()
    plain = OperatorHarness._create_host

    def make(metrics: RunMetrics) -> Pruner:
        attempts.append(Pruned(flink, poller=CheckpointPoller((), JOB, interval=1e6)))
        return attempts[-1].pruner

    def host(self: OperatorHarness, *arguments: Any) -> OperatorHost:
        return replace(plain(self, *arguments), make_pruner=make)

    monkeypatch.setattr(OperatorHarness, "_create_host", host)
    monkeypatch.setattr(CheckpointPoller, "listen", lambda self, listener: None)
    yield attempts
