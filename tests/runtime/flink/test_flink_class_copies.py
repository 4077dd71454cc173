"""Classes of scripts, notebooks and functions are in jobs and in the test kit what their source says."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from flink_agents.testing import OperatorHarness
from tests.runtime.flink import class_kinds
from tests.runtime.flink.class_kinds_script import AGENT, KINDS, define
from tests.suite.tables import each_case

SCRIPT = str(Path(__file__).with_name("class_kinds_script.py"))
ROOT = Path(__file__).parents[3]


def run(stage: str, content: bytes = b"") -> bytes:
    """Run the script in a process of its own, as each of its stages needs."""
    command = [sys.executable, SCRIPT, stage]
    done = subprocess.run(
        command, input=content, capture_output=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    return done.stdout


def test_classes_of_a_script_are_unchanged_in_a_harness() -> None:
    assert json.loads(run("harness")) == {}


def test_classes_of_a_script_are_unchanged_in_a_worker() -> None:
    assert json.loads(run("work", run("ship"))) == {}


@each_case("kind", KINDS)
def test_classes_that_no_import_finds_are_unchanged_in_a_harness(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such as those of a test function. State does not hold their values.
    monkeypatch.setattr(class_kinds, "read", lambda value: value)
    monkeypatch.setattr(class_kinds, "moved", lambda value: value)
    hidden = sys.modules["hidden"] = ModuleType("hidden")
    define(KINDS[kind] + AGENT, hidden)
    del sys.modules["hidden"]
    assert OperatorHarness(hidden.Checks()).push(1) == ["checked"]
    hidden.check()


NOTEBOOK = """
from dataclasses import dataclass, fields
from flink_agents import Agent, InputEvent, OutputEvent, action
@dataclass
class Order:
    euros: int = {default}
class Shop(Agent):
    @action(InputEvent)
    def run(self, event, ctx):
        ctx.short_term_memory.set("order", Order())
        order = ctx.short_term_memory.get("order")
        return OutputEvent(output=[order.euros, type(order) is Order])
"""


def test_a_class_that_a_notebook_has_defined_again_is_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    for default in (1, 2):
        define(NOTEBOOK.format(default=default), notebook)
        constructor = notebook.Order.__init__
        assert OperatorHarness(notebook.Shop()).push(0) == [[default, True]]
        assert notebook.Order.__init__ is constructor


def test_a_class_is_created_again_if_its_process_has_dropped_it() -> None:
    def make() -> bytes:
        class Order:
            def size(self) -> int:
                return 3

        return cloudpickle.dumps(Order)

    payload = make()
    gc.collect()
    assert cloudpickle.loads(payload)().size() == 3
