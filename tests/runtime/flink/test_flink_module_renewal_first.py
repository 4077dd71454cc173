"""The first job of a process: several threads load its operators, some before anything is watched."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from renewal_tools import ANSWER, CHECKED, PREFIX, Process

from flink_agents.runtime.flink.shipping import code_digest

ORDERS = "class Order:\n    pass\n" + ANSWER.format(1)
SHOP = "from $orders import Order\ndef answer():\n    return Order.__module__\n"

SLOW = "import threading\nthreading.renewal.wait_in_import()\n"


class SlowImport:
    """A module that stops in the middle of its import."""

    def __init__(self) -> None:
        self._begun, self._goes_on = threading.Event(), threading.Event()

    def wait_in_import(self) -> None:
        self._begun.set()
        assert self._goes_on.wait(60)

    def begin(self, name: str) -> threading.Thread:
        """Import a module in another thread, up to the middle."""
        thread = threading.Thread(target=importlib.import_module, args=(PREFIX + name,))
        thread.start()
        assert self._begun.wait(60)
        return thread

    def end(self, thread: threading.Thread) -> None:
        self._goes_on.set()
        thread.join()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowImport]:
    slow = SlowImport()
    monkeypatch.setattr(threading, "renewal", slow, raising=False)
    yield slow
    slow._goes_on.set()


def imported(directory: Path, name: str) -> ModuleType:
    """What an operator imports that was loaded before anything watched."""
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    return importlib.import_module(PREFIX + name)


@CHECKED
def test_modules_of_operators_that_were_loaded_before_stay(process: Process, checked: bool) -> None:
    directory = process.write("now", {"orders": ORDERS, "shop": SHOP})
    payload = process.driver(directory, "shop", checked)
    orders = imported(directory, "orders")
    names = code_digest.operator_arrives("first", "job", payload)
    code_digest.operator_loaded(names)
    assert sys.modules[f"{PREFIX}orders"] is orders
    assert imported(directory, "shop").Order is orders.Order


@CHECKED
def test_a_module_that_is_being_imported_stays(process: Process, slow: SlowImport, checked: bool) -> None:
    directory = process.write("now", {"orders": ORDERS, "shop": SHOP})
    payload = process.driver(directory, "shop", checked)
    # The driver has imported it long ago.
    process.write("now", {"orders": ORDERS.replace("def", f"{SLOW}def")})
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    thread = slow.begin("orders")
    orders = sys.modules[f"{PREFIX}orders"]
    names = code_digest.operator_arrives("first", "job", payload)
    assert sys.modules[f"{PREFIX}orders"] is orders
    slow.end(thread)
    code_digest.operator_loaded(names)
    assert imported(directory, "shop").Order is orders.Order


def test_a_module_of_an_earlier_job_that_nobody_watched_leaves(process: Process) -> None:
    """Such a job has no agents, so it brought none of this package."""
    directory = process.write("now", {"shop": ANSWER.format(1)})
    imported(directory, "shop")
    process.write("now", {"shop": ANSWER.format(2)})
    assert process.result(directory, "shop", checked=False) == 2


def test_a_further_job_does_not_take_modules_of_the_first_one(process: Process) -> None:
    directory = process.write("now", {"orders": ORDERS, "shop": SHOP})
    orders = imported(directory, "orders")
    process.submit(directory, "shop", job="first")
    process.submit(directory, "shop", job="second")
    assert sys.modules[f"{PREFIX}orders"] is orders
