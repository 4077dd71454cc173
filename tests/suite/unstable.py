"""Runs the failed tests of the daily suite again, alone; ``scripts/test`` calls it.

A test that starts processes (brokers, clusters, servers, a browser) shares two cores with concurrent tests.
If it fails there and passes alone, the suite passes and lists the test as unstable: a defect of the test or
of the product, but not of the change that you test. Tests without processes get no second chance: one of them
that fails in one of six runs has found a race.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.suite.progress import FAILED

ROOT = Path(__file__).parents[2]

ONCE = ("tests/api/", "tests/plan/", "tests/runtime/", "tests/stores/", "tests/suite/", "tests/test_rooms.py")
"""Where tests start no process: a failure counts at once."""

MOST = 5
"""More failures than these are no accident."""


def failed_tests(root: Path = ROOT) -> list[str]:
    """Return the tests that failed in the last run with the progress plugin."""
    file = root / ".pytest_cache" / "v" / FAILED
    return json.loads(file.read_text()) if file.is_file() else []


def run_alone(nodeids: Sequence[str]) -> bool:
    """Return True if the tests pass in a process without others beside them."""
    return subprocess.run([sys.executable, "-m", "pytest", *nodeids], cwd=ROOT).returncode == 0


def judge(failed: Sequence[str], alone: Callable[[Sequence[str]], bool] = run_alone) -> int:
    """Return the exit code of a suite in which tests failed.

    Args:
        failed: The failed tests.
        alone: Runs tests without others beside them; True if they pass.
    """
    if not 0 < len(failed) <= MOST or any(test.startswith(ONCE) for test in failed):
        return 1
    print(f"{len(failed)} failed beside other tests; running them alone", flush=True)
    if not alone(failed):
        return 1
    print("UNSTABLE: failed beside other tests, passed alone:", *failed, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(judge(failed_tests()))
