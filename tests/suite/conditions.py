"""The harness condition of each test: plain, replay and restart, or crash.

Running every test under every condition takes three times as long, and hardly finds more defects per day. So
each test gets one condition, by a hash of its id and of the commit. If a test fails, the report has the
command to repeat it. ``scripts/nightly`` runs all tests under all conditions.

``FLINK_AGENTS_TEST_MODE`` in the environment switches the rotation off:
``FLINK_AGENTS_TEST_MODE= scripts/test`` runs all tests plain,
``FLINK_AGENTS_TEST_MODE=crash scripts/test`` runs all of them under ``crash``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.settings.options import TEST_MODE_VARIABLE

UNFORCED: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
"""Arguments of a harness under no condition but those of its test."""

ROTATION = "TEST_ROTATION"
"""Environment variable with what the rotation depends on; by default the commit."""

PLAIN = ""
ALL = (PLAIN, "replay,restart", "crash")

ROTATED = (("tests/runtime/*", ALL), ("tests/models/*", ALL), ("tests/examples/*", ALL))
NOT_ROTATED = ("tests/runtime/flink/*", "tests/models/*_mcp*", "tests/models/*_vector_*")

CHOSEN = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Read the commit once; workers of pytest-xdist inherit it."""
    if ROTATION not in os.environ:
        os.environ[ROTATION] = commit_of(config.rootpath)


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, or an empty string outside of a Git checkout."""
    result = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else ""


def conditions_of(item: pytest.Item) -> tuple[str, ...]:
    """Return the conditions that make a difference for a test."""
    path = item.nodeid.partition("::")[0]
    if item.get_closest_marker("minicluster") or any(fnmatch(path, pattern) for pattern in NOT_ROTATED):
        return (PLAIN,)
    if item.get_closest_marker("own_conditions") or item.get_closest_marker("executes_once"):
        return (PLAIN,)
    return next((chosen for pattern, chosen in ROTATED if fnmatch(path, pattern)), (PLAIN,))


def condition_of(item: pytest.Item, rotation: str) -> str:
    """Return the condition of a test in one rotation."""
    conditions = conditions_of(item)
    digest = hashlib.blake2b(f"{rotation} {item.nodeid}".encode(), digest_size=8).digest()
    return conditions[int.from_bytes(digest) % len(conditions)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Set the condition before fixtures make harnesses, and take it back afterwards."""
    if TEST_MODE_VARIABLE in os.environ:
        return (yield)
    condition = condition_of(item, os.environ[ROTATION])
    item.stash[CHOSEN] = condition
    if not condition:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEST_MODE_VARIABLE, condition)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Say how to repeat a test that failed."""
    report = yield
    if report.failed and len(conditions_of(item)) > 1 and CHOSEN in item.stash:
        command = f"{TEST_MODE_VARIABLE}={item.stash[CHOSEN]} scripts/test '{item.nodeid}'"
        report.sections.append(("to repeat it under the same condition", command))
    return report
