"""Searches for tests that find a mutation."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

from tests.mutations.mutation import Mutation
from tests.mutations.patches.patch import PACKAGE, Patch, TargetGone, file_of, functions_at
from tests.mutations.suite.forked import Outcome, run_forked
from tests.mutations.suite.reach import ROOT, Reach

ENOUGH = 3
"""Test functions after which nobody looks for more."""

BUDGET = 120.0
"""Seconds for a mutation; a search that has found something ends after a fifth of it."""

Defect = Mutation | Patch


def function_id(nodeid: str) -> str:
    """Return the id of the function of a test."""
    return nodeid.partition("[")[0]


@dataclass(frozen=True)
class Found:
    """What the suite says about a mutation.

    Attributes:
        name: The mutation.
        killers: A test for each test function that finds it.
        reached: How many tests reach it.
        ran: How many of them ran.
        seconds: How long the search took.
        broken: Why the mutation could not be put in, or an empty string.
    """

    name: str
    killers: list[str] = field(default_factory=list)
    reached: int = 0
    ran: int = 0
    seconds: float = 0.0
    broken: str = ""

    @property
    def passed(self) -> bool:
        """True if the suite finds the mutation."""
        return bool(self.killers) and not self.broken

    def __str__(self) -> str:
        mark = "ok  " if self.passed else "FAIL"
        tests = f"{self.ran:4} of {self.reached:4} tests"
        summary = self.broken or (", ".join(map(function_id, self.killers)) or "nothing finds it")
        return f"{mark} {self.name:36} {tests} {self.seconds:6.1f} s  {summary}"


def reaching(defect: Defect, reach: Reach) -> list[str]:
    """Return the ids of the tests that reach what a mutation changes.

    Raises:
        TargetGone: There is no such code any more.
    """
    module, _, function = defect.target.partition(":")
    path = file_of(module).relative_to(ROOT).as_posix()
    if isinstance(defect, Patch):
        return reach.tests(path, function, defect.lines())
    # What is replaced may be defined elsewhere, and imported by that module.
    tests: set[str] = set()
    for target_function in functions_at(import_module(f"{PACKAGE}.{module}"), function):
        path = Path(target_function.__code__.co_filename).relative_to(ROOT).as_posix()
        tests.update(reach.tests(path, target_function.__qualname__))
    return sorted(tests)


def stems_of(text: str) -> set[str]:
    """Return the beginnings of the words of a name or an id, without their endings."""
    words = re.findall(r"[A-Z]?[a-z]{3,}", text)
    return {word.lower()[:5] for word in words} - {"test", "tests", "runti"}


def by_promise(nodeids: Sequence[str], seconds: Mapping[str, float], name: str, target: str) -> list[str]:
    """Return tests in the order in which to try them.

    First one test per function: those that share most words with the mutation, those of its package before
    others, fast ones before slow ones. Then the other tests of the functions.
    """
    module, _, function = target.partition(":")
    room = f"/{module.split('.')[1]}/" if "." in module else "/"
    wanted = stems_of(f"{name} {function}")

    def key(nodeid: str) -> tuple[int, bool, float]:
        return -len(wanted & stems_of(nodeid)), room not in nodeid, seconds.get(nodeid, 0.0)

    turns: dict[str, int] = {}
    ordered: list[tuple[int, tuple[int, bool, float], str]] = []
    for nodeid in sorted(nodeids, key=key):
        turn = turns[function_id(nodeid)] = turns.get(function_id(nodeid), -1) + 1
        ordered.append((turn, key(nodeid), nodeid))
    return [nodeid for _, _, nodeid in sorted(ordered)]


class Search:
    """Runs tests with a mutation.

    Args:
        items: The tests that can run, by id.
        reach: What they reach.
        enough: Test functions after which the search ends.
        budget: Seconds after which it ends.
    """

    def __init__(
        self, items: Mapping[str, pytest.Item], reach: Reach, enough: int = ENOUGH, budget: float = BUDGET
    ) -> None:
        self._items = items
        self._reach = reach
        self._enough = enough
        self._budget = budget

    def reached(self, defect: Defect) -> int:
        """Return how many of the tests reach a mutation."""
        try:
            return sum(test in self._items for test in reaching(defect, self._reach))
        except (TargetGone, AttributeError, KeyError, ImportError):
            return 0

    def find(self, defect: Defect, only: Sequence[str] | None = None) -> Found:
        """Look for tests that fail with a mutation.

        Args:
            defect: The mutation.
            only: The tests to try; by default all that reach it.
        """
        began = time.monotonic()
        try:
            tests = reaching(defect, self._reach) if only is None else list(only)
            tests = [test for test in tests if test in self._items]
            if only is None:
                tests = by_promise(tests, self._reach.seconds, defect.name, defect.target)
            killers, ran = self._killers(defect, tests, began)
        except (TargetGone, AttributeError, KeyError, ImportError, RuntimeError) as error:
            return Found(defect.name, broken=f"{type(error).__name__}: {error}"[:300])
        seconds = round(time.monotonic() - began, 1)
        return Found(defect.name, killers, len(tests), ran, seconds)

    def _killers(self, defect: Defect, tests: list[str], began: float) -> tuple[list[str], int]:
        killers: list[str] = []
        ran = 0
        while tests and len(killers) < self._enough:
            failed = None
            for outcome, nodeid in self._outcomes(defect, tests):
                ran += 1
                if outcome.failed:
                    failed = nodeid
                    break
                budget = self._budget / 5 if killers else self._budget
                if time.monotonic() - began > budget:
                    return killers, ran
            if failed is None:
                return killers, ran
            remaining_tests = tests[tests.index(failed) + 1 :]
            if self._passes(failed):
                killers.append(failed)
                # What a failure leaves behind must not make the next test fail: that one gets a new process.
                remaining_tests = [
                    test for test in remaining_tests if function_id(test) != function_id(failed)
                ]
            tests = remaining_tests
        return killers, ran

    def _outcomes(self, defect: Defect, tests: list[str]) -> Iterator[tuple[Outcome, str]]:
        items = [self._items[test] for test in tests]
        longest = 45.0 + 20 * max(self._reach.seconds.get(test, 0.0) for test in tests[:50])
        with closing(run_forked(items, defect.apply, longest=longest)) as outcomes:
            for outcome in outcomes:
                yield outcome, tests[outcome.at]

    def _passes(self, nodeid: str) -> bool:
        """Run a test without a mutation: a test that fails then shows nothing."""
        return not any(outcome.failed for outcome in run_forked([self._items[nodeid]]))
