"""``each_case``: tables inside of one test."""

from __future__ import annotations

import pytest

from tests.suite.tables import SHOWN, CasesFailed, each_case

SEEN: list[object] = []


@each_case("value", [1, 2])
@each_case(("name", "text"), [("a", "b"), pytest.param("c", "d", id="named")])
def record(tmp: str, value: int, name: str, text: str) -> None:
    SEEN.append((tmp, value, name, text))


def test_a_stacked_table_runs_every_combination_with_the_fixtures() -> None:
    SEEN.clear()
    record(tmp="t")
    assert SEEN == [("t", 1, "a", "b"), ("t", 1, "c", "d"), ("t", 2, "a", "b"), ("t", 2, "c", "d")]


@each_case("value", range(1, 7), ids=lambda value: f"v{value}")
@each_case("divisor", [1, 2])
def odd(value: int, divisor: int) -> None:
    assert (value // divisor) % 2, f"{value} by {divisor} is even"
    if value == 5:
        raise ValueError("five")


def test_all_cases_run_and_every_failure_is_named() -> None:
    with pytest.raises(CasesFailed) as raised:
        odd()
    text = str(raised.value)
    assert text.startswith("7 of 12 cases failed:\n[v1-2] AssertionError: 1 by 2 is even")
    names = [case for case, _ in raised.value.failures]
    assert names == ["v1-2", "v2-1", "v4-1", "v4-2", "v5-1", "v5-2", "v6-1"]
    assert "[v5-1] ValueError: five" in text
    assert isinstance(raised.value.__cause__, AssertionError)


def test_many_failures_are_all_named_and_the_first_are_shown() -> None:
    @each_case("value", range(SHOWN + 3))
    def fail(value: int) -> None:
        raise ValueError(f"no {value}")

    with pytest.raises(CasesFailed) as raised:
        fail()
    *_, last = str(raised.value).splitlines()
    assert last == f"and [{SHOWN}] [{SHOWN + 1}] [{SHOWN + 2}]"


def test_a_table_without_cases_is_rejected() -> None:
    with pytest.raises(ValueError, match="the table of value has no cases"):
        each_case("value", [])


def test_pytest_sees_one_test_with_the_fixtures_that_are_left(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from tests.suite.tables import each_case

        @each_case("value", [1, 2, 3])
        def test_inner(tmp_path, value):
            assert tmp_path.exists()
            assert value != 2
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*1 of 3 cases failed:", "*2* AssertionError: assert 2 != 2"])
