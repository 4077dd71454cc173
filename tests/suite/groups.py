"""Which tests run in the same worker of pytest-xdist.

All tests that use one expensive thing (the JVM of a minicluster, the Kafka broker) run in one worker, so that
there is one of it. The other tests of a file run in one worker, too: they share its fixtures. The groups that
took longest in the last run start first.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.suite.progress import CACHE, UNKNOWN, file_of

GROUP = "xdist_group"

SHARED = {"minicluster": "flink", "cluster": "cluster"}
"""The group of the tests with a marker."""

FIXTURES = {"kafka_broker": "kafka", "flink_cluster": "cluster"}
"""The group of the tests that use a fixture."""


def group_of(item: pytest.Item) -> str:
    """Return the group of a test."""
    for marker, group in SHARED.items():
        if item.get_closest_marker(marker) is not None:
            return group
    for fixture, group in FIXTURES.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    return file_of(item.nodeid)


def id_of(item: pytest.Item) -> str:
    """Return the id of a test without the group that pytest-xdist puts behind it."""
    nodeid, _, group = item.nodeid.rpartition("@")
    return (
        nodeid if nodeid and item.get_closest_marker(GROUP) is not None and "]" not in group else item.nodeid
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests into groups if workers share them."""
    if not getattr(config.option, "loadgroup", False):
        return
    cache: pytest.Cache | None = getattr(config, "cache", None)
    known: dict[str, float] = cache.get(CACHE, {}) if cache is not None else {}
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    files: dict[str, set[str]] = defaultdict(set)
    for item in items:
        group = group_of(item)
        item.add_marker(getattr(pytest.mark, GROUP)(group))
        groups[group].append(item)
        file = file_of(item.nodeid)
        seconds[group] += 0.0 if file in files[group] else known.get(file, 0.0)
        seconds[group] += UNKNOWN if file not in known else 0.0
        files[group].add(file)
    shared = {*SHARED.values(), *FIXTURES.values()}
    order = sorted(groups, key=lambda group: (group not in shared, -seconds[group], group))
    items[:] = [item for group in order for item in groups[group]]
