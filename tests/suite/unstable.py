"""Runs the failed tests of the daily suite again, alone; ``scripts/test`` calls it.

A test shares two cores with concurrent tests. If it fails there and passes alone, the suite passes and lists
the test as unstable: a defect of the test or of the product, but not of the change that you test. A test that
starts no process has little to share: it must pass three times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.suite.progress import FAILED

ROOT = Path(__file__).parents[2]

WITHOUT_PROCESSES = (
    "tests/api/",
    "tests/plan/",
    "tests/runtime/",
    "tests/stores/",
    "tests/suite/",
    "tests/test_rooms.py",
)
"""Where tests start no process (broker, cluster, server, browser)."""

TIMES = 3
"""How often such tests must pass alone."""

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
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"{len(failed)} failed beside other tests; running them alone", flush=True)
    again = [test for test in failed if test.startswith(WITHOUT_PROCESSES)]
    rounds = [failed, *[again] * (TIMES - 1 if again else 0)]
    if not all(map(alone, rounds)):
        return 1
    print("UNSTABLE: failed beside other tests, passed alone:", *failed, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(judge(failed_tests()))
