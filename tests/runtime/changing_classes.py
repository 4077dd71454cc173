"""Classes of a module that is edited between two versions of a program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any

from flink_agents.api.durable import upgrades
from flink_agents.runtime.serde import typenames

MODULE = "edited_shop"
OTHER = "edited_shop_elsewhere"

HEADER = """
import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from pydantic import BaseModel
from flink_agents import upgrades
"""

HEADS = {
    "dataclass": "@dataclass\nclass Thing:",
    "model": "class Thing(BaseModel):",
    "named tuple": "class Thing(NamedTuple):",
}
FIELDS = "\n    name: str\n    count: int"

KINDS = [*HEADS, "enum"]

OLD = {kind: f"{head}{FIELDS}\n\nmake = lambda: Thing(name='tea', count=3)" for kind, head in HEADS.items()}
OLD["enum"] = "class Thing(Enum):\n    TEA = 3\n    RUM = 4\n\nmake = lambda: Thing.TEA"

NEW_FIELDS = {
    "added required": FIELDS + "\n    price: float",
    "added with default": FIELDS + "\n    price: float = 1.5",
    "removed": "\n    name: str",
    "renamed": "\n    name: str\n    number: int",
    "renamed with default": "\n    name: str\n    number: int = 0",
    "retyped": "\n    name: str\n    count: str",
    "retyped so that it fits": "\n    name: str\n    count: float",
    "moved": "",
    "became another kind": "",
}
NEW_MEMBERS = {
    "added required": "\n    TEA = 3\n    RUM = 4\n    GIN = 5",
    "added with default": "\n    GIN = 0\n    TEA = 3\n    RUM = 4",
    "removed": "\n    RUM = 4",
    "renamed": "\n    BLACK_TEA = 3\n    RUM = 4",
    "renamed with default": "\n    BLACK_TEA = 3\n    TEA = 3\n    RUM = 4",
    "retyped": "\n    TEA = 'three'\n    RUM = 'four'",
    "retyped so that it fits": "\n    TEA = 3.0\n    RUM = 4.0",
    "moved": "",
    "became another kind": "",
}
CHANGES = list(NEW_FIELDS)

UPGRADES = {
    "added required": "Thing(**fields, price=2.5)",
    "removed": "Thing(name=fields['name'])",
    "renamed": "Thing(name=fields['name'], number=fields['count'])",
    "renamed with default": "Thing(name=fields['name'], number=fields['count'])",
    "retyped": "Thing(name=fields['name'], count=str(fields['count']))",
    "became another kind": "Thing({'name': 'tea'})",
}
"""How a function upgrades stored fields that do not fit."""


def new(kind: str, change: str) -> str:
    """Return the source of the class after an edit; that of the other module if it was moved there."""
    if change == "moved":
        return OLD[kind]
    if change == "became another kind":
        return f"class Thing(Enum):{NEW_MEMBERS['renamed']}" if kind != "enum" else HEADS["model"] + FIELDS
    if kind == "enum":
        return f"class Thing(Enum):{NEW_MEMBERS[change]}"
    return HEADS[kind] + NEW_FIELDS[change]


def define(module: str, source: str) -> ModuleType:
    """Make a module of a source, as its new version if it is there already."""
    new_module = ModuleType(module)
    sys.modules[module] = new_module
    # Not `exec` in a plain dict: the classes look for their names in the module.
    exec(compile(HEADER + source, module, "exec", dont_inherit=True), new_module.__dict__)
    typenames.resolve_type.cache_clear()
    typenames.type_name.cache_clear()
    return new_module


@contextmanager
def versions() -> Iterator[None]:
    """Forget all versions of the modules in the end, and their upgrades."""
    previous_upgrades = upgrades.all_upgrades()
    try:
        yield
    finally:
        upgrades._upgrades.clear()
        upgrades._upgrades.update(previous_upgrades)
        for module in (MODULE, OTHER):
            sys.modules.pop(module, None)
        typenames.resolve_type.cache_clear()
        typenames.type_name.cache_clear()


def edit(kind: str, change: str, upgrade: str = "") -> ModuleType:
    """Put the new version of the module in the place of the old one."""
    if change == "moved":
        define(MODULE, "")
        return define(OTHER, upgrade + new(kind, change))
    return define(MODULE, upgrade + new(kind, change))


def plain(value: Any) -> Any:
    """Return what a value has, whatever its class: its fields, or the name of an enum's member."""
    if hasattr(value, "model_fields_set"):
        return dict(value)
    if hasattr(value, "_asdict"):
        return value._asdict()
    return value.name if isinstance(value, Enum) else vars(value)
