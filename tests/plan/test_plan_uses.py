"""What the code of an agent tells of its durable calls."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding import uses as plan_uses
from flink_agents.plan.binding.uses import makes_durable_calls, may_make_durable_calls

NO_CALL = "def decide(value):\n    return value\n"
CALLS = "async def decide(ctx, value):\n    return await ctx.durable_execute_async(abs, value)\n"


class OneAction(Agent):
    """Its action does what the function does that it is made with."""

    @action(InputEvent)
    def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)


def uses(monkeypatch: pytest.MonkeyPatch, code: str, **known: Any) -> tuple[bool, bool]:
    """Whether an action surely makes durable calls, and whether it may; its body is ``code``."""
    body = compile(f"def decide(self, event, ctx):\n    {code}", "job.py", "exec").co_consts[0]
    function = FunctionType(body, {"__builtins__": __builtins__, "__name__": __name__, **known})
    bound = LoadedAgent(*compile_with_code(OneAction()))
    for bound_action in bound.actions:
        monkeypatch.setattr(bound_action, "function", function)
    return makes_durable_calls(bound), may_make_durable_calls(bound)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the author's, in a package, that makes durable calls."""
    package = tmp_path / "author_of_uses"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("calls.py").write_text(CALLS, encoding="utf-8")
    package.joinpath("plain.py").write_text(NO_CALL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("author_of_uses")]:
        monkeypatch.delitem(sys.modules, name)
    return "author_of_uses.calls"


IMPORTS = [
    "from author_of_uses.calls import decide; return decide",
    "import author_of_uses.calls as calls; return calls.decide",
    "from .calls import decide; return decide",
    "from . import calls; return calls.decide",
]


@pytest.mark.parametrize("code", IMPORTS)
@pytest.mark.parametrize("loaded", [False, True])
def test_an_action_that_imports_as_it_runs(
    monkeypatch: pytest.MonkeyPatch, module: str, code: str, loaded: bool
) -> None:
    if loaded:
        importlib.import_module(module)
    assert uses(monkeypatch, code, __package__="author_of_uses")[1]
    assert (module in sys.modules) == loaded


def test_an_import_in_a_function_of_the_action(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    code = "from author_of_uses.calls import decide; return decide"
    assert uses(monkeypatch, f"def inner():\n        {code}\n    return inner") == (False, True)


@pytest.mark.parametrize(
    "code",
    [
        "return event",
        "import json; return json.dumps(event)",
        "from xml.dom import minidom; return minidom",
        "from pydantic.no_such_module import x",
        "import no_such_module_at_all",
        "import google.cloud.no_such_module",
        "import sqlite3.dbapi2",
        "from .. import gone",
    ],
)
def test_libraries_and_missing_modules_make_no_calls(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    assert uses(monkeypatch, code) == (False, False)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("authors", [False, True])
def test_packages_without_an_init(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded: bool, authors: bool
) -> None:
    """Distributions share such a package; what is not there yet may be the author's if a part of it is."""
    library = tmp_path / "library"
    places = [library, tmp_path / "own"] if authors else [library]
    for place in places:
        (place / "shared_by_parts").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(plan_uses, "_LIBRARIES", (*plan_uses._LIBRARIES, f"{library}{os.sep}"))
    monkeypatch.delitem(sys.modules, "shared_by_parts", raising=False)
    if loaded:
        importlib.import_module("shared_by_parts")
    assert uses(monkeypatch, "import shared_by_parts.missing")[1] == authors
    monkeypatch.delitem(sys.modules, "shared_by_parts", raising=False)


def test_a_loaded_module_without_calls_makes_none(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    importlib.import_module("author_of_uses.plain")
    assert uses(monkeypatch, "from author_of_uses.plain import decide; return decide") == (False, False)


def test_a_durable_call_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uses(monkeypatch, "return ctx.durable_execute(abs, 1)") == (True, True)
