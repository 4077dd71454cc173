"""Digests code objects, and finds the functions of a loaded module.

A digest does not depend on paths and lines, so the same source has the same digest in each process
of one version of Python.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LONGEST_NAME = 200


def digest_code(code: CodeType, digests: set[bytes] | None = None, mentions: set[str] | None = None) -> bytes:
    """Return the digest of ``code``, which does not depend on its file and lines.

    Args:
        code: The code.
        digests: A set to which the digests of the code and of all code inside are added.
        mentions: A set to which all names that it uses are added, and strings that could name modules.
    """

    def token(value: Any) -> Any:
        if isinstance(value, CodeType):
            return digest_code(value, digests, mentions)
        if isinstance(value, tuple):
            return [token(part) for part in value]
        if isinstance(value, frozenset):
            # The order of a set differs between processes.
            return {"set": sorted(repr(token(part)) for part in value)}
        if mentions is not None and isinstance(value, str) and _could_be_a_module(value):
            mentions.add(value)
        return repr(value)

    if mentions is not None:
        mentions.update(code.co_names)
    parts = (
        code.co_qualname,
        (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_code,
        code.co_exceptiontable,
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        token(code.co_consts),
    )
    result = blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=8).digest()
    if digests is not None:
        digests.add(result)
    return result


def _could_be_a_module(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and all(part.isidentifier() for part in text.split("."))


def functions_in(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that the file of a loaded module defines and that its names lead to.

    The search includes classes, wrappers and closures. Code that decorators generate is not code of the file.
    """
    names = vars(module)
    waiting = list(reversed(names.values()))
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            if value.__code__.co_filename == names.get("__file__"):
                yield value.__qualname__, value
        waiting += _objects_inside(value, module.__name__)


_HOLDERS: tuple[tuple[tuple[type, ...], tuple[str, ...]], ...] = (
    ((staticmethod, classmethod), ("__func__",)),
    ((property,), ("fget", "fset", "fdel")),
    ((functools.partial, functools.partialmethod, functools.cached_property), ("func",)),
)
"""Attributes that hold a function in a wrapper."""


def _objects_inside(value: Any, module: str) -> list[Any]:
    """Return the objects inside ``value`` that may be functions of ``module``, or may lead to some."""
    if issubclass(type(value), type):
        return list(vars(value).values()) if value.__module__ == module else []
    for kinds, attributes in _HOLDERS:
        if issubclass(type(value), kinds):
            return [getattr(value, attribute) for attribute in attributes]
    try:
        # Not getattr: the value may be a proxy, or have any name.
        namespace: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return []
    inner_values = [namespace["__wrapped__"]] if "__wrapped__" in namespace else []
    if type(value) is FunctionType:
        inner_values += [cell for cell in map(_cell_content, value.__closure__ or ()) if callable(cell)]
    return inner_values


def _cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
