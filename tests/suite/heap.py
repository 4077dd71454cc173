"""Hides the objects of the collected tests from Python's collector, and collects what tests have left.

A session has millions of the former, which live until its end. Each full collection would visit them, and
``gc.get_objects`` would return them.

A harness that crashes leaves its threads as a killed process would, and they end when it is collected. The
runtime lets Python collect less often. So a process of tests could have hundreds of threads, which look many
times a second if there is work, and a test that takes milliseconds took minutes (measured).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

MORE_THREADS = 40
"""When a process has this number of threads more than before, what tests have left is collected."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


class _Threads:
    """The threads of the process.

    Attributes:
        fewest: Their least number since the last collection.
    """

    fewest = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    present = threading.active_count()
    _Threads.fewest = min(_Threads.fewest, present)
    if present > _Threads.fewest + MORE_THREADS:
        gc.collect()
        # They end soon. Those that stay do not cause a collection after each test.
        _Threads.fewest = present
