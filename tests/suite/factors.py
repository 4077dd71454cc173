"""Behaviour under several factors: pairs of values every day, the full product every night.

    @factors(agent=[Plain, Overtaking], order=ORDERS, crash=[True, False])
    def test_every_input_ends_once(agent, order, crash): ...

The daily run takes a covering array of strength 2: any two values of different factors meet in at least one
row. With ``--product`` pytest runs all rows; those beyond the pairs have the marker ``product``, so that
``--product -m product`` runs exactly the rest. Without ``--product`` they are not even created.

If a defect needs three values at once, and pairs miss it, name the row with ``also``.

If a factor is only random (seeds, orders of inputs), ``strength=1`` takes each value once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

PRODUCT = "product"
MARKER = "factors"

Row = tuple[int, ...]
"""The position of a value in each factor."""

Pair = tuple[int, int, int, int]
"""A factor and the position of its value, twice."""


def pairs(sizes: Sequence[int], allowed: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Return rows in which any two values of different factors meet, as far as a row with both is allowed.

    The rows are the same on every call: a greedy choice among rows that are drawn with a fixed seed.

    Args:
        sizes: How many values each factor has.
        allowed: Returns False for rows that must not be taken.
    """
    rows = [row for row in product(*map(range, sizes)) if allowed(row)]
    if len(sizes) < 3:
        return rows
    random.Random(1).shuffle(rows)
    covers = {row: _pairs_of(row) for row in rows}
    rows_with: dict[Pair, list[Row]] = defaultdict(list)
    for row, covered in covers.items():
        for pair in covered:
            rows_with[pair].append(row)
    missing = set(rows_with)
    chosen: set[Row] = set()
    while missing:
        # A row that has one missing pair for certain, and as many others as possible.
        best = max(rows_with[min(missing)], key=lambda row: len(missing & covers[row]))
        chosen.add(best)
        missing -= covers[best]
    return sorted(chosen)


def _pairs_of(row: Row) -> set[Pair]:
    return {(first, row[first], second, row[second]) for first, second in combinations(range(len(row)), 2)}


def singles(sizes: Sequence[int], allowed: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Return rows in which each value occurs, as far as a row with it is allowed; see :func:`pairs`."""
    rows = [row for row in product(*map(range, sizes)) if allowed(row)]
    chosen: list[Row] = []
    missing = {(at, value) for row in rows for at, value in enumerate(row)}
    # One value after the other of each factor, so that the values of short factors are spread evenly.
    turns = [tuple(at % size for size in sizes) for at in range(max(sizes, default=0))]
    for row in [turn for turn in turns if allowed(turn)] + rows:
        if missing & set(enumerate(row)):
            chosen.append(row)
            missing -= set(enumerate(row))
    return sorted(chosen)


def factors(
    *,
    strength: int = 2,
    also: Iterable[Sequence[Any]] = (),
    without: Callable[..., bool] | None = None,
    ids: Mapping[str, Callable[[Any], object]] | None = None,
    **values: Iterable[Any],
) -> pytest.MarkDecorator:
    """Run a test for each pair of values of its factors; see the module.

    Args:
        strength: How many values of different factors meet in at least one row of the daily run: 2 or 1.
        also: Rows that the daily run takes besides those, with a value for each factor.
        without: Returns True for values that do not go together. Takes the factors by name.
        ids: For a factor, what names a value in the id of a test. Default: its name, or its text.
        values: The factors, by the parameter's name.
    """
    table = {name: list(of) for name, of in values.items()}
    return getattr(pytest.mark, MARKER)(
        table, [tuple(row) for row in also], without, dict(ids or {}), strength
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--product", action="store_true", help="run all rows of factors, not only their pairs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(table, also, without, ids, strength): see tests/suite/factors.py"
    )
    config.addinivalue_line("markers", f"{PRODUCT}: a row that only runs with --product")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for marker in metafunc.definition.iter_markers(MARKER):
        table, also, without, ids, strength = marker.args
        everything = bool(metafunc.config.getoption("--product", False))
        metafunc.parametrize(list(table), rows_of(table, also, without, ids, everything, strength))


def rows_of(
    table: Mapping[str, Sequence[Any]],
    also: Sequence[Sequence[Any]],
    without: Callable[..., bool] | None,
    ids: Mapping[str, Callable[[Any], object]],
    everything: bool,
    strength: int = 2,
) -> list[Any]:
    """Return the rows of a test as parameter sets."""
    names, columns = list(table), list(table.values())

    def values(row: Row) -> tuple[Any, ...]:
        return tuple(column[at] for column, at in zip(columns, row, strict=True))

    def allowed(row: Row) -> bool:
        return without is None or not without(**dict(zip(names, values(row), strict=True)))

    sizes = [len(column) for column in columns]
    daily = set((pairs if strength > 1 else singles)(sizes, allowed))
    daily.update(
        tuple(column.index(value) for column, value in zip(columns, row, strict=True)) for row in also
    )
    chosen = [row for row in product(*map(range, sizes)) if allowed(row)] if everything else sorted(daily)
    return [
        pytest.param(
            *values(row),
            id="-".join(
                str(ids.get(name, named)(value)) for name, value in zip(names, values(row), strict=True)
            ),
            marks=() if row in daily else getattr(pytest.mark, PRODUCT),
        )
        for row in chosen
    ]


def named(value: Any) -> str:
    """Return a name for a value in an id; never an address."""
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(value, tuple | list):
        return "+".join(map(named, value)) or "none"
    text = getattr(value, "name", None)
    return str(text if isinstance(text, str) else value)
