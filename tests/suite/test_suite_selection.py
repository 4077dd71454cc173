"""Which tests a run leaves out."""

from __future__ import annotations

import pytest

TESTS = """
import pytest

def test_daily(): pass

@pytest.mark.nightly
@pytest.mark.parametrize("at", range(2))
def test_slow(at): pass

@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("at", range(3))
def test_long_table(at): pass
"""


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ((), 2),
        (("--nightly",), 6),
        (("-m", "nightly"), 4),
        (("-m", "not nightly"), 2),
        (("test_inner.py::test_slow",), 2),
        (("test_inner.py::test_slow[1]",), 1),
        (("test_inner.py::test_daily",), 1),
        (("test_inner.py::test_long_table",), 3),
        (("test_inner.py::test_long_table[2]",), 1),
        (("test_inner.py",), 2),
    ],
    ids=str,
)
def test_the_daily_run_leaves_out_what_runs_by_night(
    pytester: pytest.Pytester, arguments: tuple[str, ...], ran: int
) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.suite.selection"]')
    pytester.makepyfile(test_inner=TESTS)
    outcomes = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments).parseoutcomes()
    assert outcomes.pop("deselected", 0) == 6 - ran or "::" in arguments[0]
    assert outcomes == {"passed": ran}


@pytest.mark.parametrize(
    ("arguments", "is_night"),
    [((), False), (("--nightly",), True), (("-m", "not slow"), True), (("-m", "not nightly"), False)],
    ids=str,
)
def test_a_test_draws_more_by_night(
    pytester: pytest.Pytester, arguments: tuple[str, ...], is_night: bool
) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.suite.selection"]')
    pytester.makepyfile(test_inner=f"def test_draws(is_night): assert is_night is {is_night}")
    pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments).assert_outcomes(passed=1)
