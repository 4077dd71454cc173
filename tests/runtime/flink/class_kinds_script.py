"""Uses the classes of each kind in a main script, as ``python class_kinds_script.py STAGE``.

``harness`` checks them in the test kit. ``ship`` writes what a job sends, ``work`` reads it like a worker.
``harness`` and ``work`` print the failures as JSON.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from types import ModuleType

import cloudpickle

from flink_agents.runtime.flink.shipping import main_module
from flink_agents.runtime.flink.shipping.main_module import MainModule
from flink_agents.runtime.flink.shipping.user_modules import forget_classes
from flink_agents.testing import OperatorHarness
from tests.runtime.flink.class_kinds import OTHER, STORED

KINDS = {**STORED, **OTHER}

AGENT = """
from flink_agents import Agent, InputEvent, OutputEvent, action
class Checks(Agent):
    @action(InputEvent)
    def run(self, event, ctx):
        check()
        return OutputEvent(output="checked")
"""


def failures(check_kind: Callable[[str, ModuleType], None]) -> dict[str, str]:
    """Check each kind in a main module of its own; return the errors."""
    errors: dict[str, str] = {}
    for kind in KINDS:
        forget_classes()
        main = sys.modules["__main__"] = ModuleType("__main__")
        try:
            check_kind(kind, main)
        except BaseException as error:
            errors[kind] = f"{type(error).__name__}: {error}"
    return errors


def define(source: str, main: ModuleType) -> None:
    """Execute a cell of a notebook."""
    exec(compile(source, "<cell>", "exec", dont_inherit=True), main.__dict__)


def check_in_harness(kind: str, main: ModuleType) -> None:
    """Use a kind before, in and after a harness."""
    define(KINDS[kind] + AGENT, main)
    main.check()
    assert OperatorHarness(main.Checks()).push(1) == ["checked"]
    main.check()


def ship(kind: str, main: ModuleType) -> bytes:
    """Return what a job sends."""
    define(KINDS[kind], main)
    return cloudpickle.dumps((MainModule(), main.check))


def read_shipped(payloads: dict[str, bytes], kind: str) -> None:
    """Use a kind in a worker."""
    for _ in range(2):  # as two operators of one job
        _, check = pickle.loads(payloads[kind])
        check()


if __name__ == "__main__":
    stage = sys.argv[1]
    if stage == "harness":
        print(json.dumps(failures(check_in_harness)))
    elif stage == "ship":
        shipped: dict[str, bytes] = {}
        unshipped = failures(lambda kind, main: shipped.update({kind: ship(kind, main)}))
        sys.stdout.buffer.write(pickle.dumps((shipped, unshipped)))
    else:
        main_module.in_flink_worker = lambda: True
        main_module._prepare_worker = lambda: None
        payloads, errors = pickle.load(sys.stdin.buffer)
        print(json.dumps({**failures(lambda kind, main: read_shipped(payloads, kind)), **errors}))
