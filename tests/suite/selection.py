"""Selects the tests of a run.

The daily run omits the tests with the marker ``nightly``. They run if you name one by its id, select by
a marker (``-m``), or pass ``--nightly``.
"""

from __future__ import annotations

import pytest

NIGHTLY = "nightly"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the tests with the marker nightly")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{NIGHTLY}: runs in scripts/nightly, not in the daily run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only runs by night."""
    if config.getoption("--nightly") or config.option.markexpr:
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
        items[:] = [item for item in items if item not in set(left_out)]
