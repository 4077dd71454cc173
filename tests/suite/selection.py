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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only runs by night."""
    if takes_all(config):
        return
    named = [argument for argument in config.args if "::" in argument]
    rows: Counter[str] = Counter()
    daily: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker(NIGHTLY)
        if marker is None:
            daily.append(item)
            continue
        function = item.nodeid.partition("[")[0]
        rows[function] += 1
        is_named = any(argument.split("::")[-1] in item.nodeid for argument in named)
        is_daily = is_named or rows[function] <= marker.kwargs.get("beyond", 0)
        (daily if is_daily else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = daily
