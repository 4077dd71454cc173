"""Fixtures of the cluster tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.flink_cluster import FlinkCluster


@pytest.fixture(scope="session")
def flink_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """A cluster without TaskManagers, which each test starts for itself."""
    with FlinkCluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster
