"""The mutations that the suite finds, and the table of what finds them."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tests.mutations.patches.patch import PATCHES, Patch, TargetGone, functions_at, functions_of
from tests.mutations.suite.kills import enter_kills, read_kills, write_kills
from tests.mutations.suite.plugin import defects, keep_findings, settled
from tests.mutations.suite.processes import in_processes
from tests.mutations.suite.reach import Reach
from tests.mutations.suite.search import Found, Search, by_promise, function_id
from tests.suite.tables import each_case

ROOT = Path(__file__).parents[2]

SOURCE = '''"""A module."""


def decorated(value: int) -> int:
    """A function."""
    if value > 1:
        return value
    return 0


class Box:
    @property
    def size(self) -> int:
        return 1

    @size.setter
    def size(self, size: int) -> None:
        self.set = size

    def inner(self) -> list[int]:
        return [one + 1 for one in (1, 2)]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module to be changed, in place of one of the package."""
    package = tmp_path / "changed_here"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "box.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tests.mutations.patches.patch.PACKAGE", "changed_here")
    for name in ("changed_here", "changed_here.box"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("changed_here.box")


def patch(function: str, old: str, new: str) -> Patch:
    return Patch("named", "box", function, old, new, "About.")


def test_a_patch_changes_every_reference_to_a_function(module: ModuleType) -> None:
    reference = module.decorated
    patch("decorated", "if value > 1:\n    return value", "return value + 1").apply()
    assert (reference(1), module.decorated(5)) == (2, 6)


def test_a_patch_changes_methods_and_both_functions_of_a_property(module: ModuleType) -> None:
    box = module.Box()
    patch("Box.inner", "one + 1", "one + 2").apply()
    patch("Box.size", "self.set = size", "self.set = -size").apply()
    box.size = 3
    assert (box.inner(), box.set, box.size) == ([3, 4], -3, 1)
    patch("Box.size", "return 1", "return 2").apply()
    assert box.size == 2


def test_a_patch_knows_the_lines_that_it_changes(module: ModuleType) -> None:
    assert list(patch("decorated", "if value > 1:\n    return value", "pass").lines()) == [6, 7]
    assert list(patch("Box.inner", "one + 1", "one").lines()) == [21]


@each_case(
    ("function", "old", "said"),
    [
        ("gone", "return 0", "there is no box:gone"),
        ("Box.gone", "return 0", "there is no box:Box.gone"),
        ("decorated", "return 7", "box:decorated has no line"),
        ("decorated", "return", "box:decorated has 2 times, and not once"),
        ("Box.inner", "return 1", "box:Box.inner has no line"),
    ],
)
def test_a_patch_without_a_target_fails(module: ModuleType, function: str, old: str, said: str) -> None:
    with pytest.raises(TargetGone, match=re.escape(said)):
        patch(function, old, "pass").apply()


@each_case("name", defects() and PATCHES, ids=str)
def test_what_a_patch_replaces_is_there(name: str) -> None:
    selected_patch = PATCHES[name]
    assert (
        selected_patch.lines()
        and selected_patch.about.endswith(".")
        and selected_patch.old != selected_patch.new
    )
    functions = functions_at(import_module(f"flink_agents.{selected_patch.module}"), selected_patch.function)
    assert any(isinstance(function, FunctionType) for function in functions)


def test_functions_of_a_module_are_found_by_their_lines() -> None:
    line_ranges = functions_of(SOURCE)
    assert line_ranges == {"decorated": (4, 8), "Box.size": (13, 18), "Box.inner": (20, 21)}


def test_the_table_names_the_mutations_that_exist_and_tests_that_exist() -> None:
    kills = read_kills()
    assert kills.keys() <= defects().keys()
    for tests in kills.values():
        assert tests
        for nodeid in tests:
            file, _, name = function_id(nodeid).partition("::")
            assert re.search(rf"def {name.rpartition('::')[2]}\(", (ROOT / file).read_text()), nodeid


def test_the_table_is_written_in_the_order_of_names(tmp_path: Path) -> None:
    write_kills({"b": ["t::b"], "a": ["t::a"]}, tmp_path / "kills.json")
    assert list(json.loads((tmp_path / "kills.json").read_text())) == ["a", "b"]


def test_processes_that_enter_results_lose_none(tmp_path: Path) -> None:
    table = tmp_path / "kills.json"
    names = [f"mutation-{number:02}" for number in range(24)]
    in_processes([*names, *names[:2]], 4, lambda name: enter_kills(name, [f"t.py::{name}"], table))
    assert read_kills(table) == {name: [f"t.py::{name}"] for name in names}
    enter_kills(names[0], [], table)
    assert names[0] not in read_kills(table)
    assert not list(tmp_path.glob("*.partial"))


@each_case(
    ("before", "reached", "skipped"),
    [
        (None, 0, False),
        (Found("named", ["t.py::a"], reached=1), 3, True),
        (Found("named", [], reached=3), 3, True),
        # More tests reach it than were tried: with --tests, or because tests were added.
        (Found("named", [], reached=1), 3, False),
    ],
)
def test_a_run_resumes_with_what_is_not_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Found | None, reached: int, skipped: bool
) -> None:
    monkeypatch.setattr("tests.mutations.suite.plugin.FOUND", tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    if before is not None:
        keep_findings(before)
    search = Search({}, Reach([]))
    monkeypatch.setattr(search, "reached", lambda defect: reached)
    assert settled(patch("decorated", "return 0", "return 1"), search) is skipped


def test_one_test_per_function_is_tried_first_and_those_of_the_same_room_before_others() -> None:
    seconds = {"tests/x/loop/t.py::a[1]": 2.0, "tests/x/loop/t.py::a[2]": 1.0, "tests/y.py::b": 0.1}
    ordered = by_promise(list(seconds), seconds, "lost", "runtime.loop.actor:KeyActor.finish")
    assert ordered == ["tests/x/loop/t.py::a[2]", "tests/y.py::b", "tests/x/loop/t.py::a[1]"]


def test_tests_that_share_words_with_a_mutation_are_tried_first() -> None:
    seconds = {"tests/x/loop/t.py::test_a": 0.1, "tests/y.py::test_signals_are_reserved": 9.0}
    ordered = by_promise(list(seconds), seconds, "signal-unreserved", "runtime.loop.replays:Replays.read")
    assert ordered == list(reversed(seconds))


PLUGIN = """
import time
from contextlib import closing
import pytest
from tests.mutations.suite.forked import run_forked

VALUE = [1]

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if session.testsfailed:
        return None
    for change in (lambda: None, lambda: VALUE.append(2)):
        told = [(one.at, one.outcome) for one in run_forked(session.items, change, longest=2.0)]
        print("TOLD", told)
    assert VALUE == [1]
    return True
"""

TESTS = """
import time
import pytest
from conftest import VALUE

def test_value(): assert VALUE == [1]
def test_skipped(): pytest.skip("so")
def test_hangs():
    while len(VALUE) > 1: time.sleep(0.1)
def test_behind(): pass
"""


def test_tests_run_in_a_forked_process_that_ends_with_one_that_hangs(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider")
    outcomes = [line.partition("TOLD ")[2] for line in done.outlines if "TOLD " in line]
    good = [(0, "passed"), (1, "skipped"), (2, "passed"), (3, "passed")]
    assert outcomes == [str(good), str([(0, "failed"), (1, "skipped"), (2, "hung")])]
