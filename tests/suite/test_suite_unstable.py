"""Which failed tests of the daily suite get a second chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.suite import unstable

BROKER = "tests/kafka/test_kafka_state.py::test_one"
CORE = "tests/runtime/loop/test_loop.py::test_one"

CASES = {
    "passes alone": ([BROKER], True, 0, 1),
    "fails alone": ([BROKER], False, 1, 1),
    "starts no process": ([CORE], True, 1, 0),
    "one of two starts none": ([BROKER, CORE], True, 1, 0),
    "a file that cannot be imported": (["tests/runtime/loop/test_loop.py"], True, 1, 0),
    "too many": ([f"{BROKER}[{number}]" for number in range(unstable.MOST + 1)], True, 1, 0),
    "a run that broke before its first test": ([], True, 1, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_beside_others_counts_unless_the_test_passes_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, passes, code, runs = CASES[name]
    alone = list[Sequence[str]]()

    def run(nodeids: Sequence[str]) -> bool:
        alone.append(nodeids)
        return passes

    assert unstable.judge(failed, run) == code
    assert alone == [failed] * runs
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
