"""The progress of a long run."""

from __future__ import annotations

import pytest

from tests.suite.progress import Estimate, clock


def test_the_estimate_weighs_tests_by_the_last_run_of_their_file() -> None:
    estimate = Estimate({"slow.py": 90.0, "fast.py": 10.0})
    estimate.expect(["slow.py::a", "slow.py::b", "fast.py::a", "fast.py::b"])
    assert (estimate.total, estimate.share, estimate.seconds_left(5.0)) == (4, 0.0, None)
    estimate.ended("fast.py::a")
    assert estimate.seconds_left(5.0) == pytest.approx(95.0)
    estimate.ended("slow.py::a")
    assert estimate.seconds_left(50.0) == pytest.approx(50.0)
    estimate.ended("fast.py::b")
    estimate.ended("slow.py::b")
    assert (estimate.share, estimate.seconds_left(100.0)) == (1.0, 0.0)


def test_without_an_earlier_run_tests_count_the_same() -> None:
    estimate = Estimate({})
    estimate.expect(["a.py::a", "b.py::b", "b.py::c", "b.py::d"])
    estimate.ended("b.py::b")
    assert estimate.share == pytest.approx(0.25)


def test_nothing_to_run_is_no_progress() -> None:
    estimate = Estimate({})
    estimate.expect([])
    assert (estimate.share, estimate.seconds_left(1.0)) == (0.0, None)


def test_durations_read_as_minutes_and_seconds() -> None:
    assert [clock(0), clock(59.9), clock(60), clock(600.2)] == ["0:00", "0:59", "1:00", "10:00"]


INNER = """
import pytest

def test_good(): pass
def test_bad(): assert False
def test_left_out(): pytest.skip("no reason")
@pytest.fixture
def broken(): raise ValueError
def test_without_fixture(broken): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "two"])
def test_a_run_prints_failures_at_once_and_how_far_it_is(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tests.suite.progress.LINE_EVERY", 0.0)
    pytester.makepyfile(test_inner=INNER)
    done = pytester.runpytest_inprocess("-p", "tests.suite.progress", *workers)
    done.assert_outcomes(passed=1, failed=1, skipped=1, errors=1)
    lines = done.outlines
    failed_at = lines.index("FAILED test_inner.py::test_bad")
    assert lines[failed_at + 1].startswith("    E ")
    assert "ERROR test_inner.py::test_without_fixture" in lines
    assert any(line.startswith("100%  4 of 4 tests, 2 failed, 0:0") for line in lines), lines
