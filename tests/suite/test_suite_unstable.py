"""What becomes of failed tests of the daily suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.suite import unstable

BROKER = "tests/kafka/test_kafka_state.py::test_one"
CORE = "tests/runtime/loop/test_loop.py::test_one"

CASES = {
    "passes alone": ([BROKER], [True], 0, [[BROKER]]),
    "fails alone": ([BROKER], [False], 1, [[BROKER]]),
    "starts no process": ([CORE], [True, True, True], 0, [[CORE]] * 3),
    "fails once of three times": ([CORE], [True, True, False], 1, [[CORE]] * 3),
    "one of two starts none": ([BROKER, CORE], [True, True, True], 0, [[BROKER, CORE], [CORE], [CORE]]),
    "too many": ([f"{BROKER}[{number}]" for number in range(unstable.MOST + 1)], [], 1, []),
    "a run that broke before its first test": ([], [], 1, []),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_beside_others_counts_unless_the_test_passes_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, results, code, expected_runs = CASES[name]
    runs = list[Sequence[str]]()

    def run(nodeids: Sequence[str]) -> bool:
        runs.append(nodeids)
        return results[len(runs) - 1]

    assert unstable.judge(failed, run) == code
    assert runs == expected_runs
    assert ("UNSTABLE" in capsys.readouterr().out) == (code == 0)


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "two"])
def test_the_failed_tests_of_a_run_are_known(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(
        test_inner="""
        def test_good(): pass
        def test_bad(): assert False
        """
    )
    pytester.makepyfile(test_unreadable="raise OSError")
    pytester.runpytest_inprocess("-p", "tests.suite.progress", "--continue-on-collection-errors", *workers)
    failed = unstable.failed_tests(Path(pytester.path))
    assert sorted(failed) == ["test_inner.py::test_bad", "test_unreadable.py"]
