"""Distributes the tests among the workers of pytest-xdist.

All tests that use one expensive thing (the JVM of a minicluster, a cluster) run in one worker, so that there
is one of it. The other tests of a file run in one worker, too: they share its fixtures. The slowest group
starts first, by the last run on this machine, or by ``seconds.json`` if there was none.
"""

from __future__ import annotations

import functools
import os
import re
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.suite.progress import UNKNOWN, file_of, known_seconds

SHARED = {"flink": r"\bminicluster\b|\bagents_environment\b", "cluster": r"\bflink_cluster\b"}
"""What the files of a group have in their text."""

FOLDERS = {"minicluster": "flink", "cluster": "cluster", "faults": "faults"}
"""The group of the files in a folder of ``tests``."""

MINICLUSTERS = 2
"""JVMs that share the files of the group ``flink``. With one, its worker ends minutes after the others."""

WAITING_WORKERS = 2
"""Workers beside one for each core: so many usually wait for a JVM, a broker, or the end of a lease."""


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of workers for ``-n auto``, or None if the environment says it."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (os.cpu_count() or 1) + WAITING_WORKERS


@functools.cache
def group_of(file: Path) -> str:
    """Return the group of a file of tests: the name of what it shares with others, or its own path."""
    group = FOLDERS.get(file.parent.name)
    if group is None:
        text = file.read_text() if file.exists() else ""
        group = next((group for group, mark in SHARED.items() if re.search(mark, text)), str(file))
    number = (zlib.crc32(file.name.encode()) >> 8) % MINICLUSTERS
    return f"{group}-{number}" if group == "flink" else group


class GroupScheduling(LoadScopeScheduling):
    """Hands whole groups to workers."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self.config.rootpath / file_of(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Use groups in place of files."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests of a worker by groups."""
    if not hasattr(config, "workerinput"):
        return
    seconds_by_file = known_seconds(config)
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[group_of(config.rootpath / file_of(item.nodeid))].append(item)

    def key(group: str) -> tuple[bool, float, str]:
        counts: dict[str, int] = defaultdict(int)
        for item in groups[group]:
            counts[file_of(item.nodeid)] += 1
        seconds = sum(seconds_by_file.get(file, UNKNOWN * count) for file, count in counts.items())
        return group.startswith(os.sep), -seconds, group

    items[:] = [item for group in sorted(groups, key=key) for item in groups[group]]
