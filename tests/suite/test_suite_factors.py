"""Covering arrays."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.suite.factors import factors, named, pairs
from tests.suite.tables import each_case

SIZES = [(2, 2, 2), (4, 3, 2), (4, 62, 2), (3, 3, 3, 3), (5, 4, 3, 2, 2), (1, 7, 3), (8, 8, 8)]


def met(rows: list[tuple[int, ...]]) -> set[tuple[int, int, int, int]]:
    return {
        (first, row[first], second, row[second])
        for row in rows
        for first, second in combinations(range(len(row)), 2)
    }


@each_case("sizes", SIZES)
def test_any_two_values_meet_in_few_rows(sizes: tuple[int, ...]) -> None:
    rows = pairs(sizes)
    assert met(rows) == met(list(product(*map(range, sizes))))
    first, second, *_ = sorted(sizes, reverse=True)
    assert first * second <= len(rows) <= 2 * first * second
    assert rows == pairs(sizes)


@each_case("sizes", SIZES)
def test_rows_that_are_not_allowed_are_left_out_and_all_that_is_left_meets(sizes: tuple[int, ...]) -> None:
    def allowed(row: tuple[int, ...]) -> bool:
        return sum(row) % 3 != 0 or row[0] == 0

    rows = pairs(sizes, allowed)
    assert all(map(allowed, rows))
    assert met(rows) == met([row for row in product(*map(range, sizes)) if allowed(row)])


@each_case("sizes", [(3,), (3, 4)])
def test_one_or_two_factors_are_their_product(sizes: tuple[int, ...]) -> None:
    assert pairs(sizes) == list(product(*map(range, sizes)))


TESTS = """
from tests.suite.factors import factors

@factors(a=[1, 2, 3], b=["x", "y", "z"], c=[True, False], also=[(3, "z", False)],
         without=lambda a, b, c: a == 1 and b == "x")
def test_inner(a, b, c):
    assert (a, b) != (1, "x")
"""


def test_the_daily_run_has_the_pairs_and_the_night_the_rest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.suite.factors"]')
    pytester.makepyfile(test_inner=TESTS)

    def run(*arguments: str) -> int:
        outcomes = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments).parseoutcomes()
        assert not outcomes.get("failed")
        return outcomes["passed"]

    daily = run()
    nightly = run("--product", "-m", "product")
    everything = run("--product")
    assert everything == 3 * 3 * 2 - 2
    assert daily + nightly == everything
    assert daily < everything
    assert run("-k", "3-z-False") == 1


def test_names_of_values_have_no_address() -> None:
    class Plain:
        name = "plain"

    assert [named(value) for value in (int, Plain(), ("a", 1), (), "text", None, True)] == [
        *("int", "plain", "a+1", "none", "text", "None", "True")
    ]


def test_the_marker_takes_any_iterable() -> None:
    mark = factors(a=range(2), b=(letter for letter in "xy"))
    assert mark.args[0] == {"a": [0, 1], "b": ["x", "y"]}
