"""Code that only the description of a resource names: ``clazz="module:name"``, or the function of a router.

No code of the agent refers to it, so it would not reach the workers with the agent. These objects travel
with the code of the agent: by value if they are of the main script, else by name. If a worker lacks
their module, loading the operator fails, and not each record.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from flink_agents.plan.model import AgentPlan

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INSTALLED = ("site-packages", "dist-packages")


def named_objects(plan: AgentPlan) -> dict[str, Any]:
    """Return the user's objects that descriptions of resources name, by their names.

    Objects that cannot be imported here are omitted: the workers, which look for them again, may have them.
    """
    objects: dict[str, Any] = {}
    for resource in plan.resources:
        if resource.descriptor is None:
            continue
        clazz = resource.descriptor.clazz
        for name in filter(_NAME.fullmatch, (clazz, *_texts(resource.descriptor.arguments))):
            if name not in objects and (value := _object(name, loads=name == clazz)) is not None:
                objects[name] = value
    return objects


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _texts(member)


def _object(name: str, loads: bool) -> Any:
    """Return the object with a name; None if it is not the user's, or is not a function or class.

    Args:
        name: The name.
        loads: True if its module may be imported. Other strings may look like names of code.
    """
    module, _, qualname = name.partition(":")
    try:
        there: Any = sys.modules.get(module)
        if there is None:
            if not loads or not _is_of_author(importlib.util.find_spec(module)):
                return None
            there = importlib.import_module(module)
        elif module != "__main__" and not _is_of_author(there.__spec__):
            return None
        for part in qualname.split("."):
            there = getattr(there, part)
    except Exception:  # Whatever a module raises during its import.
        return None
    return there if callable(there) else None


def _is_of_author(spec: Any) -> bool:
    origin = getattr(spec, "origin", None)
    if origin is None or spec.name.partition(".")[0] in {"flink_agents", *sys.stdlib_module_names}:
        return False
    return not any(part in _INSTALLED for part in PurePath(origin).parts)
