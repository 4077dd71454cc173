"""Digests of code objects, and the functions that a loaded module has of them.

A digest does not depend on paths and lines, so that the same source has the same digest in each process
of one version of Python.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LONGEST_NAME = 200


def digest(code: CodeType, found: set[bytes] | None = None, mentions: set[str] | None = None) -> bytes:
    """Return what ``code`` does, and not where it stands.

    Args:
        code: The code.
        found: Gets the digests of it and of all code inside.
        mentions: Gets the names that all of it uses, and its texts that could be names of modules.
    """

    def token(value: Any) -> Any:
        if isinstance(value, CodeType):
            return digest(value, found, mentions)
        if isinstance(value, tuple):
            return [token(one) for one in value]
        if isinstance(value, frozenset):
            # Its order differs from process to process.
            return {"set": sorted(repr(token(one)) for one in value)}
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
    if found is not None:
        found.add(result)
    return result


def _could_be_a_module(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and all(part.isidentifier() for part in text.split("."))


def functions_in(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that the file of a loaded module defines and its names lead to.

    Classes, wrappers and closures are looked into. What decorators generate is not code of the file.
    """
    names = vars(module)
    waiting, seen = list(reversed(names.values())), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            if value.__code__.co_filename == names.get("__file__"):
                yield value.__qualname__, value
        waiting += _inside(value, module.__name__)


_HOLDERS: tuple[tuple[tuple[type, ...], tuple[str, ...]], ...] = (
    ((staticmethod, classmethod), ("__func__",)),
    ((property,), ("fget", "fset", "fdel")),
    ((functools.partial, functools.partialmethod, functools.cached_property), ("func",)),
)
"""Objects around a function, and where they have it."""


def _inside(value: Any, module: str) -> list[Any]:
    """Return what a value holds that can be a function of the module."""
    if issubclass(type(value), type):
        return list(vars(value).values()) if value.__module__ == module else []
    for kinds, attributes in _HOLDERS:
        if issubclass(type(value), kinds):
            return [getattr(value, attribute) for attribute in attributes]
    try:
        # Not getattr: the value may be a proxy, or answer to any name.
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return []
    found = [own["__wrapped__"]] if "__wrapped__" in own else []
    if type(value) is FunctionType:
        found += [cell for cell in map(_content, value.__closure__ or ()) if callable(cell)]
    return found


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
