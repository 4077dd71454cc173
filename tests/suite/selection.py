"""Selects the tests of a run.

The daily run omits the tests with the marker ``nightly``. They run if you name one by its id, select by
a marker (``-m``), or pass ``--nightly``. With ``nightly(beyond=3)``, the first three rows of a test's
parameters run every day. Tests that draw their rows themselves ask the fixture ``is_night``.
"""

from __future__ import annotations

from collections import Counter

import pytest

NIGHTLY = "nightly"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the tests with the marker nightly")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{NIGHTLY}(beyond): runs in scripts/nightly, not daily; beyond: how many rows run daily"
    )


def takes_all(config: pytest.Config) -> bool:
    """Return True if a run also takes what the daily run leaves out."""
    return bool(config.getoption("--nightly") or config.option.markexpr)


@pytest.fixture
def is_night(request: pytest.FixtureRequest) -> bool:
    """Whether a test draws as many examples as at night; not if a mutation has to be found by day."""
    return takes_all(request.config) and f"not {NIGHTLY}" not in request.config.option.markexpr


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only runs by night. Rows that run daily lose the marker, before ``-m`` reads it."""
    rows: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker(NIGHTLY)
        if marker is not None and "beyond" in marker.kwargs:
            function = item.nodeid.partition("[")[0]
            rows[function] += 1
            if rows[function] <= marker.kwargs["beyond"]:
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != NIGHTLY]
    if takes_all(config):
        return
    named = [argument for argument in config.args if "::" in argument]
    left_out = [
        item
        for item in items
        if item.get_closest_marker(NIGHTLY)
        and not any(argument.split("::")[-1] in item.nodeid for argument in named)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        omitted = set(left_out)
        items[:] = [item for item in items if item not in omitted]
