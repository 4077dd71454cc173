"""What is kept of the source of functions is kept for their code alone, and never longer than that."""

from __future__ import annotations

import ast
import gc
import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import plan_shop
import pytest
from plan_shop import BigOrderPlaced, OrderPaid, OrderPlaced

from flink_agents import Agent, Event, InputEvent, action
from flink_agents.api.common.identity import IdentityCache
from flink_agents.api.common.places import place_of_class
from flink_agents.plan.analysis import functions as source
from flink_agents.plan.analysis.reading import read
from flink_agents.plan.compile import events
from flink_agents.plan.compile.compiler import compile_with_code

HEAD = "from plan_shop import BigOrderPlaced, OrderPaid, OrderPlaced\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Write a module, and import it, or renew it where it was imported before."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        importlib.invalidate_caches()
        loaded_module = sys.modules.get(name)
        if loaded_module is None:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            del sys.modules[name]
            return importlib.import_module(name)
        return importlib.reload(loaded_module)

    return make


def emitted(function: Callable[..., Any]) -> set[type[Event]]:
    return read(function).shown.events


def test_equal_code_of_two_files_has_two_sources(write: Callable[[str, str], ModuleType]) -> None:
    looked_at = "def act(event, ctx):\n    event == OrderPaid or event == OrderPlaced\n"
    text = looked_at + "    if False:\n        return {:11}()\n"  # of one length, as code knows its columns
    first = write("renewed_first", text.format("OrderPaid"))
    second = write("renewed_second", text.format("OrderPlaced"))
    assert first.act.__code__ == second.act.__code__
    assert emitted(first.act) == {OrderPaid}
    assert emitted(second.act) == {OrderPlaced}


def test_a_file_that_changes_leaves_loaded_code_what_it_was(
    write: Callable[[str, str], ModuleType], tmp_path: Path
) -> None:
    text = "def act(event, ctx):\n    event == OrderPlaced\n    return {}()\n"
    module = write("renewed_changing", text.format("OrderPaid"))
    loaded = module.act
    assert emitted(loaded) == {OrderPaid}
    (tmp_path / "renewed_changing.py").write_text(HEAD + "# Longer.\n\n" + text.format("BigOrderPlaced"))
    assert emitted(loaded) == {OrderPaid}
    # What the name stands for is read anew, in the tree that is known.
    module.__dict__["OrderPaid"] = list
    assert emitted(loaded) == set()
    renewed = write("renewed_changing", "# Longer.\n\n" + text.format("BigOrderPlaced"))
    assert emitted(renewed.act) == {BigOrderPlaced}
    assert emitted(loaded) == {OrderPaid}


def test_a_cell_that_is_run_again_is_new_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(text: str) -> Callable[..., Any]:
        monkeypatch.setitem(linecache.cache, "<cell>", (len(text), None, text.splitlines(True), "<cell>"))
        names = {**vars(plan_shop)}
        exec(compile(text, "<cell>", "exec"), names)
        return names["act"]

    first = run("def act(event, ctx):\n    return OrderPaid()\n")
    assert emitted(first) == {OrderPaid}
    second = run("def act(event, ctx):\n    return OrderPlaced()\n")
    assert emitted(second) == {OrderPlaced}
    assert emitted(first) == {OrderPaid}


class Plain:
    pass


maker: Any = Plain


def makes(event: Any, ctx: Any) -> Any:
    return maker([OrderPaid])


def test_what_a_global_stands_for_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given to an event is content; what is given to anything else may be emitted."""
    assert OrderPaid in emitted(makes)
    monkeypatch.setattr(sys.modules[__name__], "maker", OrderPlaced)
    assert emitted(makes) == {OrderPlaced}
    monkeypatch.undo()
    assert OrderPaid in emitted(makes)


def test_a_closure_is_read_with_its_own_cells() -> None:
    def action_of(kind: Any) -> Callable[..., Any]:
        def act(event: Any, ctx: Any) -> Any:
            return kind()

        return act

    assert emitted(action_of(OrderPaid)) == {OrderPaid}
    assert emitted(action_of(OrderPlaced)) == {OrderPlaced}


def test_code_is_searched_for_in_its_file_once(
    write: Callable[[str, str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(source.ast, "parse", lambda text: [parsed.append(text), parse(text)][1])
    module = write(
        "renewed_once", "def help():\n    return OrderPaid()\n\n\ndef act(event, ctx):\n    return help()\n"
    )
    assert emitted(module.act) == emitted(module.act) == {OrderPaid}
    assert len(parsed) == 1


class Shop(Agent):
    @action(InputEvent)
    def act(self, event: Any, ctx: Any) -> Any:
        return OrderPaid(order_id="1")

    @action(OrderPaid)
    def paid(self, event: Any, ctx: Any) -> None: ...


def test_plan_and_code_of_an_agent_are_made_of_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    functions: list[Any] = []
    monkeypatch.setattr(
        events, "read", lambda function, *holder: [functions.append(function), read(function, *holder)][1]
    )
    plan, code = compile_with_code(Shop)
    assert functions == [Shop.act, Shop.paid]
    assert [plan_action.name for plan_action in plan.actions] == [*code.actions] == ["act", "paid"]


def test_what_is_kept_of_an_object_goes_with_it() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    cache: IdentityCache[str] = IdentityCache()
    first = Equal()
    second = Equal()
    assert cache.put(first, "first") == "first"
    assert cache.get(first) == "first" and cache.get(second) is None
    cache.put(first, "again")
    assert cache.get(first) == "again" and len(cache) == 1
    del first
    gc.collect()
    assert len(cache) == 0


def test_a_class_that_is_defined_anew_has_its_own_place(write: Callable[[str, str], ModuleType]) -> None:
    first = write("renewed_place", "class Shop:\n    pass\n").Shop
    assert ":2 in Shop" in place_of_class(first)
    second = write("renewed_place", "\n\nclass Shop:\n    pass\n").Shop
    assert ":4 in Shop" in place_of_class(second)
    assert ":2 in Shop" in place_of_class(first)
