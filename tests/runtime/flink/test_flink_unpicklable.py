"""What cannot be brought to workers, and what a job puts out that cannot be pickled, is named."""

from __future__ import annotations

import functools
import pickle
import socket
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents.api.errors import OutputsNotReadyError, UnpicklableOutputError, UnshippableCodeError
from flink_agents.runtime.flink.following.outputs import Outputs
from flink_agents.runtime.flink.job_errors import job_failed
from flink_agents.runtime.flink.shipping.class_copies import check_shippable
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

SCRIPT = """
import functools, socket, threading
from flink_agents import Agent, InputEvent, OutputEvent, action

LOCK = threading.Lock()
SOCKET = socket.socket()

class Client:
    def __init__(self):
        self.pool = {"one": [threading.Lock()]}

CLIENT = Client()

def by_lock(record):
    with LOCK:
        return record

def by_helper(record):
    return helper(record)

def helper(record):
    return CLIENT.get(record)

by_lambda = lambda record: SOCKET.getsockname()

def around(lock=threading.Lock()):
    inner = LOCK
    def selector(record):
        return inner
    return selector

by_closure = around()
by_default = around.__class__(around.__code__, around.__globals__, "by_default", around.__defaults__)
by_partial = functools.partial(helper, client=CLIENT)

class Greeter:
    lock = threading.Lock()
    def greet(self, event, ctx):
        return SOCKET

by_method = Greeter().greet

class Shop(Agent):
    @action(InputEvent)
    def sell(self, event, ctx):
        with LOCK:
            return OutputEvent(output=event.input)
"""

CULPRITS = {
    "by_lock": ("the global 'LOCK', _thread.lock", "by_lock"),
    "by_helper": ("the global 'CLIENT', __main__.Client", "helper"),
    "by_lambda": ("the global 'SOCKET', socket.socket", "lambda"),
    "by_closure": ("the variable 'inner' around around.<locals>.selector, _thread.lock", "selector"),
    "by_default": ("_thread.lock", "around"),
    "by_partial": ("__main__.Client", ""),
    "by_method": ("the global 'SOCKET', socket.socket", "Greeter.greet"),
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A main script: its functions go to workers by value."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(SCRIPT, "script.py", "exec", dont_inherit=True), module.__dict__)
    yield module.__dict__
    module.__dict__["SOCKET"].close()


def test_the_object_that_cannot_be_pickled_is_named(script: dict[str, Any]) -> None:
    for name, (culprit, holder) in CULPRITS.items():
        with pytest.raises(UnshippableCodeError) as caught:
            check_shippable("the key selector", script[name])
        text = str(caught.value)
        assert culprit in caught.value.message, (name, text)
        assert holder in text.splitlines()[0], (name, text)
        assert "@client" in (caught.value.fix or "")
        pickle.loads(pickle.dumps(caught.value))


def test_what_can_be_pickled_passes(script: dict[str, Any]) -> None:
    for value in (script["Client"], len, functools.partial(pow, 2), lambda record: record):
        check_shippable("it", value)
    assert threading and socket


def test_the_harness_names_it_as_a_job_does(script: dict[str, Any]) -> None:
    with pytest.raises(UnshippableCodeError, match="the agent 'Shop' uses an object") as caught:
        OperatorHarness(script["Shop"])
    assert "the global 'LOCK', _thread.lock" in caught.value.message
    assert "in Shop.sell" in str(caught.value).splitlines()[0]


# -- outputs that are read too early -------------------------------------------------


@each_case(
    "read",
    [
        len, list, bool, iter, sorted, tuple, set,
        lambda outputs: outputs[0],
        lambda outputs: outputs == [],
        lambda outputs: [] == outputs,
        lambda outputs: 1 in outputs,
        lambda outputs: outputs.copy(),
        lambda outputs: [*outputs],
        lambda outputs: [output for output in outputs],
        lambda outputs: outputs + [],
        pickle.dumps,
    ],
)  # fmt: skip
def test_outputs_are_not_read_before_the_job_is_executed(read: Any) -> None:
    outputs = Outputs()
    with pytest.raises(OutputsNotReadyError, match="before it is executed") as caught:
        read(outputs)
    assert "test_flink_unpicklable" in str(caught.value)
    assert "not been executed" in repr(outputs)
    outputs.submitted = True
    outputs.extend([1, 2])
    assert outputs == [1, 2] and list(outputs) == [1, 2] and repr(outputs) == "[1, 2]"
    assert pickle.loads(pickle.dumps(outputs)) == [1, 2]
    read(outputs)


# -- outputs that cannot be pickled --------------------------------------------------


@each_case(
    ("cls", "text"),
    [
        ("TypeError", "cannot pickle '_thread.lock' object"),
        ("TypeError", "cannot pickle 'generator' object"),
        ("_pickle.PicklingError", "Can't pickle <class 'job.f.<locals>.X'>: it's not found"),
        ("AttributeError", "Can't get local object 'f.<locals>.X'"),
    ],
)
def test_an_output_that_cannot_be_pickled_is_explained(cls: str, text: str) -> None:
    java = (
        "java.lang.RuntimeException: boom\n\tat a.b(C.java:1)\nCaused by: pemja.core.object.PythonException: "
        f"<class '{cls}'>: {text}\n\tat x.y(Z.java:1)\n"
    )
    error = job_failed("greetings", java)
    assert type(error) is UnpicklableOutputError
    assert "cannot be pickled" in error.message and text in (error.found or "")
    assert error.fix and error.java_trace == java
    other_error = job_failed("greetings", java.replace(text, "unsupported operand"))
    assert type(other_error) is not UnpicklableOutputError
