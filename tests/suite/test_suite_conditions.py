"""The rotation of conditions: each test has one per commit, and over many commits each of its own."""

from __future__ import annotations

import os

import pytest

from flink_agents.api.settings.options import TEST_MODE_VARIABLE
from tests.suite.conditions import ALL, PLAIN, ROTATION, condition_of, conditions_of


class Item:
    """What the rotation asks of a test."""

    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid = nodeid
        self.markers = markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


TABLE = (
    (Item("tests/runtime/loop/test_a.py::test_b"), ALL),
    (Item("tests/models/test_models_tools.py::test_b[x]"), ALL),
    (Item("tests/examples/test_a.py::test_b"), ALL),
    (Item("tests/examples/test_a.py::test_b", "minicluster"), (PLAIN,)),
    (Item("tests/runtime/flink/test_a.py::test_b"), (PLAIN,)),
    (Item("tests/models/test_models_mcp.py::test_b"), (PLAIN,)),
    (Item("tests/models/retrieval/test_vector_stores.py::test_b"), (PLAIN,)),
    (Item("tests/plan/test_a.py::test_b"), (PLAIN,)),
    (Item("tests/runtime/loop/test_a.py::test_b", "own_conditions"), (PLAIN,)),
    (Item("tests/runtime/loop/test_a.py::test_b", "executes_once"), (PLAIN,)),
    (Item("tests/plan/test_a.py::test_b", "executes_once"), (PLAIN,)),
)


def test_a_test_has_the_conditions_that_make_a_difference_for_it() -> None:
    for item, conditions in TABLE:
        assert conditions_of(item) == conditions, (item.nodeid, item.markers)  # type: ignore[arg-type]


def test_over_many_commits_a_test_has_each_of_its_conditions_about_as_often() -> None:
    for item, conditions in TABLE:
        chosen = [condition_of(item, f"commit {at}") for at in range(400)]  # type: ignore[arg-type]
        assert set(chosen) == set(conditions)
        assert min(map(chosen.count, conditions)) > 300 / len(conditions)


def test_with_one_commit_tests_have_different_conditions() -> None:
    items = [Item(f"tests/runtime/loop/test_a.py::test_b[{at}]") for at in range(50)]
    assert {condition_of(item, "a commit") for item in items} == set(ALL)  # type: ignore[arg-type]


INNER = """
import os
import pytest

@pytest.mark.parametrize("at", range(12))
def test_inner(at):
    assert os.environ.get("FLINK_AGENTS_TEST_MODE", "") == "", os.environ["FLINK_AGENTS_TEST_MODE"]
"""


def test_a_failure_says_how_to_repeat_it(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEST_MODE_VARIABLE, raising=False)
    monkeypatch.setenv(ROTATION, "a commit")
    pytester.makeconftest('pytest_plugins = ["tests.suite.conditions"]')
    test = pytester.path / "tests" / "runtime" / "test_inner.py"
    test.parent.mkdir(parents=True)
    test.write_text(INNER)
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    outcomes = done.parseoutcomes()
    assert outcomes["passed"] and outcomes["failed"], outcomes
    hints = [line for line in done.outlines if line.startswith("FLINK_AGENTS_TEST_MODE=")]
    assert len(hints) == outcomes["failed"]
    words, _, command = hints[0].partition(" ")
    assert words.partition("=")[2] in ALL[1:]
    assert command.startswith("scripts/test 'tests/runtime/test_inner.py::test_inner[")


@pytest.mark.parametrize("words", ["", "replay,restart"])
def test_a_condition_of_the_environment_switches_the_rotation_off(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv(TEST_MODE_VARIABLE, words)
    pytester.makeconftest('pytest_plugins = ["tests.suite.conditions"]')
    test = pytester.path / "tests" / "runtime" / "test_inner.py"
    test.parent.mkdir(parents=True)
    test.write_text(INNER.replace('== ""', f"== {words!r}"))
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=12)
    assert os.environ[TEST_MODE_VARIABLE] == words
