"""What the class of a description names, while its module is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from flink_agents.models.setup.classes import create_instance, import_object

NAME = "module_of_a_maker"
PART = "from threads_of_a_maker import begun, go_on\nbegun.set()\nassert go_on.wait(30)\n"
MAKER = "def make():\n    return word()\n"
WORD = "def word():\n    return 'made'\n"
RUNS = (
    "from flink_agents.models.setup.classes import create_instance\n"
    f"made = create_instance('{NAME}:make', str, 'it')\n"
)
IN_THE_HARNESS = """
from concurrent.futures import ThreadPoolExecutor
from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.models.setup.classes import create_instance
from flink_agents.testing import OperatorHarness

def decide(event, ctx):
    with ThreadPoolExecutor(1) as pool:
        return OutputEvent(output=pool.submit(create_instance, f"{__name__}:make", str, "it").result(30))

with OperatorHarness(Agent("asks").add_action("decide", [InputEvent], decide)) as harness:
    made, = harness.push("now")
"""

Write = Callable[[str], object]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the module."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path.joinpath(f"{NAME}.py").write_text
    sys.modules.pop(NAME, None)


@pytest.mark.parametrize("text", [PART + MAKER + WORD, MAKER + PART + WORD], ids=["nothing", "a part"])
def test_a_module_that_another_thread_imports(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    threads = type(sys)("threads_of_a_maker")
    threads.begun, threads.go_on = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, threads.__name__, threads)
    write(text)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(create_instance, f"{NAME}:make", str, "it")
        assert threads.begun.wait(30)
        other_futures = [
            pool.submit(create_instance, f"{NAME}:make", str, "it"),
            pool.submit(import_object, f"{NAME}:word", "it"),
        ]
        done, _ = wait(other_futures, timeout=0.2)  # what needs no more than the part is done by then
        threads.go_on.set()
        assert not done
        assert [first.result(30), other_futures[0].result(30), other_futures[1].result(30)()] == ["made"] * 3


@pytest.mark.parametrize("text", [RUNS, IN_THE_HARNESS], ids=["itself", "the harness"])
def test_a_module_that_runs_agents_while_it_is_imported(write: Write, text: str) -> None:
    write(MAKER + WORD + text)
    __import__(NAME)
    assert sys.modules[NAME].made == "made"
