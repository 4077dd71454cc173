"""The modules that are checked for stale code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from digested_disk import NAME, Disk, check_of

from flink_agents import Agent, InputEvent, action
from flink_agents.plan import compile_with_code
from flink_agents.runtime.flink.shipping import code_digest
from flink_agents.runtime.flink.shipping.code_digest import (
    CodeCheck,
    modules_used,
)

PACKAGE = {
    "digested_store.__init__": "",
    "digested_store.base": "from flink_agents import Agent\nclass Base(Agent):\n    pass\n",
    "digested_store.limits": "LIMIT = 1\n",
    "digested_store.rules": "from .limits import LIMIT\ndef cheap(event):\n    return event.input < LIMIT\n",
    "digested_store.tools": "import json\ndef count(word: str) -> int:\n    '''Count.'''\n    return 1\n",
    "digested_store.lazy": "def late():\n    pass\n",
    "digested_store.unused": "def f():\n    pass\n",
    "digested_store.agents": """
import digested_store.rules as rules
from digested_store.base import Base
from flink_agents import InputEvent, action

class Shop(Base):
    @action(InputEvent, when=rules.cheap)
    def sell(self, event, ctx):
        from digested_store.lazy import late
        late()
""",
}


def modules_of(agent: Agent) -> list[str]:
    return sorted(module.name for module in CodeCheck.for_agent(compile_with_code(agent)[1]).modules)


def test_the_modules_of_an_agent_and_those_they_use(disk: Disk) -> None:
    modules = disk.load_all(PACKAGE)
    shop = modules["digested_store.agents"].Shop()
    shop.add_resource("count", "tool", modules["digested_store.tools"].count)
    names = ("agents", "base", "lazy", "limits", "rules", "tools")
    assert modules_of(shop) == [f"digested_store.{name}" for name in names]


def test_a_base_class_that_no_code_names_is_looked_at(disk: Disk) -> None:
    base_class = disk.load_all(PACKAGE)["digested_store.base"].Base

    class Shop(base_class):
        @action(InputEvent)
        def sell(self, event: InputEvent, ctx: Any) -> None:
            return None

    assert "digested_store.base" in modules_of(Shop())


def test_of_the_main_module_only_what_it_uses_is_looked_at(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = disk.load_all(PACKAGE)
    rules = modules["digested_store.rules"]

    class Script(Agent):
        @action(InputEvent)
        def sell(self, event: InputEvent, ctx: Any) -> None:
            return None

    Script.__module__ = Script.sell.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "rules", rules, raising=False)
    module_names = modules_of(Script())
    assert "digested_store.rules" in module_names
    assert "__main__" not in module_names


def test_libraries_are_not_looked_at() -> None:
    names = [
        "json",
        "builtins",
        "pydantic.main",
        "pytest",
        "flink_agents.api.agents.agent",
        "_io",
        "no_such_module",
    ]
    assert list(modules_used(names)) == []


def test_a_module_without_a_file_of_its_own_is_not_looked_at(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated_module = ModuleType("digested_made")
    monkeypatch.setitem(sys.modules, "digested_made", generated_module)
    deleted_module = disk.load("def f():\n    pass\n")
    Path(deleted_module.__file__ or "").unlink()
    assert list(modules_used(["digested_made", NAME])) == []
    generated_module.__file__ = deleted_module.__file__
    assert list(modules_used(["digested_made"])) == []


def test_a_module_that_travels_with_the_job_is_not_looked_at(disk: Disk) -> None:
    module = disk.load("def f():\n    pass\n")
    cloudpickle.register_pickle_by_value(module)
    try:
        assert list(modules_used([NAME])) == []
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_is_digested_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.load("def f():\n    pass\n")
    first = check_of(NAME).modules
    monkeypatch.setattr(code_digest, "digest_code", None)
    assert check_of(NAME).modules == first


def test_nothing_is_compared_where_the_check_is_switched_off() -> None:
    assert CodeCheck.for_agent(None).modules == ()
