"""Hides the objects of the collected tests from Python's collector.

A session has millions of them, which live until its end. Each full collection would visit them, and
``gc.get_objects`` would return them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
